"""The backend of a live cluster: its caches, its Event recorder, and their threads."""

import os
import threading
import time

from webhook.cluster.backend import Backend, Cache
from webhook.cluster.client import ClusterClient
from webhook.cluster.events import POLL_INTERVAL, SHUTDOWN_TIMEOUT, EventRecorder
from webhook.cluster.live import Live
from webhook.placement.decision import Decision
from webhook.placement.settings import Action, Settings
from webhook.placement.shape import JsonObject


class LiveBackend:
    """Mirrors a live cluster from `start` to `stop`."""

    def __init__(self, cluster: ClusterClient, settings: Settings) -> None:
        self.live = Live(cluster, settings)
        # Inside a pod, the hostname is the pod's name.
        self.events = EventRecorder(cluster.send, os.uname().nodename)
        # In observe mode the webhook changes no pod, so an Event would report a placement that didn't happen.
        self._records_events = settings.action is Action.INJECT
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def backend(self) -> Backend:
        """Return the functions that the routes call."""
        live = self.live
        return Backend(live.inject, self.record, self.start, self.stop, self.caches, live.contested, live.synced)

    def record(self, request: JsonObject, decision: Decision) -> None:
        """Queue an Event that reports the decision on the VMI, except in observe mode."""
        if self._records_events:
            self.events.record(request, decision)

    def start(self) -> None:
        """Start all threads."""
        self.live.start(self._stop)
        self._threads.append(self.events.start(self._stop))

    def stop(self) -> None:
        """Stop all threads. The recorder writes queued Events for one more second."""
        self._stop.set()
        for thread in self._threads:
            thread.join(SHUTDOWN_TIMEOUT + POLL_INTERVAL)

    def caches(self) -> list[Cache]:
        """Return the state of each cache."""
        now = time.monotonic()
        caches = []
        for reflector in self.live.reflectors:
            health = reflector.health
            age = None if health.last_contact is None else now - health.last_contact
            caches.append(Cache(reflector.kind.plural, health.synced, health.objects, age, health.problem))
        return caches
