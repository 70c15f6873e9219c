"""The chart's alerts, evaluated by Prometheus' own promtool: each fires when it should, and only then."""

from __future__ import annotations

import json
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml

from tests.support import needs
from tests.support.helm_chart import CHART, NAME, NAMESPACE, Object, alert_rules, find_one, render
from tests.support.paths import DOCS
from webhook.placement.guard.feasibility import GUARD_REASONS
from webhook.placement.reasons import Subject
from webhook.serving.telemetry.metrics import possible_labels

pytestmark = pytest.mark.controlplane  # Helm is built together with the control plane

Series = dict[str, str]
SOURCES: dict[str, Object] = {
    "self": {},
    "cert-manager": {"certificates": {"source": "cert-manager"}},
    "provided": {"certificates": {"source": "provided", "secretName": "webhook-certificate"}},
    "release off": {"release": {"enabled": False}},
    "client CA": {"tls": {"clientCA": {"configMap": "api-server-client-ca"}}, "recolocate": {"schedule": "0 2 * * *"}},
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


def fleet(apart: str, together: str, opted_in: str = "true") -> Series:
    states = {"Apart": apart, "Together": together}
    return {metric("vms", state=state, opted_in=opted_in, pod=pod): values
            for state, values in states.items() for pod in ("a", "b")}  # fmt: skip


def expiry(certificate: str, days: float) -> Series:
    return {metric("certificate_expiry_seconds", certificate=certificate): f"{days * 86400}x1600"}


def durations(under_a_tenth: str) -> Series:
    counts = {"0.1": under_a_tenth, "0.2": "0+10x60", "+Inf": "0+10x60"}
    return {metric("decision_duration_seconds_bucket", le=limit): values for limit, values in counts.items()}


SOFTENED, NODE_IS_GONE = decisions("preferred", "NodeFull"), decisions("unchanged", "NodeNotFound")
PINNED = decisions("pinned", "CoScheduled")
PREFERRED = decisions("preferred", "NodeFull", mode="preferred")
OBSERVED = decisions("preferred", "NodeFull", action="observe")
SHARE_MANAGERS = decisions("unchanged", "NodeFull", subject="share-manager", mode="preferred")
INTERNAL_ERRORS = decisions("unchanged", "InternalError")
REJECTIONS = calls("rejection_count", error_type="calling_webhook_error")
FAILED_OPEN, FAILED_OPEN_FOR_OTHERS = (
    calls("fail_open_count", f"{name}.kubevirt-scheduler.io") for name in ("vms", "share-managers")
)
PENDING = metric("pending_pins", reason="NodeFull")
RELEASED = metric("released_total", reason="NodeCordoned")
LEADS, LEADS_TOO = (metric("release_leader", pod=pod) for pod in "ab")
FORBIDDEN, SYNCED, AGE = (metric(f"cache_{name}", resource="pods") for name in ("forbidden", "synced", "age_seconds"))
DROPPED = metric("events_dropped_total", cause="full")
RENEWED = metric("certificate_steps_total", step="renew")
JOBS = [f'namespace="{NAMESPACE}",job_name="{NAME}-recolocate-{number}"' for number in (29000000, 29001440)]
LAST_SUCCESS = f'kube_cronjob_status_last_successful_time{{namespace="{NAMESPACE}",cronjob="{NAME}-recolocate"}}'
REFUSED, CONFLICTS = (metric("certificate_failures_total", cause=cause) for cause in ("refused", "conflict"))


def run(job: str, started: int, failed: int, reason: str = "BackoffLimitExceeded") -> Series:
    """The series of one Job of the CronJob."""
    state = f'kube_job_status_failed{{{job},reason="{reason}"}}'
    return {f"kube_job_status_start_time{{{job}}}": f"{started}x90", state: f"{failed}x90"}


# An alert, its label `cause` (or `certificate`), its severity, and a time.
Case = tuple[str, str, str, str]
# For each case: series, one value a minute, by how many alerts they fire then.
CASES: dict[Case, dict[int, list[Series]]] = {
    # VMs. Rejections that are counted since the API server's start, an hour ago, by another webhook, or before
    # Prometheus first scrapes the API server, are no new ones.
    ("Rejected", "", "critical", "65m"): {
        1: [{UP: "1x90", REJECTIONS: "_x59 1x60"}, {UP: "1x90", REJECTIONS: "7x59 8x60"}],
        0: [
            {UP: "1x90", REJECTIONS: "_x4 1x90"},
            {UP: "_x59 1x60", REJECTIONS: "_x59 7x60"},
            {UP: "1x90", calls("rejection_count", "other.example.com"): "0x59 9x60"},
        ],
    },
    ("Undecided", "call-failed", "warning", "30m"): {
        1: [{UP: "1x60", FAILED_OPEN: "_x24 1x60"}],
        2: [{FAILED_OPEN: "1x24 2x60", FAILED_OPEN_FOR_OTHERS: "0x24 1x60"}],
        0: [{UP: "1x60", FAILED_OPEN: "3x60"}],
    },
    ("Undecided", "no-decision", "warning", "30m"): {
        1: [{metric("undecided_pods"): "0x24 1x60"}],
        0: [{metric("undecided_pods"): "0x60"}],
    },
    ("Undecided", "internal-error", "warning", "30m"): {
        1: [{INTERNAL_ERRORS: "0x24 1x60"}],
        0: [{INTERNAL_ERRORS: "1x60"}],
    },
    ("Undecided", "uncaught-error", "warning", "30m"): {
        1: [{metric("uncaught_errors_total"): "0x24 1x60"}],
        0: [{metric("uncaught_errors_total"): "1x60"}],
    },
    ("Softened", "guard", "warning", "2h"): {
        1: [
            {SOFTENED: "0+1x120", PINNED: "0+2x120"},
            {SOFTENED: "0+1x120", NODE_IS_GONE: "0+1x120", PINNED: "0+5x120"},
        ],
        # A fifth of the starts, only two starts, by choice, share-managers, only observed.
        0: [
            {SOFTENED: "0+1x120", PINNED: "0+4x120"},
            {SOFTENED: "0x60 1x29 2x40", PINNED: "0x120"},
            {PREFERRED: "0+9x120", PINNED: "0+1x120"},
            {SHARE_MANAGERS: "0+9x120", PINNED: "0+1x120"},
            {OBSERVED: "0+9x120"},
        ],
    },
    ("Softened", "released", "warning", "40m"): {1: [{RELEASED: "0x19 10x60"}], 0: [{RELEASED: "0x19 1x60"}]},
    ("VMsUnserved", "", "critical", "20m"): {
        1: [{metric("vms", state="Unserved", opted_in="false", pod="a"): "1x60"}],
        # A replacement, and VMs whose disk is served.
        0: [{metric("vms", state="Unserved", opted_in="true", pod="a"): "0x10 2x2 0x60"}, fleet("1x60", "3x60")],
    },
    ("VMsApart", "", "info", "7h"): {
        1: [fleet("1x500", "3x500")],
        # For an hour, one of twenty, not opted in, no opted-in VM.
        0: [
            fleet("0x359 1x500", "3x500"),
            fleet("1x500", "19x500"),
            fleet("9x500", "1x500", "false") | fleet("0x500", "1x500"),
            fleet("0x500", "0x500"),
        ],
    },
    ("PendingPins", "stuck", "warning", "30m"): {1: [{PENDING: "0x10 2x60"}], 0: [{PENDING: "0x10 2x4 0x60"}]},
    ("PendingPins", "no-leader", "warning", "30m"): {
        1: [{LEADS: "0x60", LEADS_TOO: "0x60"}],
        0: [{LEADS: "0x60", LEADS_TOO: "1x60"}],
    },
    ("RecolocateFailed", "", "warning", "30m"): {
        1: [
            run(JOBS[0], 1000, 1),
            run(JOBS[0], 1000, 0) | run(JOBS[1], 9000, 1) | {LAST_SUCCESS: "2000x90"},
        ],
        # A success since, a window that ended, a run of another CronJob.
        0: [
            run(JOBS[0], 1000, 1) | run(JOBS[1], 9000, 0) | {LAST_SUCCESS: "9500x90"},
            run(JOBS[0], 1000, 1, "DeadlineExceeded") | run(JOBS[0], 1000, 0),
            run(f'namespace="{NAMESPACE}",job_name="backup-29000000"', 1000, 1),
        ],
    },
    # Replicas
    ("Absent", "", "critical", "30m"): {
        1: [{metric("build_info", service="another"): "1x60"}],
        0: [{metric("build_info"): "1x60"}],
    },
    ("CacheFails", "forbidden", "critical", "30m"): {1: [{FORBIDDEN: "1x60"}], 0: [{FORBIDDEN: "0x60"}]},
    ("CacheFails", "never-listed", "critical", "30m"): {1: [{SYNCED: "0x60"}], 0: [{SYNCED: "0x5 1x60"}]},
    ("CacheFails", "stale", "warning", "30m"): {1: [{AGE: "0+60x60"}], 0: [{AGE: "70x60"}]},
    ("Slow", "decisions", "warning", "30m"): {1: [durations("0+5x60")], 0: [durations("0+10x60")]},
    ("Slow", "event-loop", "warning", "30m"): {
        1: [{metric("loop_longest_turn_seconds"): "0.7x60"}],
        0: [{metric("loop_longest_turn_seconds"): "0.1x60"}],
    },
    ("EventsDropped", "full", "info", "80m"): {1: [{DROPPED: "0+1x90"}], 0: [{DROPPED: "0x9 5x90"}]},
    # Certificates
    ("CertificateExpiring", "leaf", "warning", "2h"): {1: [expiry("leaf", 7)], 0: [expiry("leaf", 8)]},
    ("CertificateExpiring", "leaf", "critical", "2h"): {1: [expiry("leaf", 1.5)], 0: [expiry("leaf", 2.5)]},
    ("CertificateExpiring", "client-ca", "warning", "2h"): {
        1: [expiry("client-ca", 13.5)],
        0: [expiry("client-ca", 14.5)],
    },
    ("CertificateFails", "unusable", "warning", "30m"): {
        1: [{metric("certificate_unusable"): "1x60"}],
        0: [{metric("certificate_unusable"): "0x60"}],
    },
    ("CertificateFails", "clock-differs", "warning", "30m"): {
        1: [{metric("clock_ahead_seconds"): "-400x60"}],
        0: [{metric("clock_ahead_seconds"): "200x60"}],
    },
    ("CertificateFails", "client-ca-unusable", "warning", "30m"): {
        1: [{metric("client_ca_unusable"): "1x60"}],
        0: [{metric("client_ca_unusable"): "0x60"}],
    },
    ("CertificateFails", "ca-bundle-overwritten", "warning", "30m"): {
        1: [{metric("certificate_repairs_total"): "0+1x60"}],
        0: [{metric("certificate_repairs_total"): "0x19 1x60"}],
    },
    ("CertificateFails", "refused", "warning", "30m"): {1: [{REFUSED: "0+3x60"}], 0: [{CONFLICTS: "0+3x60"}]},
    ("CertificateFails", "reissued", "critical", "30m"): {1: [{RENEWED: "0+1x60"}], 0: [{RENEWED: "0x19 1x60"}]},
}


def promtool(folder: Path, *arguments: str) -> str:
    """Run Prometheus' own promtool in a folder, and return its complaint, empty without one."""
    command = [needs.find("promtool"), *arguments]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    return result.stdout + result.stderr if result.returncode else ""


def check_rules(folder: Path, rules: Object) -> str:
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    return promtool(folder, "check", "rules", "rules.yaml")


def write_tests(folder: Path, alert: str, tests: list[Object]) -> str:
    """Write tests of one alert, and the alert without the others, which would cost time. Return the file's name."""
    rules = [each for each in alert_rules(rendered()) if each["alert"] == f"KubevirtScheduler{alert}"]
    (folder / f"{alert}-rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": alert, "rules": rules}]}))
    content = {"rule_files": [f"{alert}-rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    (folder / f"{alert}.yaml").write_text(yaml.safe_dump(content))
    return f"{alert}.yaml"


def played(case: Case, count: int, series: Series) -> Object:
    """Return a test for promtool: so many alerts fire at a time of these series, all with the case's cause."""
    name, cause, severity, at = case
    firing = f'ALERTS{{alertstate="firing",alertname="KubevirtScheduler{name}",severity="{severity}"}}'
    label = "certificate" if name == "CertificateExpiring" else "cause"
    samples = [{"labels": f'{{{label}="{cause}"}}' if cause else "{}", "value": count}] if count else []
    return {
        "name": f"{name}, {cause}, {severity}, {count} fire: {series}",
        "interval": "1m",
        "input_series": [{"series": one, "values": values} for one, values in series.items()],
        "promql_expr_test": [
            {"expr": f"count by ({label}) ({firing})", "eval_time": at, "exp_samples": samples},
        ],
    }


@cache
def rendered(source: str = "client CA") -> list[Object]:
    return render(SOURCES[source] | {"prometheusRule": {"enabled": True}})


@pytest.mark.needs("promtool")
def test_each_alert_fires_only_on_its_series(tmp_path: Path) -> None:
    tests: dict[str, list[Object]] = {}
    for case, by_count in CASES.items():
        for count, all_series in by_count.items():
            tests.setdefault(case[0], []).extend(played(case, count, series) for series in all_series)
    files = [write_tests(tmp_path, name, of_alert) for name, of_alert in tests.items()]
    assert promtool(tmp_path, "test", "rules", *files) == ""
    wrong = write_tests(tmp_path, "Slow", [played(("Slow", "decisions", "warning", "30m"), 1, durations("0+10x60"))])
    assert "FAILED" in promtool(tmp_path, "test", "rules", wrong)


@pytest.mark.needs("promtool")
def test_promtool_parses_all_rules_and_queries_and_rejects_an_invalid_expression(tmp_path: Path) -> None:
    panels = json.loads((CHART / "dashboards" / "kubevirt-scheduler.json").read_text())["panels"]
    panels += [inner for panel in panels for inner in panel.get("panels", ())]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    recorded = [{"record": "panel", "expr": query.replace("$__rate_interval", "1m"), "labels": {"number": str(number)}}
                for number, query in enumerate(queries)]  # fmt: skip
    assert len(recorded) > 10
    for rules in [
        {"groups": [{"name": "dashboard", "rules": recorded}]},
        *(find_one(rendered(each), "PrometheusRule")["spec"] for each in SOURCES),
    ]:
        assert check_rules(tmp_path, rules) == ""
    broken = {"groups": [{"name": "broken", "rules": [{"alert": "Broken", "expr": "sum(rate(a[5m])"}]}]}
    assert "could not parse expression" in check_rules(tmp_path, broken)


def causes(alert: Object) -> set[str]:
    """Return the causes that an alert tells apart, as its expression names them; "" for an alert with one cause."""
    return set(re.findall(r'(?:"cause", |certificate=)"([a-z-]+)"', alert["expr"])) or {""}


def test_each_cause_of_each_alert_has_series_that_fire_it_and_series_that_do_not() -> None:
    found = {(alert["alert"].removeprefix("KubevirtScheduler"), cause, alert["labels"]["severity"])
             for alert in alert_rules(rendered()) for cause in causes(alert)}  # fmt: skip
    cases = {(name, cause, severity) for name, cause, severity, _ in CASES}
    from_metric = {("EventsDropped", "full", "info"), ("CertificateFails", "refused", "warning")}
    assert cases - from_metric == found - {("EventsDropped", "", "info")}
    assert all({0, 1} <= set(by_count) for by_count in CASES.values())


def test_each_alert_has_a_severity_a_summary_with_its_cause_and_a_link_to_its_heading_in_the_runbooks() -> None:
    page = "https://example.com/runbooks/"
    values = SOURCES["client CA"] | {"prometheusRule": {"enabled": True, "runbookUrl": page}}
    for alert, configured in zip(alert_rules(rendered()), alert_rules(render(values)), strict=True):
        assert alert["labels"]["severity"] in ("critical", "warning", "info")
        assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
        assert causes(alert) == {""} or re.search(r"\$labels[.](cause|certificate)\b", alert["annotations"]["summary"])
        anchor = alert["alert"].lower()
        assert alert["annotations"]["runbook_url"] == f"docs/runbooks/README.md#{anchor}"
        assert configured["annotations"]["runbook_url"] == f"{page}#{anchor}"


@pytest.mark.parametrize(
    ("threshold", "value", "alert", "condition"),
    [
        ("apart", 0.3, "VMsApart", r"\) > 0\.3$"),
        ("softened", 0.5, "Softened", r" > 0\.5 and .* >= 5"),
        ("slowSeconds", 0.05, "Slow", r"histogram_quantile.* > 0\.05, "),
        ("certificateDays", 30, "CertificateExpiring", r'certificate="leaf"}\) < 2592000$'),
    ],
)
def test_a_threshold_replaces_that_of_its_alert(threshold: str, value: float, alert: str, condition: str) -> None:
    values = {"prometheusRule": {"enabled": True, "thresholds": {threshold: value}}}
    changed, default = (
        [rule["expr"] for rule in alert_rules(render(each)) if rule["alert"] == f"KubevirtScheduler{alert}"]
        for each in (values, {"prometheusRule": {"enabled": True}})
    )
    assert [bool(re.search(condition, expr, re.MULTILINE)) for expr in changed].count(True) == 1
    assert not any(re.search(condition, expr, re.MULTILINE) for expr in default)


def test_labels_reach_each_alert_but_replace_no_severity_and_a_namespace_moves_only_the_object() -> None:
    own = {"alertLabels": {"team": "storage", "severity": "page"}, "namespace": "monitoring"}
    objects = render({"prometheusRule": {"enabled": True} | own})
    assert all(rule["labels"]["team"] == "storage" for rule in alert_rules(objects))
    assert {rule["labels"]["severity"] for rule in alert_rules(objects)} == {"critical", "warning", "info"}
    assert find_one(objects, "PrometheusRule")["metadata"]["namespace"] == "monitoring"
    default = alert_rules(render({"prometheusRule": {"enabled": True}}))
    assert [rule["expr"] for rule in alert_rules(objects)] == [rule["expr"] for rule in default]


def test_the_runbooks_have_a_heading_for_each_alert_and_list_its_severities_and_causes() -> None:
    page = (DOCS / "runbooks" / "README.md").read_text()
    headings = dict(re.findall(r"^### (Kubevirt\w+)\n(.*?)(?=^##)", page + "##", re.MULTILINE | re.DOTALL))
    rows = re.findall(r"^\| \[(\w+)\]\(#(\w+)\) \| ([a-z, ]+) \| (.*) \|$", page, re.MULTILINE)
    assert all(name.lower() == anchor for name, anchor, _, _ in rows)
    listed = {name: set(severities.split(", ")) for name, _, severities, _ in rows}
    found: dict[str, set[str]] = {}
    for alert in alert_rules(rendered()):
        found.setdefault(alert["alert"], set()).add(alert["labels"]["severity"])
    assert (listed, list(headings)) == (found, list(found))
    row_texts = {name: text for name, _, _, text in rows}
    for alert in alert_rules(rendered()):
        for cause in causes(alert) - {""}:
            assert all(f"`{cause}`" in texts[alert["alert"]] for texts in (headings, row_texts)), cause


def test_the_alert_the_dashboard_and_the_runbook_of_softened_starts_select_the_reasons_of_the_guard() -> None:
    (softened,) = (alert for alert in alert_rules(rendered()) if alert["alert"] == "KubevirtSchedulerSoftened")
    dashboard = (CHART / "dashboards" / "kubevirt-scheduler.json").read_text()
    runbook = (DOCS / "runbooks" / "README.md").read_text()
    of_vms = {reason for subject, _, reason, _ in possible_labels() if subject is Subject.VM}
    for text in softened["expr"], dashboard, runbook:
        patterns = re.findall(r'reason=~\\?"(?:CoScheduled\|)?(CacheStale\|[^"\\]+)', text)
        assert patterns
        for pattern in patterns:
            assert {reason for reason in of_vms if re.fullmatch(pattern, reason)} == set(GUARD_REASONS)
