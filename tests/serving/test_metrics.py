"""What Prometheus is told."""

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
    """Each series with its value: (name, (labels, in, order)) → value."""
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {(s.name, tuple(sorted(s.labels.values()))): s.value for family in families for s in family.samples}


def values(metrics, name):
    return {labels: value for (sample, labels), value in samples(metrics).items() if sample == name}


def decision(outcome, reason):
    return Decision(outcome, reason, "", Mode.REQUIRED)


def test_every_decision_that_can_be_made_stands_there_from_the_start_at_0():
    pairs = {(str(r), str(o)) for r in Reason for o in possible_outcomes(r)}
    assert values(Metrics(), "kubevirt_scheduler_decisions_total") == dict.fromkeys(
        [tuple(sorted(pair)) for pair in pairs], 0.0
    )


def test_every_status_that_we_answer_with_stands_there_from_the_start_at_0():
    codes = ["200", "400", "404", "405", "408", "413", "415", "500", "503"]
    assert values(Metrics(), "kubevirt_scheduler_responses_total") == {(code,): 0.0 for code in codes}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.parent.name)
def test_what_was_decided_in_a_golden_case_is_known_in_advance(case):
    decided = yaml.safe_load(case.read_text())["decision"]
    assert Outcome(decided["outcome"]) in possible_outcomes(Reason(decided["reason"]))


def test_what_only_a_claim_is_told_is_no_decision():
    assert [r for r in Reason if not possible_outcomes(r)] == [
        r for r in Reason if r in CLAIM_REASONS - {Reason.NO_SHARE_MANAGER}
    ]


def test_a_decision_is_counted_with_its_time():
    metrics = Metrics()
    metrics.decided(decision(Outcome.PINNED, Reason.CO_SCHEDULED), 0.0003)
    found = samples(metrics)
    assert found["kubevirt_scheduler_decisions_total", ("CoScheduled", "pinned")] == 1
    assert found["kubevirt_scheduler_decision_duration_seconds_sum", ()] == pytest.approx(0.0003)
    assert found["kubevirt_scheduler_decision_duration_seconds_bucket", ("0.0002",)] == 0
    assert found["kubevirt_scheduler_decision_duration_seconds_bucket", ("0.0005",)] == 1


def test_an_answer_is_counted_by_its_status():
    metrics = Metrics()
    metrics.answered(200)
    metrics.answered(418)
    assert values(metrics, "kubevirt_scheduler_responses_total")["200",] == 1
    assert values(metrics, "kubevirt_scheduler_responses_total")["418",] == 1


def test_the_buckets_resolve_a_fifth_of_a_millisecond_to_a_second():
    assert {0.0002, 1.0} <= set(BUCKETS)
    assert all(upper / lower <= 2.5 for lower, upper in pairwise(BUCKETS))


def test_the_build_is_told():
    build = values(Metrics(), "kubevirt_scheduler_build_info")
    assert build == {tuple(sorted([__version__, platform.python_version()])): 1.0}


def test_each_process_counts_for_itself():
    counted, other = Metrics(), Metrics()
    counted.answered(200)
    assert values(other, "kubevirt_scheduler_responses_total")["200",] == 0


def test_no_series_tells_when_it_was_made():
    assert not [name for name, _ in samples(Metrics()) if name.endswith("_created")]
