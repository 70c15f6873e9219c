"""The Prometheus metrics of one process."""

import platform
from itertools import pairwise

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support import paths
from webhook import __version__
from webhook.placement.decision import CLAIM_REASONS, Decision, Mode, Outcome, Reason
from webhook.serving.metrics import BUCKETS, Metrics, possible_outcomes

CASES = sorted(paths.CASES.glob("*/expected.yaml"))


def samples(metrics):
    """The value of each series: (name, sorted label values) → value."""
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {(s.name, tuple(sorted(s.labels.values()))): s.value for family in families for s in family.samples}


def values(metrics, name):
    return {labels: value for (sample, labels), value in samples(metrics).items() if sample == name}


def decision(outcome, reason):
    return Decision(outcome, reason, "", Mode.REQUIRED)


def test_every_possible_decision_starts_at_0():
    pairs = {(str(r), str(o)) for r in Reason for o in possible_outcomes(r)}
    assert values(Metrics(), "kubevirt_scheduler_decisions_total") == dict.fromkeys(
        [tuple(sorted(pair)) for pair in pairs], 0.0
    )


def test_every_response_status_starts_at_0():
    codes = ["200", "400", "404", "405", "408", "413", "415", "500", "503"]
    assert values(Metrics(), "kubevirt_scheduler_responses_total") == {(code,): 0.0 for code in codes}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.parent.name)
def test_possible_outcomes_covers_each_golden_case(case):
    expected = yaml.safe_load(case.read_text())["decision"]
    assert Outcome(expected["outcome"]) in possible_outcomes(Reason(expected["reason"]))


def test_reasons_of_claims_releases_and_running_vms_have_no_outcome():
    of_claims = CLAIM_REASONS - {Reason.NO_SHARE_MANAGER, Reason.SHARE_MANAGER_STARTING}
    of_releases = {Reason.SHARE_MANAGER_MOVED, Reason.PENDING_TOO_LONG}
    of_running_vms = {Reason.NOT_REVIEWED, Reason.SCHEDULED_ELSEWHERE}
    assert {r for r in Reason if not possible_outcomes(r)} == of_claims | of_releases | of_running_vms


def test_a_decision_is_counted_with_its_duration():
    metrics = Metrics()
    metrics.count_decision(decision(Outcome.PINNED, Reason.CO_SCHEDULED), 0.0003)
    found = samples(metrics)
    assert found["kubevirt_scheduler_decisions_total", ("CoScheduled", "pinned")] == 1
    assert found["kubevirt_scheduler_decision_duration_seconds_sum", ()] == pytest.approx(0.0003)
    assert found["kubevirt_scheduler_decision_duration_seconds_bucket", ("0.0002",)] == 0
    assert found["kubevirt_scheduler_decision_duration_seconds_bucket", ("0.0005",)] == 1


def test_a_response_is_counted_by_status():
    metrics = Metrics()
    metrics.count_response(200)
    metrics.count_response(418)
    assert values(metrics, "kubevirt_scheduler_responses_total")["200",] == 1
    assert values(metrics, "kubevirt_scheduler_responses_total")["418",] == 1


def test_the_buckets_cover_0_2_ms_to_1_s_in_steps_of_at_most_2_5():
    assert {0.0002, 1.0} <= set(BUCKETS)
    assert all(upper / lower <= 2.5 for lower, upper in pairwise(BUCKETS))


def test_the_build_info_reports_both_versions():
    build = values(Metrics(), "kubevirt_scheduler_build_info")
    assert build == {tuple(sorted([__version__, platform.python_version()])): 1.0}


def test_each_metrics_instance_counts_separately():
    counted, other = Metrics(), Metrics()
    counted.count_response(200)
    assert values(other, "kubevirt_scheduler_responses_total")["200",] == 0


def test_no_created_series_is_exported():
    assert not [name for name, _ in samples(Metrics()) if name.endswith("_created")]
