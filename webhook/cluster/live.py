"""Decide on a live cluster: caches, live reads of objects that the caches lack, and reservations for pinned pods."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
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
from webhook.placement.settings import Settings, is_dns_subdomain
from webhook.placement.shape import JsonObject, mapping, text

# Seconds for one live read, and for all live reads of one decision. The creation of the VM waits for these reads.
READ_TIMEOUT, READ_BUDGET = 0.5, 1.0
MAX_CONCURRENT_READS = 4
# A claim names its PV, and the PV its ShareManager: each round can reveal one more missing object.
READ_ROUNDS = 3
# Seconds until the reservation of a pinned pod expires if the pod doesn't show up in the cache: the pod may
# have been rejected after the webhook's response.
RESERVATION_SECONDS = 10.0

Miss = tuple[type[Fact], Key]

log = structlog.get_logger("webhook.live")


class LiveReader:
    """Reads single objects that the caches lack, such as a recently created claim. Never raises.

    A read takes at most READ_TIMEOUT. `results` counts the reads by result. `problem` is the error of the last read,
    empty if that read succeeded.
    """

    def __init__(self, cluster: ClusterClient, longhorn: str) -> None:
        self.results = Counter(found=0, absent=0, failed=0, skipped=0)
        self.problem = ""
        self._cluster = cluster
        self._slots = threading.BoundedSemaphore(MAX_CONCURRENT_READS)
        self._results_lock = threading.Lock()
        self._kinds: dict[type[Fact], Kind] = {kind.fact: kind for kind in kinds(longhorn)}

    def read(self, miss: Miss, seconds: float = READ_TIMEOUT) -> Fact | None:
        """Read one object. Return None if it doesn't exist or can't be read within `seconds`."""
        kind, key = self._kinds[miss[0]], miss[1]
        if not is_dns_subdomain(key[1]):  # no object has an invalid name, and its path might address another resource
            return None
        if seconds <= 0 or not self._slots.acquire(blocking=False):
            with self._results_lock:
                self.results["skipped"] += 1
            return None
        try:
            fact = self._get(kind, key, min(seconds, READ_TIMEOUT))
        except ClusterError as error:
            self._count("failed", str(error))
            return None
        finally:
            self._slots.release()
        self._count("absent" if fact is None else "found")
        return fact

    def _get(self, kind: Kind, key: Key, seconds: float) -> Fact | None:
        body = self._cluster.get(object_path(kind, key), seconds)
        try:
            return None if body is None else kind.read(msgspec.json.decode(body, type=kind.shape))
        except (ValueError, TypeError, RecursionError):
            raise ClusterError(0, f"one of the {kind.plural} is not what an API server sends") from None

    def _count(self, result: str, problem: str = "") -> None:
        with self._results_lock:
            self.results[result] += 1
            previous, self.problem = self.problem, problem
        if problem and problem != previous:
            log.warning("live read failed", error=problem)


class Overlay(Store):
    """A store extended by live reads for one decision. `missed` lists the objects that still need a live read."""

    def __init__(self, store: Store) -> None:
        self.refresh(store)
        self._live_facts: dict[Miss, Any] = {}
        self.missed: dict[Miss, None] = {}  # an ordered set

    def refresh(self, store: Store) -> None:
        """Use the store's current tables: a relist replaces them."""
        self.__dict__.update(store.__dict__)

    def fill(self, read: Callable[[Miss], Fact | None]) -> None:
        """Read each missed object with `read`, and clear `missed`."""
        self._live_facts |= {miss: read(miss) for miss in self.missed}
        self.missed = {}

    def _live_fact(self, kind: type[Fact], key: Key) -> Any:
        if (kind, key) not in self._live_facts:
            self.missed[kind, key] = None
        return self._live_facts.get((kind, key))

    def claim(self, namespace: str, name: str) -> Claim | None:
        """Find a claim."""
        found: Claim | None = super().claim(namespace, name) or self._live_fact(Claim, (namespace, name))
        return found

    def volume(self, name: str) -> Volume | None:
        """Find a PV by its own name."""
        found: Volume | None = super().volume(name) or self._live_fact(Volume, ("", name))
        return found

    def volumes_by_handle(self, handle: str) -> Collection[Volume]:
        """List the PVs of a Longhorn volume. A live read works only by name, which usually equals the handle."""
        if known := super().volumes_by_handle(handle):
            return known
        named = self.volume(handle)
        return (named,) if named else ()

    def share_manager(self, namespace: str, volume: str) -> ShareManager | None:
        """Find the ShareManager of a Longhorn volume."""
        known = super().share_manager(namespace, volume)
        found: ShareManager | None = known or self._live_fact(ShareManager, (namespace, volume))
        return found


class Live:
    """Decides from caches that mirror a live cluster. Thread-safe."""

    def __init__(self, cluster: ClusterClient, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self.store = Store()
        self.reader = LiveReader(cluster, settings.longhorn_namespace)
        self._settings = settings
        self._clock = clock
        # Decisions hold the lock while they read, reflectors while they write. Each takes a fraction of a millisecond.
        self._lock = threading.Lock()
        self._reserved_until: dict[Key, float] = {}
        self.reflectors = [
            Reflector(kind, cluster, self.store, self._lock, clock) for kind in kinds(settings.longhorn_namespace)
        ]

    def start(self, stop: threading.Event) -> None:
        """Start one reflector thread per kind. The threads end when `stop` is set."""
        for reflector in self.reflectors:
            name = f"reflector-{reflector.kind.plural}"
            threading.Thread(target=reflector.run, args=(stop,), name=name, daemon=True).start()

    def synced(self) -> bool:
        """Return whether each kind was listed at least once."""
        return all(reflector.health.synced for reflector in self.reflectors)

    def inject(self, request: JsonObject, seconds: float = READ_BUDGET) -> Injection | None:
        """Decide on a request, and reserve the resources of a pinned pod immediately.

        Objects that the caches lack are read live, within `seconds` and at most READING. With 0 seconds nothing is
        read, and the result is None if an object is missing.
        """
        overlay, deadline = Overlay(self.store), self._clock() + min(seconds, READ_BUDGET)
        for _ in range(READ_ROUNDS):
            with self._lock:
                if injection := self._inject(request, overlay):
                    return injection
            if not seconds:
                return None
            # Outside the lock, so that other decisions don't wait for the reads.
            overlay.fill(lambda miss: self.reader.read(miss, deadline - self._clock()))
        with self._lock:
            return self._inject(request, overlay, accept_missing=True)

    def contested(self, injection: Injection) -> bool:
        """Return whether the guard refused the node while pods that are pinned to it aren't bound yet.

        If this VM only preferred the node, the scheduler might bind the VM first. Then a pinned pod would stay Pending.
        """
        decision = injection.decision
        if decision.reason not in (Reason.NODE_FULL, Reason.POD_AFFINITY) or not decision.node:
            return False
        with self._lock:
            return self.store.has_unbound_pins(decision.node)

    def _inject(self, request: JsonObject, overlay: Overlay, *, accept_missing: bool = False) -> Injection | None:
        overlay.refresh(self.store)
        self._expire_reservations()
        # A pod may be rejected after an earlier decision and then retried: its own reservation must not block it.
        vm = _vm_key_of(request)
        earlier = self.store.reservations.remove(vm)
        injection = inject(request, overlay, self._settings)
        is_final = accept_missing or not overlay.missed
        if reservation := self._reserve(injection, request, vm, earlier) if is_final else earlier:
            self.store.reservations.put(reservation)
        return injection if is_final else None

    def _reserve(self, injection: Injection, request: JsonObject, vm: Key, earlier: Pod | None) -> Pod | None:
        """Return the reservation for a pinned pod that the cache doesn't show yet, None for other pods.

        Without reservations, a burst of VMs would be pinned into the same free capacity. `earlier` is the reservation
        of an earlier call for the same VM.
        """
        decision, pod = injection.decision, injection.decision.reservation
        if request.get("dryRun") is True:
            return earlier
        if pod is None or not (injection.patch or earlier):
            return None if decision.unpins else earlier
        self._reserved_until[vm] = self._clock() + RESERVATION_SECONDS
        return pod if pod.key == vm else replace(pod, name=vm[1])

    def _expire_reservations(self) -> None:
        now = self._clock()
        for key in [key for key, until in self._reserved_until.items() if until <= now]:
            self.store.reservations.remove(key)
            del self._reserved_until[key]


def _vm_key_of(request: JsonObject) -> Key:
    """Return the key that `vm_key` will give the created pod. A pod without a VMI and a name gets the request's uid."""
    metadata = mapping(request, "object", "metadata")
    vmi = text(mapping(metadata, "labels"), "kubevirt.io/created-by")
    return namespace_of(request), vmi or text(metadata, "name") or text(request, "uid")
