"""The live cluster behind a decision: what follows it, what it missed a moment ago, and what was pinned just now."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import structlog

from webhook.cluster.client import ClusterClient, ClusterError
from webhook.cluster.kinds import Kind, kinds, object_path
from webhook.cluster.objects import Fact
from webhook.cluster.reflector import Reflector
from webhook.cluster.store import Store
from webhook.placement.catalog import Claim, Key, Pod, ShareManager, Volume
from webhook.placement.decision import Reason
from webhook.placement.injector import Injection, inject, namespace_of
from webhook.placement.settings import Settings, is_subdomain
from webhook.placement.shape import JsonObject, mapping, text

# Seconds of one live read, and of all of them for one decision: whoever creates the VM waits for that.
READ_TIMEOUT, READING = 0.5, 1.0
READS_AT_ONCE = 4
# From a claim to its PV to its ShareManager: as many things can be missing one after the other.
ROUNDS = 3
# Seconds for which a pod that we pinned counts though the cluster does not show it; it may have been refused after us.
RESERVATION = 10.0

Miss = tuple[type[Fact], Key]

log = structlog.get_logger("webhook.live")


class LiveReader:
    """Reads one object that the caches do not have: a claim created a moment ago. Never raises, never waits long.

    `results` counts what came of it; `problem` is why the last read failed, empty where it did not.
    """

    def __init__(self, cluster: ClusterClient, longhorn: str) -> None:
        self.results = Counter(found=0, absent=0, failed=0, skipped=0)
        self.problem = ""
        self._cluster = cluster
        self._places = threading.BoundedSemaphore(READS_AT_ONCE)
        self._counting = threading.Lock()
        self._kinds: dict[type[Fact], Kind] = {kind.fact: kind for kind in kinds(longhorn)}

    def read(self, miss: Miss, seconds: float = READ_TIMEOUT) -> Fact | None:
        """Read one object; None where there is none, and where it can't be had in so many seconds."""
        kind, key = self._kinds[miss[0]], miss[1]
        if not is_subdomain(key[1]):  # nothing has such a name, and its path may lead elsewhere
            return None
        if seconds <= 0 or not self._places.acquire(blocking=False):
            with self._counting:
                self.results["skipped"] += 1
            return None
        try:
            fact = self._get(kind, key, min(seconds, READ_TIMEOUT))
        except ClusterError as error:
            self._note("failed", str(error))
            return None
        finally:
            self._places.release()
        self._note("absent" if fact is None else "found")
        return fact

    def _get(self, kind: Kind, key: Key, seconds: float) -> Fact | None:
        body = self._cluster.get(object_path(kind, key), seconds)
        try:
            return None if body is None else kind.read(msgspec.json.decode(body, type=kind.shape))
        except (ValueError, TypeError, RecursionError):
            raise ClusterError(0, f"one of the {kind.plural} is not what an API server sends") from None

    def _note(self, result: str, problem: str = "") -> None:
        with self._counting:
            self.results[result] += 1
            told, self.problem = self.problem, problem
        if problem and problem != told:
            log.warning("a live read failed", error=problem)


class Overlay(Store):
    """A store, and beside it what was read live because the store did not have it; notes what neither has."""

    def __init__(self, store: Store) -> None:
        self.refresh(store)
        self._read: dict[Miss, Any] = {}
        self.missed: dict[Miss, None] = {}  # each once, in order

    def refresh(self, store: Store) -> None:
        """Share the store's tables as they are now: a relist puts others in their place."""
        self.__dict__.update(store.__dict__)

    def fill(self, read: Callable[[Miss], Fact | None]) -> None:
        """Read what was missed."""
        self._read |= {miss: read(miss) for miss in self.missed}
        self.missed = {}

    def _else_read(self, kind: type[Fact], key: Key) -> Any:
        if (kind, key) not in self._read:
            self.missed[kind, key] = None
        return self._read.get((kind, key))

    def claim(self, namespace: str, name: str) -> Claim | None:
        """Find a claim."""
        found: Claim | None = super().claim(namespace, name) or self._else_read(Claim, (namespace, name))
        return found

    def volume(self, name: str) -> Volume | None:
        """Find a PV by its own name."""
        found: Volume | None = super().volume(name) or self._else_read(Volume, ("", name))
        return found

    def volume_by_handle(self, handle: str) -> Volume | None:
        """Find the PV of a Longhorn volume; only by its name, which most often is the same, can it be read live."""
        return super().volume_by_handle(handle) or self.volume(handle)

    def share_manager(self, namespace: str, volume: str) -> ShareManager | None:
        """Find the ShareManager of a Longhorn volume."""
        known = super().share_manager(namespace, volume)
        found: ShareManager | None = known or self._else_read(ShareManager, (namespace, volume))
        return found


class Live:
    """The catalog that follows a cluster, and the decision on it. Threads may share it."""

    def __init__(self, cluster: ClusterClient, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self.store = Store()
        self.reader = LiveReader(cluster, settings.longhorn_namespace)
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

    def inject(self, request: JsonObject, seconds: float = READING) -> Injection | None:
        """Decide on a request; a pod that is pinned takes its room at once.

        What the caches miss is read live, within so many seconds and no more than READING; with none at all nothing is
        read, and the answer is None where something is missed.
        """
        overlay, last = Overlay(self.store), self._clock() + min(seconds, READING)
        for _ in range(ROUNDS):
            with self._lock:
                if injection := self._inject(request, overlay):
                    return injection
            if not seconds:
                return None
            # Outside of the lock: nobody else waits for it.
            overlay.fill(lambda miss: self.reader.read(miss, last - self._clock()))
        with self._lock:
            return self._inject(request, overlay, whatever_is_missed=True)

    def contested(self, injection: Injection) -> bool:
        """Say whether room is short on the node because pods that we pinned to it are on their way.

        Sent there softly before they are bound, this VM might be bound first, and one of them would stay Pending.
        """
        decision = injection.decision
        if decision.reason not in (Reason.NODE_FULL, Reason.POD_AFFINITY) or not decision.node:
            return False
        with self._lock:
            return self.store.has_unbound_pins(decision.node)

    def _inject(self, request: JsonObject, overlay: Overlay, *, whatever_is_missed: bool = False) -> Injection | None:
        overlay.refresh(self.store)
        self._forget_reservations()
        # A pod that was refused after us, and comes again, is not in its own way.
        vm = _vm_of(request)
        own = self.store.reservations.remove(vm)
        injection = inject(request, overlay, self._settings)
        is_final = whatever_is_missed or not overlay.missed
        if counting := (is_final and self._reservation(injection, request, vm)) or own:
            self.store.reservations.put(counting)
        return injection if is_final else None

    def _reservation(self, injection: Injection, request: JsonObject, vm: Key) -> Pod | None:
        """Make a pod count that the cluster does not show yet, or a burst of VMs would be pinned into the same room."""
        pod = injection.decision.reservation
        if pod is None or not injection.patch or request.get("dryRun") is True:
            return None
        self._reserved_until[vm] = self._clock() + RESERVATION
        return pod if pod.key == vm else replace(pod, name=vm[1])

    def _forget_reservations(self) -> None:
        now = self._clock()
        for key in [key for key, until in self._reserved_until.items() if until <= now]:
            self.store.reservations.remove(key)
            del self._reserved_until[key]


def _vm_of(request: JsonObject) -> Key:
    """Return what store.vm_of will, once the pod shows; a pod that names no VMI is told apart by its request."""
    metadata = mapping(request, "object", "metadata")
    vmi = text(mapping(metadata, "labels"), "kubevirt.io/created-by")
    return namespace_of(request), vmi or text(metadata, "name") or text(request, "uid")
