"""Prometheus metrics. Every label value that is known in advance is exported from the start, with value 0."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Info, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from certs.cluster import Cause
from certs.renewal import Step
from certs.rotate import CertificateController
from certs.serving import ServingCertificate
from webhook import __version__
from webhook.placement.decision import Decision, Subject
from webhook.placement.release import RELEASE_REASONS
from webhook.placement.settings import Action
from webhook.serving.decision_metrics import DecisionMetrics
from webhook.serving.fleet_metrics import FleetCollector
from webhook.serving.log_stream import LogStream

if TYPE_CHECKING:  # avoids the slow import of the Kubernetes client when `serve` reads a snapshot
    from webhook.cluster.live_backend import LiveBackend

PREFIX = "kubevirt_scheduler_"
RELIST_CAUSES = ("start", "expired", "forbidden", "missing", "error")
STEPS_NOT_COUNTED = (Step.NOTHING, Step.PUBLISH, Step.HURRY, Step.REPLACE)
CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST

CODES = (200, 400, 404, 405, 408, 413, 415, 500, 503)


class Metrics:
    """The metrics of this process, in their own registry."""

    def __init__(self, action: Action = Action.INJECT) -> None:
        # The `_created` series would double the number of series, and nothing reads them.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # the function has no annotations
        self._registry = CollectorRegistry()
        self._decisions = DecisionMetrics(self._registry, action)
        self._responses = Counter(
            "kubevirt_scheduler_responses_total",
            "Answers of the TLS port by HTTP status.",
            ["code"],
            registry=self._registry,
        )
        self.in_flight = Gauge(
            "kubevirt_scheduler_requests_in_flight", "Reviews that are being answered.", registry=self._registry
        )
        Info("kubevirt_scheduler_build", "What runs here.", registry=self._registry).info(
            {"version": __version__, "python": platform.python_version()}
        )
        ProcessCollector(registry=self._registry)
        # Export known label values from the start. A dict lookup is also faster than `labels()`.
        self._by_code = {code: self._responses.labels(code) for code in CODES}

    def count_decision(self, decision: Decision, subject: Subject, seconds: float, *, dry_run: bool = False) -> None:
        """Count a decision and its duration in seconds."""
        self._decisions.count(decision, subject, seconds, dry_run=dry_run)

    def count_response(self, code: int) -> None:
        """Count a response by its HTTP status."""
        (self._by_code.get(code) or self._responses.labels(code)).inc()

    def add_cluster(self, backend: LiveBackend) -> None:
        """Add the metrics of caches, live reads and events, read at each scrape."""
        self._registry.register(_ClusterCollector(backend))
        self._registry.register(FleetCollector(backend.fleet.counts))

    def add_loop(
        self, connections: Callable[[], int], dropped: Mapping[str, int], take_longest_turn: Callable[[], float]
    ) -> None:
        """Add the connection metrics of the TLS port, read at each scrape."""
        self._registry.register(_LoopCollector(connections, dropped, take_longest_turn))

    def add_log_stream(self, log_stream: LogStream) -> None:
        """Add the number of dropped log lines, read at each scrape."""
        self._registry.register(_LogCollector(log_stream))

    def add_certificates(self, certificate: ServingCertificate, controller: CertificateController) -> None:
        """Add the certificate metrics, read at each scrape."""
        self._registry.register(_CertificateCollector(certificate, controller))

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return prometheus_client.generate_latest(self._registry)


class _LoopCollector(Collector):
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
        text = "Connections that are open on the TLS port."
        yield GaugeMetricFamily(f"{PREFIX}connections", text, value=self._connections())
        text = "Connections that were ended by their peer's fault, or to make room, by cause."
        yield _counter("connections_dropped", text, "cause", dict(self._dropped))
        text = "The longest turn of the loop since the last scrape: for so long every other connection waited."
        yield GaugeMetricFamily(f"{PREFIX}loop_longest_turn_seconds", text, value=self._take_longest_turn())


class _LogCollector(Collector):
    """Exports the counter of the log stream."""

    def __init__(self, log_stream: LogStream) -> None:
        self._log_stream = log_stream

    def collect(self) -> Iterator[Metric]:
        """Read the counter."""
        text = "Lines of the log that nobody took."
        yield CounterMetricFamily(f"{PREFIX}log_lines_dropped", text, value=self._log_stream.dropped)


class _CertificateCollector(Collector):
    """Exports the state of the serving certificate and the counters of its controller."""

    def __init__(self, certificate: ServingCertificate, controller: CertificateController) -> None:
        self._certificate, self._controller = certificate, controller

    def collect(self) -> Iterator[Metric]:
        """Read the current values."""
        now = datetime.now(UTC)
        left = {which: (end - now).total_seconds() for which, end in self._certificate.expiry_times().items()}
        yield _gauge("certificate_expiry_seconds", "Until the end of what is served.", left, "certificate")
        text = "Whether newer files can't be served; /readyz?verbose says why."
        yield GaugeMetricFamily(f"{PREFIX}certificate_unusable", text, value=bool(self._certificate.problem))
        steps: dict[str, float] = {step: self._controller.steps[step] for step in Step if step not in STEPS_NOT_COUNTED}
        yield _counter("certificate_steps", "Renewals, and the steps of a rotation.", "step", steps)
        failures: dict[str, float] = {cause: self._controller.failures[cause] for cause in Cause}
        yield _counter("certificate_failures", "Passes that failed, by cause.", "cause", failures)
        text = "How often a caBundle was not as it should be."
        yield CounterMetricFamily(f"{PREFIX}certificate_repairs", text, value=self._controller.repairs)


class _ClusterCollector(Collector):
    """Exports the state and counters of the caches, live reads and events."""

    def __init__(self, backend: LiveBackend) -> None:
        self._backend = backend

    def collect(self) -> Iterator[Metric]:
        """Read the current values."""
        caches = self._backend.caches()
        healths = {reflector.kind.plural: reflector.health for reflector in self._backend.live.reflectors}
        yield _gauge("cache_objects", "Objects in each cache.", {cache.resource: cache.objects for cache in caches})
        ages = {cache.resource: cache.age for cache in caches if cache.age is not None}
        yield _gauge("cache_age_seconds", "Since a cache last heard of the cluster, bookmarks included.", ages)
        yield _gauge("cache_synced", "Whether a cache was listed.", {cache.resource: cache.synced for cache in caches})
        forbidden = {resource: health.code == 403 for resource, health in healths.items()}
        yield _gauge("cache_forbidden", "Whether a right is missing; /readyz says which.", forbidden)
        relists = CounterMetricFamily(
            f"{PREFIX}cache_relists", "Lists that were begun, by cause.", labels=["resource", "cause"]
        )
        for resource, health in healths.items():
            for cause in RELIST_CAUSES:
                relists.add_metric([resource, cause], health.relists[cause])
        yield relists
        errors = {resource: health.watch_errors for resource, health in healths.items()}
        yield _counter("cache_watch_errors", "Watches that broke off.", "resource", errors)
        skipped = {resource: health.skipped for resource, health in healths.items()}
        yield _counter("cache_skipped_objects", "Objects that could not be read.", "resource", skipped)
        reads = self._backend.live.reader.results
        yield _counter("live_reads", "Reads of what the caches did not have, by result.", "result", dict(reads))
        dropped = self._backend.events.dropped
        yield _counter("events_dropped", "Events about VMIs that were not written.", "cause", dict(dropped))
        releaser = self._backend.releaser
        pending: dict[str, float] = {reason: releaser.pending[reason] for reason in RELEASE_REASONS}
        text = "Pods that are pinned, can't be scheduled and were not released, by reason; reported by the leader."
        yield _gauge("pending_pins", text, pending, "reason")
        released: dict[str, float] = {reason: releaser.released[reason] for reason in RELEASE_REASONS}
        yield _counter("released", "Pods that were deleted because their pin could not hold.", "reason", released)
        text = "Whether this replica releases pins."
        yield GaugeMetricFamily(f"{PREFIX}release_leader", text, value=self._backend.leads())


def _gauge(name: str, text: str, values: Mapping[str, float], label: str = "resource") -> GaugeMetricFamily:
    family = GaugeMetricFamily(PREFIX + name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], float(value))
    return family


def _counter(name: str, text: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(PREFIX + name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
