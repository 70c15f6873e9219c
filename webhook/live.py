"""The live cluster behind a decision: what follows it, what it missed a moment ago, and what was pinned just now."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import msgspec

from webhook.catalog import Claim, Key, ShareManager, Volume
from webhook.cluster import Cluster, ClusterError
from webhook.decision import Outcome
from webhook.injector import Injection, inject, namespace_of
from webhook.objects import Fact, read_pod
from webhook.reflector import Kind, Reflector, kinds
from webhook.settings import Settings
from webhook.shape import JsonObject, mapping
from webhook.store import Store, vm_of

READ_TIMEOUT = 0.5  # seconds of one live read; the API server waits for us 3 s
READS_AT_ONCE = 4
# From a claim to its PV to its ShareManager: as many things can be missing one after the other.
ROUNDS = 3
# Seconds for which a pod that we pinned counts though the cluster does not show it; it may have been refused after us.
RESERVATION = 10.0

Miss = tuple[type[Fact], Key]


class Reader:
    """Reads one object that the caches do not have: a claim created a moment ago. Never raises, never waits long."""

    def __init__(self, cluster: Cluster, longhorn: str) -> None:
        self.results: Counter[str] = Counter()
        self._cluster = cluster
        self._places = threading.BoundedSemaphore(READS_AT_ONCE)
        self._kinds: dict[type[Fact], Kind] = {kind.fact: kind for kind in kinds(longhorn)}

    def read(self, miss: Miss) -> Fact | None:
        """Read one object; None where there is none, and where it can't be had in time."""
        if not self._places.acquire(blocking=False):
            self.results["skipped"] += 1
            return None
        try:
            return self._read(*miss)
        except (ClusterError, ValueError):
            self.results["failed"] += 1
            return None
        finally:
            self._places.release()

    def _read(self, fact: type[Fact], key: Key) -> Fact | None:
        kind = self._kinds[fact]
        body = self._cluster.get(_path(kind, key), READ_TIMEOUT)
        self.results["absent" if body is None else "found"] += 1
        return None if body is None else kind.read(msgspec.json.decode(body, type=kind.shape))


def _path(kind: Kind, key: Key) -> str:
    namespace, name = (quote(part, safe="") for part in key)
    if kind.fact is Claim:
        return f"/api/v1/namespaces/{namespace}/{kind.plural}/{name}"
    return f"{kind.path}/{name}"


class Overlay(Store):
    """A store, and beside it what was read live because the store did not have it; notes what neither has."""

    def __init__(self, store: Store) -> None:
        self.refresh(store)
        self._read: dict[Miss, Any] = {}
        self.missed: list[Miss] = []

    def refresh(self, store: Store) -> None:
        """Share the store's tables as they are now: a relist puts others in their place."""
        self.__dict__.update(store.__dict__)

    def fill(self, reader: Reader) -> None:
        """Read what was missed."""
        for miss in self.missed:
            self._read[miss] = reader.read(miss)
        self.missed = []

    def _else_read(self, kind: type[Fact], key: Key) -> Any:
        if (kind, key) not in self._read:
            self.missed.append((kind, key))
        return self._read.get((kind, key))

    def claim(self, namespace: str, name: str) -> Claim | None:
        """Find a claim."""
        found: Claim | None = super().claim(namespace, name) or self._else_read(Claim, (namespace, name))
        return found

    def volume(self, name: str) -> Volume | None:
        """Find a PV by its own name."""
        found: Volume | None = super().volume(name) or self._else_read(Volume, ("", name))
        return found

    def volume_served(self, handle: str) -> Volume | None:
        """Find the PV of a Longhorn volume; only by its name, which most often is the same, can it be read live."""
        return super().volume_served(handle) or self.volume(handle)

    def share_manager(self, namespace: str, volume: str) -> ShareManager | None:
        """Find the ShareManager of a Longhorn volume."""
        known = super().share_manager(namespace, volume)
        found: ShareManager | None = known or self._else_read(ShareManager, (namespace, volume))
        return found


class Live:
    """The catalog that follows a cluster, and the decision on it. Threads may share it."""

    def __init__(self, cluster: Cluster, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self.store = Store()
        self.reader = Reader(cluster, settings.longhorn_namespace)
        self._settings = settings
        self._clock = clock
        # Held while a decision reads and while a reflector writes: each takes a fraction of a millisecond.
        self._lock = threading.Lock()
        self._reserved_until: dict[Key, float] = {}
        self.reflectors = [
            Reflector(kind, cluster, self.store, self._lock, clock) for kind in kinds(settings.longhorn_namespace)
        ]

    def start(self, stop: threading.Event) -> None:
        """Start to follow the cluster, in one thread a kind, until told to stop."""
        for reflector in self.reflectors:
            name = f"reflector-{reflector.kind.plural}"
            threading.Thread(target=reflector.run, args=(stop,), name=name, daemon=True).start()

    def synced(self) -> bool:
        """Say whether each kind was listed at least once."""
        return all(reflector.health.synced for reflector in self.reflectors)

    def inject(self, request: JsonObject) -> Injection:
        """Decide on a request; what the caches miss is read live, and a pod that is pinned takes its room at once."""
        overlay = Overlay(self.store)
        for _ in range(ROUNDS):
            with self._lock:
                injection = self._inject(request, overlay)
            if not overlay.missed:
                return injection
            # Outside of the lock: nobody else waits for it.
            overlay.fill(self.reader)
        with self._lock:
            overlay.missed = []
            return self._inject(request, overlay)

    def _inject(self, request: JsonObject, overlay: Overlay) -> Injection:
        overlay.refresh(self.store)
        self._forget_reservations()
        injection = inject(request, overlay, self._settings)
        if injection.decision.outcome is Outcome.PINNED and injection.patch and not overlay.missed:
            self._reserve(request, injection.decision.node or "")
        return injection

    def _reserve(self, request: JsonObject, node: str) -> None:
        """Let a pod count that the cluster does not show yet, or a burst of VMs would be pinned into the same room."""
        pod = read_pod(mapping(request, "object"))
        if pod is None or request.get("dryRun") is True:
            return
        key = vm_of(replace(pod, namespace=namespace_of(request)))
        self.store.reserved.put(replace(pod, namespace=key[0], name=key[1], site=node))
        self._reserved_until[key] = self._clock() + RESERVATION

    def _forget_reservations(self) -> None:
        now = self._clock()
        for key in [key for key, until in self._reserved_until.items() if until <= now]:
            self.store.reserved.drop(key)
            del self._reserved_until[key]
