"""The metrics that are read at each scrape: caches, fleet, event loop, garbage collector, log and certificates."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from certs.controller import CertificateController
from certs.rotation import Step
from certs.secret import Cause
from certs.serving import ServingCertificate
from webhook.cluster.fleet_counts import Counts
from webhook.fleet.release import PENDING_REASONS, RELEASE_REASONS
from webhook.fleet.states import State
from webhook.serving.telemetry.logs import LogLimit, LogStream

if TYPE_CHECKING:  # avoids the slow import of the Kubernetes client when `serve` reads a snapshot
    from webhook.cluster.live_backend import LiveBackend

PREFIX = "kubevirt_scheduler_"
RELIST_CAUSES = ("start", "expired", "forbidden", "missing", "error")
RUNNING_STATES = (State.TOGETHER, State.APART, State.UNSERVED, State.NOT_CONCERNED)
STEPS_NOT_COUNTED = (Step.NOTHING, Step.PUBLISH, Step.DROP_EARLY, Step.REPLACE)
Families = Iterator[Metric]


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


def cluster_metrics(backend: LiveBackend) -> Families:
    """Yield the state and the counters of caches, Events and releases."""
    caches = backend.caches()
    healths = {reflector.kind.plural: reflector.health for reflector in backend.live.reflectors}
    yield gauge("cache_objects", "Objects in each cache.", {cache.resource: cache.objects for cache in caches})
    ages = {cache.resource: cache.age for cache in caches if cache.age is not None}
    yield gauge("cache_age_seconds", "Seconds since the last update of a cache, including bookmarks.", ages)
    synced = {cache.resource: cache.synced for cache in caches}
    yield gauge("cache_synced", "Whether the first list of a cache is complete.", synced)
    forbidden = {resource: health.code == 403 for resource, health in healths.items()}
    yield gauge("cache_forbidden", "Whether a cache lacks the right to list or watch. /readyz names it.", forbidden)
    relists = CounterMetricFamily(f"{PREFIX}cache_relists", "Started lists, by cause.", labels=["resource", "cause"])
    for resource, health in healths.items():
        for cause in RELIST_CAUSES:
            relists.add_metric([resource, cause], health.relists[cause])
    yield relists
    errors = {resource: health.watch_errors for resource, health in healths.items()}
    yield counter("cache_watch_errors", "Watches that failed.", "resource", errors)
    skipped = {resource: health.skipped for resource, health in healths.items()}
    yield counter("cache_skipped_objects", "Malformed objects that a cache skipped.", "resource", skipped)
    dropped = backend.events.dropped
    yield counter("events_dropped", "Events about VMIs that were not written, by cause.", "cause", dict(dropped))
    releaser = backend.releaser
    pending: dict[str, float] = {reason: releaser.pending[reason] for reason in PENDING_REASONS}
    text = "Pinned pods that can't be scheduled and were not released, by reason. Only the leader reports them."
    yield gauge("pending_pins", text, pending, "reason")
    released: dict[str, float] = {reason: releaser.released[reason] for reason in RELEASE_REASONS}
    yield counter("released", "Pods deleted because their pin could not hold, by reason.", "reason", released)
    text = "Whether this replica releases pins."
    yield GaugeMetricFamily(f"{PREFIX}release_leader", text, value=backend.leads())


def fleet_metrics(counts: Callable[[], Counts | None]) -> Families:
    """Yield VMs by state and opt-in, by node and state, and undecided pods; none before the caches are synced."""
    if (found := counts()) is None:
        return
    text = "VMs by state. Each replica exports its own view: aggregate with max, not with sum."
    vms = GaugeMetricFamily(f"{PREFIX}vms", text, labels=["state", "opted_in"])
    for state in State:
        for opted_in in (True, False):
            vms.add_metric([state, str(opted_in).lower()], found.vms[state, opted_in])
    yield vms
    text = "VMs on each node by state. Each replica exports its own view: aggregate with max, not with sum."
    by_node = GaugeMetricFamily(f"{PREFIX}node_vms", text, labels=["node", "state"])
    for node in sorted({node for node, _ in found.by_node}):
        for state in RUNNING_STATES:
            by_node.add_metric([node, state], found.by_node[node, state])
    yield by_node
    text = "Pods of opted-in VMs that were created within an hour and have no decision: aggregate with max."
    yield GaugeMetricFamily(f"{PREFIX}undecided_pods", text, value=found.undecided)


def loop_metrics(
    connections: Callable[[], int], dropped: Mapping[str, int], take_longest_turn: Callable[[], float]
) -> Families:
    """Yield the counters of an event loop. Each call starts a new interval for the longest turn."""
    text = "Open connections on the TLS port."
    yield GaugeMetricFamily(f"{PREFIX}connections", text, value=connections())
    text = "Connections that the server dropped because of a failing peer or to free a slot, by cause."
    yield counter("connections_dropped", text, "cause", dict(dropped))
    text = "Longest turn of the event loop since the last scrape. All other connections waited for this time."
    yield GaugeMetricFamily(f"{PREFIX}loop_longest_turn_seconds", text, value=take_longest_turn())


class GcPauses:
    """Records the longest collection. While one runs, no thread runs, so every request waits."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._started, self._longest = clock, 0.0, 0.0

    def start(self) -> None:
        """Record collections from now on."""
        gc.callbacks.append(self._record)

    def metrics(self) -> Families:
        """Yield the longest collection since the last call."""
        longest, self._longest = self._longest, 0.0
        text = "Longest garbage collection since the last scrape. All threads paused for this time."
        yield GaugeMetricFamily(f"{PREFIX}gc_longest_pause_seconds", text, value=longest)

    def _record(self, phase: str, _info: dict[str, Any]) -> None:
        if phase == "start":
            self._started = self._clock()
        else:
            self._longest = max(self._longest, self._clock() - self._started)


def log_metrics(log_stream: LogStream, limit: LogLimit) -> Families:
    """Yield the numbers of lost log lines."""
    text = "Log lines dropped because standard error was blocked."
    yield CounterMetricFamily(f"{PREFIX}log_lines_dropped", text, value=log_stream.dropped)
    text = "Log lines about failed requests dropped by the rate limit."
    yield CounterMetricFamily(f"{PREFIX}log_lines_suppressed", text, value=limit.suppressed)


def certificate_metrics(certificate: ServingCertificate, controller: CertificateController) -> Families:
    """Yield the state of the serving certificate and the counters of its controller."""
    now = datetime.now(UTC)
    left = {which: (end - now).total_seconds() for which, end in certificate.expiry_times().items()}
    yield gauge("certificate_expiry_seconds", "Seconds until a served certificate expires.", left, "certificate")
    text = "Whether newer certificate files can't be served. /readyz?verbose gives the cause."
    yield GaugeMetricFamily(f"{PREFIX}certificate_unusable", text, value=bool(certificate.problem))
    text = "Whether the TLS port requires a client certificate. Without one, it answers any client that reaches it."
    required = certificate.client_ca is not None
    yield GaugeMetricFamily(f"{PREFIX}client_certificates_required", text, value=required)
    if client_ca := certificate.client_ca:
        text = "Whether a newer client CA can't be used. /readyz?verbose gives the cause."
        yield GaugeMetricFamily(f"{PREFIX}client_ca_unusable", text, value=bool(client_ca.problem))
    steps: dict[str, float] = {step: controller.steps[step] for step in Step if step not in STEPS_NOT_COUNTED}
    yield counter("certificate_steps", "Renewals and steps of a CA rotation, by step.", "step", steps)
    failures: dict[str, float] = {cause: controller.failures[cause] for cause in Cause}
    yield counter("certificate_failures", "Failed certificate checks, by cause.", "cause", failures)
    text = "Repairs of a caBundle that did not match the CA."
    yield CounterMetricFamily(f"{PREFIX}certificate_repairs", text, value=controller.repairs)
