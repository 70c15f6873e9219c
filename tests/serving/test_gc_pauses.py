"""The longest pause of the garbage collector is a metric, and each scrape starts a new interval."""

import gc

import pytest

from tests.support.fake_clock import FakeClock
from tests.support.server_process import run_server, until
from webhook.serving.telemetry.collectors import GcPauses
from webhook.serving.telemetry.metrics import Metrics

METRIC = "kubevirt_scheduler_gc_longest_pause_seconds"


def longest(pauses):
    [family] = pauses.metrics()
    return family.samples[0].value


@pytest.fixture
def pauses():
    """Pauses by a clock that advances 0.25 s with each reading, so each collection takes that long."""
    pauses = GcPauses(FakeClock(step=0.25))
    gc.disable()  # an automatic collection would count, too
    pauses.start()
    yield pauses
    gc.callbacks.remove(pauses._record)
    gc.enable()


def test_the_longest_pause_is_reported(pauses):
    for seconds in (1.0, 3.0, 2.0):
        pauses._clock.step = seconds
        gc.collect()
    assert longest(pauses) == 3.0


def test_registering_the_metric_does_not_end_an_interval(pauses):
    gc.collect()
    metrics = Metrics()
    metrics.add(pauses.metrics)
    assert f"{METRIC} 0.25" in metrics.exposition().decode()
    assert f"{METRIC} 0.0" in metrics.exposition().decode()


def test_the_server_exports_the_metric(tmp_path):
    with run_server(tmp_path) as server:
        until(lambda: f"\n{METRIC} " in server.probe("/metrics")[1])
