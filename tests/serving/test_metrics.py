"""The Prometheus metrics of one process."""

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support import paths
from tests.support.fake_clock import FakeClock
from webhook.placement.reasons import Decision, Mode, Outcome, Reason, Subject
from webhook.placement.settings import Action
from webhook.serving.telemetry.metrics import Metrics, possible_labels, possible_outcomes

CASES = sorted(paths.CASES.glob("*/expected.yaml"))


def samples(metrics):
    """The value of each series: (name, sorted label values) → value."""
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {(s.name, tuple(sorted(s.labels.values()))): s.value for family in families for s in family.samples}


def values(metrics, name):
    return {labels: value for (sample, labels), value in samples(metrics).items() if sample == name}


def decision(outcome, reason, mode=Mode.REQUIRED):
    return Decision(outcome, reason, "", mode)


@pytest.mark.parametrize("action", Action)
def test_every_possible_decision_starts_at_0(action):
    possible = [tuple(sorted(map(str, (*labels, action)))) for labels in possible_labels()]
    assert values(Metrics(action), "kubevirt_scheduler_decisions_total") == dict.fromkeys(possible, 0.0)


def test_the_possible_labels_cover_each_reason_with_an_outcome_and_pin_no_share_manager():
    possible = list(possible_labels())
    assert {reason for _, _, reason, _ in possible} == {reason for reason in Reason if possible_outcomes(reason)}
    assert {(subject, mode) for subject, outcome, _, mode in possible if outcome is Outcome.PINNED} == {
        (Subject.VM, Mode.REQUIRED)
    }
    assert len(possible) == len(set(possible))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.parent.name)
def test_the_possible_labels_cover_each_golden_case(case):
    expected = yaml.safe_load(case.read_text())["decision"]
    found = Outcome(expected["outcome"]), Reason(expected["reason"]), Mode(expected["mode"])
    assert found in {(outcome, reason, mode) for _, outcome, reason, mode in possible_labels()}


def test_a_decision_is_counted_with_its_duration():
    metrics = Metrics()
    metrics.count_decision(decision(Outcome.PINNED, Reason.CO_SCHEDULED), Subject.VM, 0.0003)
    found = samples(metrics)
    labels = "CoScheduled", "inject", "pinned", "required", "vm"
    assert found["kubevirt_scheduler_decisions_total", labels] == 1
    assert found["kubevirt_scheduler_decision_duration_seconds_sum", ()] == pytest.approx(0.0003)
    assert found["kubevirt_scheduler_decision_duration_seconds_bucket", ("0.0002",)] == 0
    assert found["kubevirt_scheduler_decision_duration_seconds_bucket", ("0.0005",)] == 1
    metrics.count_decision(decision(Outcome.PINNED, Reason.CO_SCHEDULED), Subject.VM, 2.0, dry_run=True)
    found = samples(metrics)
    assert found["kubevirt_scheduler_decisions_total", labels] == 1
    assert found["kubevirt_scheduler_decision_duration_seconds_bucket", ("1.0",)] == 1
    assert found["kubevirt_scheduler_decision_duration_seconds_count", ()] == 2


def test_the_page_is_rendered_at_most_once_a_second():
    clock = FakeClock()
    metrics = Metrics(clock=clock)
    before = metrics.page()
    metrics.count_response(503)
    clock.now += 0.9
    assert metrics.page() is before
    clock.now += 0.1
    assert b'responses_total{code="503"} 1.0' in metrics.page()
