"""What the server asks of a cluster: a snapshot, or a live cluster with its caches, Event recorder and threads."""

import logging
import os
import threading
import time
from collections.abc import Callable

from msgspec import Struct, field

from webhook.catalog.store import Store
from webhook.cluster.client import ClusterClient
from webhook.cluster.election import Election
from webhook.cluster.events import POLL_INTERVAL, SHUTDOWN_TIMEOUT, EventRecorder, Vmi
from webhook.cluster.fleet_counts import FleetCounter
from webhook.cluster.live_catalog import Live
from webhook.cluster.releaser import Releaser
from webhook.placement.injector import Injection, inject
from webhook.placement.objects.facts import Key
from webhook.placement.reasons import Decision
from webhook.placement.review import Review
from webhook.placement.settings import Action, Settings

log = logging.getLogger("webhook.live")


class Cache(Struct, frozen=True):
    """The state of one cache of a live cluster."""

    resource: str
    synced: bool
    objects: int
    age: float | None  # seconds since the last list or watch event, bookmarks included; None before the first list
    problem: str  # the current error; empty without one
    required: bool = True  # without it, the webhook isn't ready


class Backend(Struct, frozen=True):
    """The functions that the routes call. None of them waits for the API server.

    The defaults suit a snapshot, which is always synced and records no Events.
    """

    decide: Callable[[Review], Injection]
    # queues an Event that reports the decision on the VMI
    record: Callable[[Vmi, Decision], None] = lambda _vmi, _decision: None
    start: Callable[[], None] = lambda: None  # called after the fork, because threads don't survive a fork
    stop: Callable[[], None] = lambda: None
    caches: Callable[[], list[Cache]] = field(default=list)  # any thread may call it
    synced: Callable[[], bool] = lambda: True  # whether the cluster was read completely; every request calls it


def from_snapshot(store: Store, settings: Settings) -> Backend:
    """Return a backend that decides from a store that never changes."""
    return Backend(lambda review: inject(review, store, settings))


class LiveBackend:
    """Mirrors a live cluster from `start` to `stop`.

    `lease` is the Lease of the replica that releases pins, or reports those that it may not release. Without it, no
    replica does either.
    """

    def __init__(self, cluster: ClusterClient, settings: Settings, lease: Key | None = None) -> None:
        self.live = Live(cluster, settings)
        self.fleet = FleetCounter(self.live, settings, time.monotonic)
        # Inside a pod, the hostname is the pod's name.
        self.events = EventRecorder(cluster.send, os.uname().nodename)
        # In observe mode the webhook changes no pod, so an Event would report a placement that didn't happen.
        self._records_events = settings.action is Action.INJECT
        # Without a Lease, several replicas would delete pods, more of them than needed.
        self.election = Election(cluster, lease) if lease else None
        self.releaser = Releaser(cluster, self.live, settings, self.leads, self.record)
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def backend(self) -> Backend:
        """Return the functions that the routes call."""
        return Backend(self.live.inject, self.record, self.start, self.stop, self.caches, self.live.synced)

    def record(self, vmi: Vmi, decision: Decision) -> None:
        """Queue an Event that reports the decision on the VMI, except in observe mode."""
        if self._records_events:
            self.events.record(vmi, decision)

    def leads(self) -> bool:
        """Return whether this replica releases pins: it holds the Lease now."""
        return self.election is not None and self.election.leads()

    def start(self) -> None:
        """Start all threads."""
        self.live.start(self._stop)
        runs = {"events": self.events.run}
        if self.election is None:
            log.info("no lease given, so stuck pins are neither released nor reported")
        else:
            runs |= {"election": self.election.run, "releaser": self.releaser.run}
        for name, run in runs.items():
            thread = threading.Thread(target=run, args=(self._stop,), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stop all threads. The recorder writes queued Events for one more second."""
        self._stop.set()
        end = time.monotonic() + SHUTDOWN_TIMEOUT + POLL_INTERVAL
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0))

    def caches(self) -> list[Cache]:
        """Return the state of each cache."""
        now = time.monotonic()
        caches = []
        for reflector in self.live.reflectors:
            kind, health = reflector.kind, reflector.health
            age = None if health.last_contact is None else now - health.last_contact
            required = kind.required or not reflector.is_ready()
            caches.append(Cache(kind.plural, age is not None, health.objects, age, health.problem, required))
        return caches
