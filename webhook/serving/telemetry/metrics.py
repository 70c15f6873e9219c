"""Prometheus metrics. Every label value that is known in advance is exported from the start, with value 0."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Info, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from certs.rotate import CertificateController
from certs.serving import ServingCertificate
from webhook import __version__
from webhook.placement.decision import Decision, Subject
from webhook.placement.release import RELEASE_REASONS
from webhook.placement.settings import Action
from webhook.serving.telemetry.collectors import (
    PREFIX,
    CertificateCollector,
    FleetCollector,
    GcCollector,
    GcPauses,
    LogCollector,
    LoopCollector,
    counter,
    gauge,
)
from webhook.serving.telemetry.decision_metrics import DecisionMetrics
from webhook.serving.telemetry.logs import LogLimit, LogStream

if TYPE_CHECKING:  # avoids the slow import of the Kubernetes client when `serve` reads a snapshot
    from webhook.cluster.live_backend import LiveBackend

RELIST_CAUSES = ("start", "expired", "forbidden", "missing", "error")
CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST

CODES = (200, 400, 404, 405, 408, 413, 415, 500, 503)


class Metrics:
    """The metrics of this process, in their own registry."""

    def __init__(self, action: Action = Action.INJECT, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._page, self._rendered_at = clock, b"", float("-inf")
        # The `_created` series would double the number of series, and nothing reads them.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # the function has no annotations
        self._registry = CollectorRegistry()
        self._decisions = DecisionMetrics(self._registry, action)
        self._responses = Counter(
            "kubevirt_scheduler_responses_total",
            "Responses of the TLS port, by HTTP status.",
            ["code"],
            registry=self._registry,
        )
        self.in_flight = Gauge("kubevirt_scheduler_requests_in_flight", "Reviews in progress.", registry=self._registry)
        Info("kubevirt_scheduler_build", "The version of the webhook and of Python.", registry=self._registry).info(
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
        """Add the metrics of caches and events, read at each scrape."""
        self._registry.register(_ClusterCollector(backend))
        self._registry.register(FleetCollector(backend.fleet.counts))

    def add_loop(
        self, connections: Callable[[], int], dropped: Mapping[str, int], take_longest_turn: Callable[[], float]
    ) -> None:
        """Add the connection metrics of the TLS port, read at each scrape."""
        self._registry.register(LoopCollector(connections, dropped, take_longest_turn))

    def add_gc(self, pauses: GcPauses) -> None:
        """Add the longest pause for garbage collection, read at each scrape."""
        self._registry.register(GcCollector(pauses))

    def add_log(self, log_stream: LogStream, limit: LogLimit) -> None:
        """Add the numbers of lost log lines, read at each scrape."""
        self._registry.register(LogCollector(log_stream, limit))

    def add_certificates(self, certificate: ServingCertificate, controller: CertificateController) -> None:
        """Add the certificate metrics, read at each scrape."""
        self._registry.register(CertificateCollector(certificate, controller))

    def page(self) -> bytes:
        """Return `exposition`, rendered at most once a second, so that a flood of scrapes delays no probe."""
        if self._clock() - self._rendered_at >= 1:
            self._page, self._rendered_at = self.exposition(), self._clock()
        return self._page

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return prometheus_client.generate_latest(self._registry)


class _ClusterCollector(Collector):
    """Exports the state and counters of the caches and events."""

    def __init__(self, backend: LiveBackend) -> None:
        self._backend = backend

    def collect(self) -> Iterator[Metric]:
        """Read the current values."""
        caches = self._backend.caches()
        healths = {reflector.kind.plural: reflector.health for reflector in self._backend.live.reflectors}
        yield gauge("cache_objects", "Objects in each cache.", {cache.resource: cache.objects for cache in caches})
        ages = {cache.resource: cache.age for cache in caches if cache.age is not None}
        yield gauge("cache_age_seconds", "Seconds since the last update of a cache, including bookmarks.", ages)
        synced = {cache.resource: cache.synced for cache in caches}
        yield gauge("cache_synced", "Whether the first list of a cache is complete.", synced)
        forbidden = {resource: health.code == 403 for resource, health in healths.items()}
        yield gauge("cache_forbidden", "Whether a cache lacks the right to list or watch. /readyz names it.", forbidden)
        relists = CounterMetricFamily(
            f"{PREFIX}cache_relists", "Started lists, by cause.", labels=["resource", "cause"]
        )
        for resource, health in healths.items():
            for cause in RELIST_CAUSES:
                relists.add_metric([resource, cause], health.relists[cause])
        yield relists
        errors = {resource: health.watch_errors for resource, health in healths.items()}
        yield counter("cache_watch_errors", "Watches that failed.", "resource", errors)
        skipped = {resource: health.skipped for resource, health in healths.items()}
        yield counter("cache_skipped_objects", "Malformed objects that a cache skipped.", "resource", skipped)
        dropped = self._backend.events.dropped
        yield counter("events_dropped", "Events about VMIs that were not written, by cause.", "cause", dict(dropped))
        releaser = self._backend.releaser
        pending: dict[str, float] = {reason: releaser.pending[reason] for reason in RELEASE_REASONS}
        text = "Pinned pods that can't be scheduled and were not released, by reason. Only the leader reports them."
        yield gauge("pending_pins", text, pending, "reason")
        released: dict[str, float] = {reason: releaser.released[reason] for reason in RELEASE_REASONS}
        yield counter("released", "Pods deleted because their pin could not hold, by reason.", "reason", released)
        text = "Whether this replica releases pins."
        yield GaugeMetricFamily(f"{PREFIX}release_leader", text, value=self._backend.leads())
