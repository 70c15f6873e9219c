"""Collectors that read the state of the server at each scrape: its loop, its log and its certificates."""

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from certs.cluster import Cause
from certs.renewal import Step
from certs.rotate import CertificateController
from certs.serving import ServingCertificate
from webhook.cluster.fleet_counts import Counts
from webhook.placement.fleet import State
from webhook.serving.telemetry.logs import LogLimit, LogStream


class GcPauses:
    """Records the longest collection. While one runs, no thread runs, so every request waits."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._started, self._longest = clock, 0.0, 0.0

    def start(self) -> None:
        """Record collections from now on."""
        gc.callbacks.append(self._record)

    def take_longest(self) -> float:
        """Return the seconds of the longest collection since the last call. Any thread may call it."""
        longest, self._longest = self._longest, 0.0
        return longest

    def _record(self, phase: str, _info: dict[str, Any]) -> None:
        if phase == "start":
            self._started = self._clock()
        else:
            self._longest = max(self._longest, self._clock() - self._started)


RUNNING_STATES = (State.TOGETHER, State.APART, State.UNSERVED, State.NOT_CONCERNED)


class FleetCollector(Collector):
    """Exports the VMs by state and opt-in, and by node and state. Exports nothing before the caches are synced."""

    def __init__(self, counts: Callable[[], Counts | None]) -> None:
        self._counts = counts

    def describe(self) -> Iterator[Metric]:
        """Describe nothing, so that the registration doesn't count the fleet."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Count the fleet, or return a recent count."""
        counts = self._counts()
        if counts is None:
            return
        text = "VMs by state. Each replica exports its own view: aggregate with max, not with sum."
        vms = GaugeMetricFamily("kubevirt_scheduler_vms", text, labels=["state", "opted_in"])
        for state in State:
            for opted_in in (True, False):
                vms.add_metric([state, str(opted_in).lower()], counts.vms[state, opted_in])
        yield vms
        text = "VMs on each node by state. Each replica exports its own view: aggregate with max, not with sum."
        by_node = GaugeMetricFamily("kubevirt_scheduler_node_vms", text, labels=["node", "state"])
        for node in sorted({node for node, _ in counts.by_node}):
            for state in RUNNING_STATES:
                by_node.add_metric([node, state], counts.by_node[node, state])
        yield by_node


PREFIX = "kubevirt_scheduler_"
STEPS_NOT_COUNTED = (Step.NOTHING, Step.PUBLISH, Step.DROP_EARLY, Step.REPLACE)


def gauge(name: str, text: str, values: Mapping[str, float], label: str = "resource") -> GaugeMetricFamily:
    """Return a gauge with one label."""
    family = GaugeMetricFamily(PREFIX + name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], float(value))
    return family


def counter(name: str, text: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
    """Return a counter with one label."""
    family = CounterMetricFamily(PREFIX + name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


class LoopCollector(Collector):
    """Exports the counters of the event loop."""

    def __init__(
        self, connections: Callable[[], int], dropped: Mapping[str, int], take_longest_turn: Callable[[], float]
    ) -> None:
        self._connections, self._dropped, self._take_longest_turn = connections, dropped, take_longest_turn

    def describe(self) -> Iterator[Metric]:
        """Describe nothing, because `collect` starts a new interval for the longest turn."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Read the current values."""
        text = "Open connections on the TLS port."
        yield GaugeMetricFamily(f"{PREFIX}connections", text, value=self._connections())
        text = "Connections that the server dropped because of a failing peer or to free a slot, by cause."
        yield counter("connections_dropped", text, "cause", dict(self._dropped))
        text = "Longest turn of the event loop since the last scrape. All other connections waited for this time."
        yield GaugeMetricFamily(f"{PREFIX}loop_longest_turn_seconds", text, value=self._take_longest_turn())


class GcCollector(Collector):
    """Exports the longest pause of the garbage collector."""

    def __init__(self, pauses: GcPauses) -> None:
        self._pauses = pauses

    def describe(self) -> Iterator[Metric]:
        """Describe nothing, because `collect` starts a new interval for the longest pause."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Read the current value."""
        text = "Longest garbage collection since the last scrape. All threads paused for this time."
        yield GaugeMetricFamily(f"{PREFIX}gc_longest_pause_seconds", text, value=self._pauses.take_longest())


class LogCollector(Collector):
    """Exports the counters of lost log lines."""

    def __init__(self, log_stream: LogStream, limit: LogLimit) -> None:
        self._log_stream, self._limit = log_stream, limit

    def collect(self) -> Iterator[Metric]:
        """Read the counters."""
        text = "Log lines dropped because standard error was blocked."
        yield CounterMetricFamily(f"{PREFIX}log_lines_dropped", text, value=self._log_stream.dropped)
        text = "Log lines about failed requests dropped by the rate limit."
        yield CounterMetricFamily(f"{PREFIX}log_lines_suppressed", text, value=self._limit.suppressed)


class CertificateCollector(Collector):
    """Exports the state of the serving certificate and the counters of its controller."""

    def __init__(self, certificate: ServingCertificate, controller: CertificateController) -> None:
        self._certificate, self._controller = certificate, controller

    def collect(self) -> Iterator[Metric]:
        """Read the current values."""
        now = datetime.now(UTC)
        left = {which: (end - now).total_seconds() for which, end in self._certificate.expiry_times().items()}
        yield gauge("certificate_expiry_seconds", "Seconds until a served certificate expires.", left, "certificate")
        text = "Whether newer certificate files can't be served. /readyz?verbose gives the cause."
        yield GaugeMetricFamily(f"{PREFIX}certificate_unusable", text, value=bool(self._certificate.problem))
        if client_ca := self._certificate.client_ca:
            text = "Whether a newer client CA can't be used. /readyz?verbose gives the cause."
            yield GaugeMetricFamily(f"{PREFIX}client_ca_unusable", text, value=bool(client_ca.problem))
        steps: dict[str, float] = {step: self._controller.steps[step] for step in Step if step not in STEPS_NOT_COUNTED}
        yield counter("certificate_steps", "Renewals and steps of a CA rotation, by step.", "step", steps)
        failures: dict[str, float] = {cause: self._controller.failures[cause] for cause in Cause}
        yield counter("certificate_failures", "Failed certificate checks, by cause.", "cause", failures)
        text = "Repairs of a caBundle that did not match the CA."
        yield CounterMetricFamily(f"{PREFIX}certificate_repairs", text, value=self._controller.repairs)
