"""The chart's alerts, evaluated by Prometheus' own promtool: each fires when it should, and only then."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.chart import promtool
from tests.support.helm_chart import CHART, NAME, NAMESPACE, Object, find_one, render
from tests.support.paths import DOCS
from webhook.placement.reasons import GUARD_REASONS, Subject
from webhook.serving.telemetry.metrics import possible_labels

pytestmark = pytest.mark.controlplane  # Helm is built together with the control plane

SOURCES: dict[str, Object] = {
    "self": {},
    "cert-manager": {"certificates": {"source": "cert-manager"}},
    "provided": {"certificates": {"source": "provided", "secretName": "webhook-certificate"}},
    "release off": {"release": {"enabled": False}},
    "client CA": {"tls": {"clientCA": {"configMap": "api-server-client-ca"}}},
}
OURS = {"namespace": NAMESPACE, "service": NAME}
API_SERVER = {"job": "apiserver", "instance": "192.0.2.1:6443"}
UP = 'up{job="apiserver",instance="192.0.2.1:6443"}'


def metric(name: str, **labels: str) -> str:
    """A series of replica `a` of the release."""
    pairs = OURS | {"pod": "a"} | labels
    return f"kubevirt_scheduler_{name}{{" + ",".join(f'{key}="{value}"' for key, value in pairs.items()) + "}"


def decisions(outcome: str, reason: str, **labels: str) -> str:
    started = {"subject": "vm", "mode": "required", "action": "inject"} | labels
    return metric("decisions_total", outcome=outcome, reason=reason, **started)


def calls(counter: str, webhook: str = "vms.kubevirt-scheduler.io", **labels: str) -> str:
    pairs = API_SERVER | {"name": webhook, "type": "admit"} | labels
    series = ",".join(f'{key}="{value}"' for key, value in pairs.items())
    return f"apiserver_admission_webhook_{counter}{{{series}}}"


@dataclass(frozen=True)
class Case:
    """Series, one value a minute, and how many alerts of this name and severity they fire at a time."""

    alert: str
    severity: str
    series: dict[str, str]
    at: str = "30m"
    count: int = 1


def fleet(apart: int, together: int, opted_in: str = "true") -> dict[str, str]:
    states = {"Apart": apart, "Together": together}
    return {metric("vms", state=state, opted_in=opted_in, pod=pod): f"{number}x500"
            for state, number in states.items() for pod in ("a", "b")}  # fmt: skip


SOFTENED = decisions("preferred", "NodeFull")
PINNED = decisions("pinned", "CoScheduled")
BUCKETS = {limit: metric("decision_duration_seconds_bucket", le=limit) for limit in ("0.1", "0.2", "+Inf")}
CASES = {
    # VMs
    "the first rejection of a webhook": Case(
        "Rejected",
        "critical",
        {UP: "1x60", calls("rejection_count", error_type="calling_webhook_error"): "_x24 1x60"},
    ),
    "a further rejection": Case(
        "Rejected",
        "critical",
        {UP: "1x60", calls("rejection_count", error_type="apiserver_internal_error"): "7x24 8x60"},
    ),
    "a rejection an hour ago": Case(
        "Rejected", "critical", {UP: "1x90", calls("rejection_count"): "_x4 1x90"}, at="65m", count=0
    ),
    "an old rejection that Prometheus sees for the first time": Case(
        "Rejected", "critical", {UP: "_x24 1x60", calls("rejection_count"): "_x24 7x60"}, count=0
    ),
    "a rejection by another webhook": Case(
        "Rejected", "critical", {UP: "1x60", calls("rejection_count", "other.example.com"): "0x24 9x60"}, count=0
    ),
    "the first call that failed open": Case("Missed", "warning", {UP: "1x60", calls("fail_open_count"): "_x24 1x60"}),
    "failing calls of both webhooks": Case(
        "Missed",
        "warning",
        {
            calls("fail_open_count"): "1x24 2x60",
            calls("fail_open_count", "share-managers.kubevirt-scheduler.io"): "0x24 1x60",
        },
        count=2,
    ),
    "no failing call lately": Case("Missed", "warning", {UP: "1x60", calls("fail_open_count"): "3x60"}, count=0),
    "a VM that started without a decision": Case("Undecided", "warning", {metric("undecided_pods"): "0x24 1x60"}),
    "VMs with decisions": Case("Undecided", "warning", {metric("undecided_pods"): "0x60"}, count=0),
    "a third of the starts softened": Case("Softened", "warning", {SOFTENED: "0+1x120", PINNED: "0+2x120"}, at="2h"),
    "softened starts of two reasons": Case(
        "Softened",
        "warning",
        {SOFTENED: "0+1x120", decisions("unchanged", "NodeNotFound"): "0+1x120", PINNED: "0+5x120"},
        at="2h",
    ),
    "a fifth of the starts softened": Case(
        "Softened", "warning", {SOFTENED: "0+1x120", PINNED: "0+4x120"}, at="2h", count=0
    ),
    "two softened starts and no other": Case(
        "Softened", "warning", {SOFTENED: "0x60 1x29 2x40", PINNED: "0x120"}, at="2h", count=0
    ),
    "VMs that only prefer the node by choice": Case(
        "Softened",
        "warning",
        {decisions("preferred", "NodeFull", mode="preferred"): "0+9x120", PINNED: "0+1x120"},
        at="2h",
        count=0,
    ),
    "share-managers that the guard refused": Case(
        "Softened",
        "warning",
        {decisions("unchanged", "NodeFull", subject="share-manager", mode="preferred"): "0+9x120", PINNED: "0+1x120"},
        at="2h",
        count=0,
    ),
    "softened decisions that are only observed": Case(
        "Softened", "warning", {decisions("preferred", "NodeFull", action="observe"): "0+9x120"}, at="2h", count=0
    ),
    "one VM of four apart": Case("VMsApart", "info", fleet(1, 3), at="7h"),
    "one VM of four apart for an hour": Case("VMsApart", "info", fleet(1, 3), at="1h", count=0),
    "one VM of twenty apart": Case("VMsApart", "info", fleet(1, 19), at="7h", count=0),
    "VMs apart that are not opted in": Case("VMsApart", "info", fleet(9, 1, "false") | fleet(0, 1), at="7h", count=0),
    "no opted-in VM": Case("VMsApart", "info", fleet(0, 0), at="7h", count=0),
    "pinned VMs that wait": Case("PendingPins", "warning", {metric("pending_pins", reason="NodeFull"): "0x10 2x60"}),
    "a pinned VM that waited for five minutes": Case(
        "PendingPins", "warning", {metric("pending_pins", reason="NodeFull"): "0x10 2x4 0x60"}, count=0
    ),
    "ten releases within an hour": Case(
        "Releases", "info", {metric("released_total", reason="NodeCordoned"): "0x19 10x60"}
    ),
    "one release": Case("Releases", "info", {metric("released_total", reason="NodeCordoned"): "0x19 1x60"}, count=0),
    "no leader": Case("NoReleaseLeader", "warning", {metric("release_leader", pod=pod): "0x60" for pod in "ab"}),
    "one leader": Case(
        "NoReleaseLeader",
        "warning",
        {metric("release_leader", pod=pod): f"{leads}x60" for pod, leads in zip("ab", "01", strict=True)},
        count=0,
    ),
    "an internal error": Case("InternalError", "warning", {decisions("unchanged", "InternalError"): "0x24 1x60"}),
    "no internal error": Case("InternalError", "warning", {decisions("unchanged", "InternalError"): "1x60"}, count=0),
    # Replicas
    "no replica": Case("Absent", "critical", {metric("build_info", service="another"): "1x60"}),
    "a replica": Case("Absent", "critical", {metric("build_info"): "1x60"}, count=0),
    "a missing right": Case("RightMissing", "critical", {metric("cache_forbidden", resource="pods"): "1x60"}),
    "no missing right": Case("RightMissing", "critical", {metric("cache_forbidden", resource="pods"): "0x60"}, count=0),
    "a cache that never synced": Case("NotSynced", "critical", {metric("cache_synced", resource="pods"): "0x60"}),
    "a cache that synced": Case(
        "NotSynced", "critical", {metric("cache_synced", resource="pods"): "0x5 1x60"}, count=0
    ),
    "a stale cache": Case("Stale", "warning", {metric("cache_age_seconds", resource="nodes"): "0+60x60"}),
    "a quiet cache": Case("Stale", "warning", {metric("cache_age_seconds", resource="nodes"): "70x60"}, count=0),
    "slow decisions": Case(
        "Slow", "warning", {BUCKETS["0.1"]: "0+5x60", BUCKETS["0.2"]: "0+10x60", BUCKETS["+Inf"]: "0+10x60"}
    ),
    "fast decisions": Case(
        "Slow", "warning", {BUCKETS["0.1"]: "0+10x60", BUCKETS["0.2"]: "0+10x60", BUCKETS["+Inf"]: "0+10x60"}, count=0
    ),
    "a blocked loop": Case("LoopBlocked", "warning", {metric("loop_longest_turn_seconds"): "0.7x60"}),
    "a busy loop": Case("LoopBlocked", "warning", {metric("loop_longest_turn_seconds"): "0.1x60"}, count=0),
    "Events that are dropped for an hour": Case(
        "EventsDropped", "info", {metric("events_dropped_total", cause="full"): "0+1x90"}, at="80m"
    ),
    "Events that are dropped for a minute": Case(
        "EventsDropped", "info", {metric("events_dropped_total", cause="full"): "0x9 5x90"}, at="80m", count=0
    ),
    # Certificates
    **{
        f"a {which} {left} days before its end, {severity}": Case(
            alert,
            severity,
            {metric("certificate_expiry_seconds", certificate=which): f"{left * 86400}x1600"},
            at,
            count,
        )
        for which, alert, at, limits in (
            ("leaf", "CertificateExpiring", "2h", {"warning": 7.5, "critical": 2}),
            ("ca", "CaExpiring", "25h", {"warning": 91.25, "critical": 30}),
            ("client-ca", "ClientCaExpiring", "2h", {"warning": 14}),
        )
        for severity, limit in limits.items()
        for left, count in ((limit - 0.5, 1), (limit + 0.5, 0))
    },
    "a certificate that can't be served": Case(
        "CertificateUnusable", "warning", {metric("certificate_unusable"): "1x60"}
    ),
    "a certificate that can be served": Case(
        "CertificateUnusable", "warning", {metric("certificate_unusable"): "0x60"}, count=0
    ),
    "a client CA that can't be used": Case("ClientCaUnusable", "warning", {metric("client_ca_unusable"): "1x60"}),
    "a client CA that can be used": Case(
        "ClientCaUnusable", "warning", {metric("client_ca_unusable"): "0x60"}, count=0
    ),
    "a certificate that is renewed each minute": Case(
        "CertificateReissued", "critical", {metric("certificate_steps_total", step="renew"): "0+1x60"}
    ),
    "one renewal": Case(
        "CertificateReissued", "critical", {metric("certificate_steps_total", step="renew"): "0x19 1x60"}, count=0
    ),
    "passes that fail": Case(
        "CertificateFails", "warning", {metric("certificate_failures_total", cause="refused"): "0+3x60"}
    ),
    "replicas that agree": Case(
        "CertificateFails", "warning", {metric("certificate_failures_total", cause="conflict"): "0+3x60"}, count=0
    ),
    "a caBundle that is overwritten each minute": Case(
        "CaBundleOverwritten", "warning", {metric("certificate_repairs_total"): "0+1x60"}
    ),
    "one repair": Case("CaBundleOverwritten", "warning", {metric("certificate_repairs_total"): "0x19 1x60"}, count=0),
}


@cache
def rendered_rules(source: str = "client CA") -> Object:
    rule = find_one(render(SOURCES[source] | {"prometheusRule": {"enabled": True}}), "PrometheusRule")
    spec: Object = rule["spec"]
    return spec


def alerts(rules: Object) -> list[Any]:
    return [alert for group in rules["groups"] for alert in group["rules"]]


@pytest.mark.needs("promtool")
@pytest.mark.parametrize("source", SOURCES)
def test_prometheus_parses_the_rules(source: str, tmp_path: Path) -> None:
    promtool.check_rules(tmp_path, rendered_rules(source))


@pytest.mark.needs("promtool")
def test_promtool_rejects_a_rule_with_an_invalid_expression(tmp_path: Path) -> None:
    group = {"name": "broken", "rules": [{"alert": "Broken", "expr": "sum(rate(a[5m])"}]}
    with pytest.raises(promtool.PromtoolError, match="could not parse expression"):
        promtool.check_rules(tmp_path, {"groups": [group]})


@pytest.mark.needs("promtool")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_alert_fires_only_on_its_series(case: Case, tmp_path: Path) -> None:
    promtool.check_rules(tmp_path, rendered_rules())
    alert = {"alertname": f"KubevirtScheduler{case.alert}", "severity": case.severity}
    promtool.firing_alerts(tmp_path, alert, case.series, case.at, case.count)


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    found = {(alert["alert"], alert["labels"]["severity"]) for alert in alerts(rendered_rules())}
    for fires in True, False:
        covered = {(f"KubevirtScheduler{case.alert}", case.severity)
                   for case in CASES.values() if bool(case.count) is fires}  # fmt: skip
        assert covered == found


@pytest.mark.parametrize("source", SOURCES)
def test_each_alert_has_a_severity_texts_and_a_runbook(source: str) -> None:
    for alert in alerts(rendered_rules(source)):
        assert alert["labels"]["severity"] in ("critical", "warning", "info")
        assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
        assert alert["annotations"]["runbook_url"] == f"{alert['alert']}.md"
        assert alert["annotations"]["summary"].endswith(".")


def test_the_runbook_url_of_an_alert_starts_with_the_configured_base() -> None:
    values = {"prometheusRule": {"enabled": True, "runbookUrl": "https://example.com/runbooks/"}}
    rules: Object = find_one(render(values), "PrometheusRule")["spec"]
    urls = {alert["alert"]: alert["annotations"]["runbook_url"] for alert in alerts(rules)}
    assert urls["KubevirtSchedulerAbsent"] == "https://example.com/runbooks/KubevirtSchedulerAbsent.md"


def test_there_is_one_runbook_for_each_alert() -> None:
    pages = {page.stem for page in (DOCS / "runbooks").glob("Kubevirt*.md")}
    assert pages == {alert["alert"] for alert in alerts(rendered_rules())}


def test_the_index_of_runbooks_lists_each_alert_with_its_severities() -> None:
    rows = re.findall(
        r"^\| \[(\w+)\]\((\w+)\.md\) \| ([a-z, ]+) \|", (DOCS / "runbooks/README.md").read_text(), re.MULTILINE
    )
    assert all(name == page for name, page, _ in rows)
    listed = {name: set(severities.split(", ")) for name, _, severities in rows}
    found: dict[str, set[str]] = {}
    for alert in alerts(rendered_rules()):
        found.setdefault(alert["alert"], set()).add(alert["labels"]["severity"])
    assert listed == found


def test_the_softened_alert_covers_each_reason_of_the_guard() -> None:
    (softened,) = (alert for alert in alerts(rendered_rules()) if alert["alert"] == "KubevirtSchedulerSoftened")
    reasons = re.findall(r'reason=~"([A-Za-z|]+)"', softened["expr"])
    refused = "|".join(GUARD_REASONS)
    assert set(reasons) == {refused, f"CoScheduled|{refused}"}


SOFTENED_QUERIES = (
    CHART / "dashboards" / "kubevirt-scheduler.json",
    DOCS / "runbooks" / "KubevirtSchedulerSoftened.md",
)


@pytest.mark.parametrize("file", SOFTENED_QUERIES, ids=lambda file: file.name)
def test_each_query_of_softened_starts_selects_the_reasons_of_the_guard(file: Path) -> None:
    patterns = re.findall(r'reason=~\\?"(?:CoScheduled\|)?(CacheStale\|[^"\\]+)', file.read_text())
    assert patterns
    of_vms = {reason for subject, _, reason, _ in possible_labels() if subject is Subject.VM}
    for pattern in patterns:
        assert {reason for reason in of_vms if re.fullmatch(pattern, reason)} == set(GUARD_REASONS)
