"""A flood of failed requests writes a bounded number of log lines, and the dropped ones are counted."""

import logging

import pytest

from tests.support.fake_clock import FakeClock
from tests.support.server_process import JSON, run_server
from webhook.serving.telemetry.logs import LIMITED_EVENTS, LINES_PER_SECOND, MAX_BURST, LogLimit


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def limit(clock):
    return LogLimit(clock)


def passed(limit, times, event="error response", **fields):
    """The records that pass the limit, as dicts."""
    records = (logging.makeLogRecord({"msg": event} | fields) for _ in range(times))
    return [vars(record) for record in records if limit.filter(record)]


@pytest.mark.parametrize("event", LIMITED_EVENTS)
def test_a_flood_of_lines_is_cut_to_a_burst_then_a_rate(limit, clock, event):
    assert len(passed(limit, 1000, event)) == MAX_BURST
    clock.now += 1
    assert len(passed(limit, 1000, event)) == LINES_PER_SECOND


def test_the_next_line_has_the_number_of_dropped_lines(limit, clock):
    assert not any("suppressed" in line for line in passed(limit, 1000, code=400))
    clock.now += 1
    first, second, *_ = passed(limit, 1000, code=400)
    assert first["suppressed"] == 1000 - MAX_BURST
    assert "suppressed" not in second
    assert limit.suppressed == 2000 - MAX_BURST - LINES_PER_SECOND


def test_a_flood_of_one_status_does_not_hide_another(limit):
    passed(limit, 1000, code=400)
    assert len(passed(limit, 1, code=503)) == 1


def test_decisions_are_never_dropped(limit):
    assert len(passed(limit, 1000, "decided")) == 1000
    assert limit.suppressed == 0


def test_a_server_that_rejects_a_flood_logs_some_lines_and_counts_the_others(tmp_path):
    with run_server(tmp_path) as server:
        connection = server.connect()
        for _ in range(20 * MAX_BURST):
            connection.request("POST", "/mutate", b"not a review", JSON)
            response = connection.getresponse()
            assert (response.status, bool(response.read())) == (400, True)
        connection.close()
        lines = [line for line in server.log_lines if line["event"] == "error response"]
        [suppressed] = [
            float(line.rpartition(" ")[2])
            for line in server.probe("/metrics")[1].splitlines()
            if line.startswith("kubevirt_scheduler_log_lines_suppressed_total ")
        ]
    assert len(lines) + suppressed == 20 * MAX_BURST
    assert MAX_BURST <= len(lines) < 10 * MAX_BURST
    assert sum(line.get("suppressed", 0) for line in lines) <= suppressed
