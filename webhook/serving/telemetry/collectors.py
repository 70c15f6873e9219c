"""The metrics that are read at each scrape: caches, fleet, event loop, log and certificates."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import Metric

from certs.controller import CertificateController
from certs.rotation import Step
from certs.secret import Cause
from certs.serving import ServingCertificate
from webhook.cluster.backend import LiveBackend
from webhook.cluster.fleet_counts import Counts
from webhook.cluster.server_clock import ServerClock
from webhook.fleet.machine import State
from webhook.fleet.release import PENDING_REASONS, RELEASE_REASONS
from webhook.serving.telemetry.logs import LogLimit, LogStream, UncaughtErrors
from webhook.serving.telemetry.metrics import counter, gauge

RELIST_CAUSES = ("start", "expired", "forbidden", "missing", "error")
RUNNING_STATES = (State.TOGETHER, State.APART, State.UNSERVED, State.NOT_CONCERNED)
Families = Iterator[Metric]


def cluster_metrics(backend: LiveBackend) -> Families:
    """Yield the state and the counters of caches, Events and releases."""
    caches = backend.caches()
    healths = {reflector.kind.plural: reflector.health for reflector in backend.live.reflectors}
    objects = {cache.resource: cache.objects for cache in caches}
    yield gauge("cache_objects", "Objects in each cache.", objects, "resource")
    ages = {cache.resource: cache.age for cache in caches if cache.age is not None}
    text = "Seconds since the last update of a cache, including bookmarks."
    yield gauge("cache_age_seconds", text, ages, "resource")
    synced = {cache.resource: cache.synced for cache in caches}
    yield gauge("cache_synced", "Whether the first list of a cache is complete.", synced, "resource")
    forbidden = {resource: health.code == 403 for resource, health in healths.items()}
    text = "Whether a cache lacks the right to list or watch. /readyz names it."
    yield gauge("cache_forbidden", text, forbidden, "resource")
    relists = {(of, cause): health.relists[cause] for of, health in healths.items() for cause in RELIST_CAUSES}
    yield counter("cache_relists", "Started lists, by cause.", relists, "resource", "cause")
    errors = {resource: health.watch_errors for resource, health in healths.items()}
    yield counter("cache_watch_errors", "Watches that failed.", errors, "resource")
    skipped = {resource: health.skipped for resource, health in healths.items()}
    yield counter("cache_skipped_objects", "Malformed objects that a cache skipped.", skipped, "resource")
    text = "Events about VMIs that were not written, by cause."
    yield counter("events_dropped", text, dict(backend.events.dropped), "cause")
    releaser = backend.releaser
    pending = {str(reason): releaser.pending[reason] for reason in PENDING_REASONS}
    text = "Pinned pods that can't be scheduled and were not released, by reason. Only the leader reports them."
    yield gauge("pending_pins", text, pending, "reason")
    released = {str(reason): releaser.released[reason] for reason in RELEASE_REASONS}
    yield counter("released", "Pods deleted because their pin could not hold, by reason.", released, "reason")
    yield gauge("release_leader", "Whether this replica releases pins.", backend.leads())


def fleet_metrics(counts: Callable[[], Counts | None]) -> Families:
    """Yield VMs by state and opt-in, by node and state, and undecided pods; none before the caches are synced."""
    if (found := counts()) is None:
        return
    vms = {(str(state), str(opted).lower()): found.vms[state, opted] for state in State for opted in (True, False)}
    text = "VMs by state. Each replica exports its own view: aggregate with max, not with sum."
    yield gauge("vms", text, vms, "state", "opted_in")
    nodes = sorted({node for node, _ in found.by_node})
    by_node = {(node, str(state)): found.by_node[node, state] for node in nodes for state in RUNNING_STATES}
    text = "VMs on each node by state. Each replica exports its own view: aggregate with max, not with sum."
    yield gauge("node_vms", text, by_node, "node", "state")
    text = "VMs by whether the node of their share-manager has a healthy replica: aggregate with max, not with sum."
    yield gauge("data_vms", text, {"local": found.by_data[True], "remote": found.by_data[False]}, "data")
    text = "Pods of opted-in VMs that were created within an hour and have no decision: aggregate with max."
    yield gauge("undecided_pods", text, found.undecided)


def loop_metrics(
    connections: Callable[[], int], dropped: Mapping[str, int], take_longest_turn: Callable[[], float]
) -> Families:
    """Yield the counters of an event loop. Each call starts a new interval for the longest turn."""
    yield gauge("connections", "Open connections on the TLS port.", connections())
    text = "Connections that the server dropped because of a failing peer or to free a slot, by cause."
    yield counter("connections_dropped", text, dict(dropped), "cause")
    text = "Longest turn of the event loop since the last scrape. All other connections waited for this time."
    yield gauge("loop_longest_turn_seconds", text, take_longest_turn())


def log_metrics(log_stream: LogStream, limit: LogLimit, errors: UncaughtErrors) -> Families:
    """Yield the numbers of lost log lines, and of uncaught errors."""
    yield counter("log_lines_dropped", "Log lines dropped because standard error was blocked.", log_stream.dropped)
    yield counter("log_lines_suppressed", "Log lines dropped by the limit of their cause.", limit.suppressed)
    yield counter("uncaught_errors", "Errors that ended a background thread. The log has each.", errors.count)


def certificate_metrics(
    certificate: ServingCertificate, controller: CertificateController, clock: ServerClock
) -> Families:
    """Yield the state of the serving certificate and the counters of its controller."""
    text = "Seconds by which this replica's clock is ahead of the API server's; negative if it is behind."
    yield gauge("clock_ahead_seconds", text, clock.seconds_ahead)
    left = {which: (end - clock.now()).total_seconds() for which, end in certificate.expiry_times().items()}
    yield gauge("certificate_expiry_seconds", "Seconds until a served certificate expires.", left, "certificate")
    text = "Whether a newer certificate can't be served. /readyz?verbose gives the cause."
    yield gauge("certificate_unusable", text, bool(certificate.problem))
    if client_ca := certificate.client_ca:
        text = "Whether a newer client CA can't be used. /readyz?verbose gives the cause."
        yield gauge("client_ca_unusable", text, bool(client_ca.problem))
    steps = {str(step): controller.steps[step] for step in Step}
    yield counter("certificate_steps", "Steps of renewals, by step.", steps, "step")
    failures = {str(cause): controller.failures[cause] for cause in Cause}
    yield counter("certificate_failures", "Failed certificate checks, by cause.", failures, "cause")
    yield counter("certificate_repairs", "Repairs of a caBundle that did not match the CA.", controller.repairs)
