"""What Prometheus is told: every label value that is known in advance stands there from the start, at 0."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from certs.cluster import Cause
from certs.renewal import Step
from certs.rotate import CertificateController
from certs.serving import ServingCertificate
from webhook import __version__
from webhook.placement.decision import CLAIM_REASONS, GUARD_REASONS, Decision, Outcome, Reason
from webhook.serving.log_stream import LogStream

if TYPE_CHECKING:  # it knows the Kubernetes client, whose import a server of files need not wait for
    from webhook.cluster.live_backend import LiveBackend

PREFIX = "kubevirt_scheduler_"
CAUSES = ("start", "expired", "forbidden", "missing", "error")  # of a relist
NOT_OF_A_KEEPER = (Step.NOTHING, Step.PUBLISH, Step.HURRY, Step.REPLACE)
CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST

# A decision takes 0.2 ms, and the API server waits 10 s at most: what is slower than 1 s is one case, too slow.
BUCKETS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # seconds
CODES = (200, 400, 404, 405, 408, 413, 415, 500, 503)


def possible_outcomes(reason: Reason) -> tuple[Outcome, ...]:
    """Return the outcomes that a decision for this reason can have; none for what only a single claim is told."""
    if reason is Reason.CO_SCHEDULED:
        return Outcome.PINNED, Outcome.PREFERRED
    if reason in GUARD_REASONS and reason is not Reason.NODE_NOT_FOUND:  # a node that is gone is not preferred either
        return Outcome.PREFERRED, Outcome.UNCHANGED
    if reason in CLAIM_REASONS and reason is not Reason.NO_SHARE_MANAGER:
        return ()
    return (Outcome.UNCHANGED,)


class Metrics:
    """The counters of one process, in a registry of their own."""

    def __init__(self) -> None:
        # The time at which each series was made doubles their number, and nothing reads it.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # it has no types
        self._registry = CollectorRegistry()
        self._decisions = Counter(
            "kubevirt_scheduler_decisions_total",
            "Decisions by what happened to the pod and why.",
            ["outcome", "reason"],
            registry=self._registry,
        )
        self._duration = Histogram(
            "kubevirt_scheduler_decision_duration_seconds",
            "From the request's bytes to the answer's, without the network.",
            buckets=BUCKETS,
            registry=self._registry,
        )
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
        # All that is known in advance stands there from the start, and is found faster than by its labels.
        self._by_code = {code: self._responses.labels(code) for code in CODES}
        self._by_decision = {
            (outcome, reason): self._decisions.labels(outcome, reason)
            for reason in Reason
            for outcome in possible_outcomes(reason)
        }

    def decided(self, decision: Decision, seconds: float) -> None:
        """Count a decision and the time that it took."""
        found = decision.outcome, decision.reason
        (self._by_decision.get(found) or self._decisions.labels(*found)).inc()
        self._duration.observe(seconds)

    def answered(self, code: int) -> None:
        """Count an answer by its HTTP status."""
        (self._by_code.get(code) or self._responses.labels(code)).inc()

    def follow(self, following: LiveBackend) -> None:
        """Show how the caches and events of a live cluster are doing, read at each scrape."""
        self._registry.register(_Followed(following))

    def show(self, connections: Callable[[], int], dropped: Mapping[str, int]) -> None:
        """Show the connections of the TLS port, read at each scrape."""
        self._registry.register(_Connections(connections, dropped))

    def hear(self, outlet: LogStream) -> None:
        """Show what was not logged, read at each scrape."""
        self._registry.register(_Unheard(outlet))

    def certify(self, certificate: ServingCertificate, keeper: CertificateController) -> None:
        """Show how the certificates are doing, read at each scrape."""
        self._registry.register(_Certificates(certificate, keeper))

    def exposition(self) -> bytes:
        """Return all values in Prometheus' text format."""
        return prometheus_client.generate_latest(self._registry)


class _Connections(Collector):
    """What the loop counts for itself."""

    def __init__(self, connections: Callable[[], int], dropped: Mapping[str, int]) -> None:
        self._connections, self._dropped = connections, dropped

    def collect(self) -> Iterator[Metric]:
        """Read all counts."""
        text = "Connections that are open on the TLS port."
        yield GaugeMetricFamily(f"{PREFIX}connections", text, value=self._connections())
        text = "Connections that were ended by their peer's fault, or to make room, by cause."
        yield _counter("connections_dropped", text, "cause", dict(self._dropped))


class _Unheard(Collector):
    """What the log counts for itself."""

    def __init__(self, outlet: LogStream) -> None:
        self._outlet = outlet

    def collect(self) -> Iterator[Metric]:
        """Read the count."""
        text = "Lines of the log that nobody took."
        yield CounterMetricFamily(f"{PREFIX}log_lines_dropped", text, value=self._outlet.dropped)


class _Certificates(Collector):
    """What is served, and what the keeper of the certificates counts for itself."""

    def __init__(self, certificate: ServingCertificate, keeper: CertificateController) -> None:
        self._certificate, self._keeper = certificate, keeper

    def collect(self) -> Iterator[Metric]:
        """Read all counts."""
        now = datetime.now(UTC)
        left = {which: (end - now).total_seconds() for which, end in self._certificate.ends().items()}
        yield _gauge("certificate_expiry_seconds", "Until the end of what is served.", left, "certificate")
        text = "Whether newer files can't be served; /readyz?verbose says why."
        yield GaugeMetricFamily(f"{PREFIX}certificate_unusable", text, value=bool(self._certificate.problem))
        steps: dict[str, float] = {step: self._keeper.steps[step] for step in Step if step not in NOT_OF_A_KEEPER}
        yield _counter("certificate_steps", "Renewals, and the steps of a rotation.", "step", steps)
        failures: dict[str, float] = {cause: self._keeper.failures[cause] for cause in Cause}
        yield _counter("certificate_failures", "Passes that failed, by cause.", "cause", failures)
        text = "How often a caBundle was not as it should be."
        yield CounterMetricFamily(f"{PREFIX}certificate_repairs", text, value=self._keeper.repairs)


class _Followed(Collector):
    """What the caches and the events count for themselves."""

    def __init__(self, following: LiveBackend) -> None:
        self._following = following

    def collect(self) -> Iterator[Metric]:
        """Read all counts."""
        caches = self._following.caches()
        healths = {reflector.kind.plural: reflector.health for reflector in self._following.live.reflectors}
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
            for cause in CAUSES:
                relists.add_metric([resource, cause], health.relists[cause])
        yield relists
        errors = {resource: health.watch_errors for resource, health in healths.items()}
        yield _counter("cache_watch_errors", "Watches that broke off.", "resource", errors)
        skipped = {resource: health.skipped for resource, health in healths.items()}
        yield _counter("cache_skipped_objects", "Objects that could not be read.", "resource", skipped)
        reads = self._following.live.reader.results
        yield _counter("live_reads", "Reads of what the caches did not have, by result.", "result", dict(reads))
        dropped = self._following.events.dropped
        yield _counter("events_dropped", "Events about VMIs that were not written.", "cause", dict(dropped))


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
