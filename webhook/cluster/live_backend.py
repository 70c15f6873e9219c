"""A live cluster behind the routes: its caches, its events, and their threads."""

import os
import threading
import time

from webhook.cluster.backend import Backend, Cache
from webhook.cluster.client import ClusterClient
from webhook.cluster.events import FAREWELL, TICK, EventRecorder
from webhook.cluster.live import Live
from webhook.placement.decision import Decision
from webhook.placement.settings import Action, Settings
from webhook.placement.shape import JsonObject


class LiveBackend:
    """A live cluster, followed from `start` to `stop`."""

    def __init__(self, cluster: ClusterClient, settings: Settings) -> None:
        self.live = Live(cluster, settings)
        # Kubernetes gives a pod its own name as its host's.
        self.events = EventRecorder(cluster.send, os.uname().nodename)
        # An observer does nothing, and must not tell that it was done.
        self._tells = settings.action is Action.INJECT
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def backend(self) -> Backend:
        """Return it as the routes see it."""
        live = self.live
        return Backend(live.inject, self.record, self.start, self.stop, self.caches, live.contested, live.synced)

    def record(self, request: JsonObject, decision: Decision) -> None:
        """Have the VM's owner told of a decision."""
        if self._tells:
            self.events.record(request, decision)

    def start(self) -> None:
        """Start all threads."""
        self.live.start(self._stop)
        self._threads.append(self.events.start(self._stop))

    def stop(self) -> None:
        """End them; what there is to tell is told for a second more."""
        self._stop.set()
        for thread in self._threads:
            thread.join(FAREWELL + TICK)

    def caches(self) -> list[Cache]:
        """Return how each cache is doing."""
        now = time.monotonic()
        found = []
        for reflector in self.live.reflectors:
            health = reflector.health
            age = None if health.heard is None else now - health.heard
            found.append(Cache(reflector.kind.plural, health.synced, health.objects, age, health.problem))
        return found
