"""benchmarks/placement.py: the parts of a VM's start add up to its time, and come from traces, metrics and the log."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

# The benchmarks are scripts that import each other by name.
sys.path.insert(0, str(ROOT / "benchmarks"))

from breakdown import DECISION, RESPONSE, TOTAL, Parts, Scheduling, Start, last_decision, typical
from traces import Span, Trace, read_spans
from vm_starts import Timing

SECONDS = 240  # for the smallest run of the benchmark: a control plane starts, and Go builds a small program
METRICS = """
# HELP scheduler_scheduling_algorithm_duration_seconds [STABLE] Scheduling algorithm latency in seconds
scheduler_framework_extension_point_duration_seconds_sum{extension_point="Bind",profile="default-scheduler"} 0.5
scheduler_framework_extension_point_duration_seconds_sum{extension_point="PreBind",profile="default-scheduler"} 7
scheduler_pod_scheduling_sli_duration_seconds_sum{attempts="1"} 0.75
scheduler_pod_scheduling_sli_duration_seconds_sum{attempts="2"} 0.25
scheduler_scheduling_algorithm_duration_seconds_sum 0.125
"""


def trace(*, called: bool) -> Trace:
    """Return the spans of a creation that arrived at 1,000,002 ms."""
    found = {
        "POST /api/v1/namespaces/{:namespace}/pods": Span(1_000_002, 1_000_014, {}),
        "Create": Span(1_000_003, 1_000_013, {"About to store object in database": 1_000_004}),
        "Create etcd3": Span(1_000_010, 1_000_012, {}),
    }
    if called:
        found["Call mutating webhook"] = Span(1_000_005, 1_000_009, {})
        found["HTTP POST"] = Span(1_000_006, 1_000_008, {})
    return found


def start(decision: float | None) -> Start:
    """Return a start that took 30 ms until the pod was bound, and 15 ms until the client had the response."""
    return Start("id", Timing(created=0.015, bound=0.030, sent=1000.0), Scheduling(10, 3, 5), decision)


@pytest.mark.parametrize("decision", [0.5, None], ids=["ours", "in Go"])
def test_the_parts_of_a_start_with_a_webhook_add_up_to_its_time(decision: float | None) -> None:
    parts = start(decision).parts(trace(called=True))
    assert parts[TOTAL] == 30
    assert sum(value for name, value in parts.items() if name not in (TOTAL, RESPONSE, DECISION)) == 30
    assert parts["webhook: the call, over TLS"] == 2
    assert parts["API server: other admission"] == 2
    assert parts["watches: to the scheduler and the client"] == 8
    assert parts.get(DECISION) == decision
    assert parts[RESPONSE] == 3


def test_a_start_without_a_webhook_has_no_part_of_a_call() -> None:
    parts = start(None).parts(trace(called=False))
    assert parts[TOTAL] == 30
    assert not [name for name in parts if name.startswith("webhook")]
    assert parts["API server: other admission"] == 6


def test_the_typical_start_is_the_mean_of_the_middle_half() -> None:
    starts: list[Parts] = [{"part": total / 2, TOTAL: total} for total in (1000.0, 10.0, 20.0, 1.0)]
    assert typical(starts) == {"part": 7.5, TOTAL: 15.0}


def test_the_times_of_the_scheduler_are_the_sums_of_its_histograms() -> None:
    assert Scheduling.read(METRICS) == Scheduling(queued_to_bound=1000, algorithm=125, bind=500)
    assert Scheduling(9, 4, 3) - Scheduling(5, 3, 3) == Scheduling(4, 1, 0)


def test_the_last_decision_is_found_at_the_end_of_a_long_log(tmp_path: Path) -> None:
    decided = [json.dumps({"event": "decided", "ms": number}) for number in range(2000)]
    log = tmp_path / "webhook.log"
    log.write_text("\n".join([*decided, json.dumps({"event": "event write failed"})]))
    assert last_decision(log) == 1999


def test_spans_are_grouped_by_trace_in_milliseconds(tmp_path: Path) -> None:
    span = {"trace": "one", "name": "Create", "start": 5_000_000, "end": 7_500_000, "events": {"read": 6_000_000}}
    log = tmp_path / "traces.log"
    log.write_text("\n".join([json.dumps(span), json.dumps(span | {"trace": "two"}), '{"trace": "tr']))
    found, expected = read_spans(log), {"Create": Span(5.0, 7.5, {"read": 6.0})}
    assert found == {"one": expected, "two": expected}
    assert found["one"]["Create"].duration == 2.5


@pytest.mark.controlplane
def test_the_benchmark_shows_where_the_milliseconds_of_a_start_go() -> None:
    command = [sys.executable, str(ROOT / "benchmarks/placement.py"), "--nodes=2", "--rounds=2"]
    printed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert printed.returncode == 0, printed.stderr
    rows = {line[2:50].strip(): line[50:].split() for line in printed.stdout.partition("2 nodes:")[2].splitlines()}
    # Every part was found, so the traces, the log and the metrics have the expected names.
    for name in ("API server: encode the review", "webhook: the call, over TLS", "its decision, by its log"):
        assert float(rows[name][0]) > 0
    for name in ("API server: etcd", "scheduler: algorithm", "scheduler: bind, a request", TOTAL):
        assert all(float(value) > 0 for value in rows[name][:2])
