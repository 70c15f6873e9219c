"""benchmarks/placement.py: the parts of a VM's start add up to its time."""

from __future__ import annotations

import sys

import pytest

from tests.support.paths import ROOT

# The benchmarks are scripts that import each other by name.
sys.path.insert(0, str(ROOT / "benchmarks"))

from breakdown import DECISION, RESPONSE, TOTAL, Scheduling, Start
from traces import Span, Trace
from vm_starts import Timing


def trace() -> Trace:
    """Return the spans of a creation that arrived at 1,000,002 ms."""
    return {
        "POST /api/v1/namespaces/{:namespace}/pods": Span(1_000_002, 1_000_014, {}),
        "Create": Span(1_000_003, 1_000_013, {"About to store object in database": 1_000_004}),
        "Create etcd3": Span(1_000_010, 1_000_012, {}),
        "Call mutating webhook": Span(1_000_005, 1_000_009, {}),
        "HTTP POST": Span(1_000_006, 1_000_008, {}),
    }


def start(decision: float | None) -> Start:
    """Return a start that took 30 ms until the pod was bound, and 15 ms until the client had the response."""
    return Start("id", Timing(created=0.015, bound=0.030, sent=1000.0), Scheduling(10, 3, 5), decision)


@pytest.mark.parametrize("decision", [0.5, None], ids=["ours", "in Go"])
def test_the_parts_of_a_start_with_a_webhook_add_up_to_its_time(decision: float | None) -> None:
    parts = start(decision).parts(trace())
    assert parts[TOTAL] == 30
    assert sum(value for name, value in parts.items() if name not in (TOTAL, RESPONSE, DECISION)) == 30
    assert parts["webhook: the call, over TLS"] == 2
    assert parts["API server: other admission"] == 2
    assert parts["watches: to the scheduler and the client"] == 8
    assert parts.get(DECISION) == decision
    assert parts[RESPONSE] == 3
