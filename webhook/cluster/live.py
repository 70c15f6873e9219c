"""Decide on a live cluster: caches, live reads of objects that the caches lack, and reservations for pinned pods."""

import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

from msgspec import Struct

from webhook.cluster.client import ClusterClient
from webhook.cluster.kinds import Kind, kinds, opt_in_kinds
from webhook.cluster.live_reader import LiveReader, Miss
from webhook.cluster.objects import Fact
from webhook.cluster.reflector import Reflector
from webhook.cluster.reservations import Reservations
from webhook.cluster.store import Store
from webhook.placement.decision import Outcome
from webhook.placement.facts import Claim, Key, Node, Pod, ShareManager, Volume
from webhook.placement.feasibility import STALE_MINUTES
from webhook.placement.injector import Injection, namespace_of, with_patch, without_patch
from webhook.placement.kubevirt import vmi_uid
from webhook.placement.settings import Action, Settings
from webhook.placement.shape import JsonObject, mapping, text

READ_BUDGET = 1.0  # seconds for all live reads of one decision; the creation of the VM waits for them
# A claim names its PV, and the PV its ShareManager: each round can reveal one more missing object.
READ_ROUNDS = 3
STALE_SECONDS = STALE_MINUTES * 60.0

T = TypeVar("T")


def _never_absent(_miss: Miss) -> bool:
    return False


class Overlay(Store):
    """A store extended by live reads for one decision. `missed` lists the objects that still need a live read.

    An object for which `is_absent` holds needs none.
    """

    def __init__(self, store: Store, is_absent: Callable[[Miss], bool] = _never_absent) -> None:
        self.refresh(store)
        self._is_absent = is_absent
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
        miss = kind, key
        if miss not in self._live_facts and miss not in self.missed:
            pending: dict[Miss, Any] = self._live_facts if self._is_absent(miss) else self.missed
            pending[miss] = None
        return self._live_facts.get(miss)

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


class _Decided(Struct, frozen=True):
    """A decision without its patch, the VM's earlier reservation, and whether the decision has a new one."""

    injection: Injection
    withdrawn: tuple[Pod | None, Pod | None]
    reserves: bool


class Live:
    """Decides from caches that mirror a live cluster. Thread-safe."""

    def __init__(
        self,
        cluster: ClusterClient,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
        extra_kinds: Iterable[Kind] = (),
    ) -> None:
        self.store = Store(clock=clock)
        self.reader = LiveReader(cluster, settings.longhorn_namespace, clock)
        self._settings = settings
        self._clock = clock
        # Decisions hold the lock while they read, reflectors while they write. Each takes a fraction of a millisecond.
        self._lock = threading.Lock()
        self._reservations = Reservations(self.store, clock)
        self.reflectors = [
            Reflector(kind, cluster, self.store, self._lock, clock)
            for kind in (*kinds(settings.longhorn_namespace), *opt_in_kinds(settings), *extra_kinds)
        ]
        # Of the kinds that the guard reads.
        self._guarding = [each for each in self.reflectors if each.kind.fact in (Node, Pod)]

    def start(self, stop: threading.Event) -> None:
        """Start one reflector thread per kind. The threads end when `stop` is set."""
        for reflector in self.reflectors:
            name = f"reflector-{reflector.kind.plural}"
            threading.Thread(target=reflector.run, args=(stop,), name=name, daemon=True).start()

    def synced(self) -> bool:
        """Return whether each required kind and each kind that opts in VMs was listed at least once."""
        return all(map(Reflector.is_ready, self.reflectors))

    def query(self, question: Callable[[Store], T]) -> T:
        """Query the store while no other thread changes it. The query must be short: decisions wait for it."""
        with self._lock:
            self.store.stale = self._stale_resources()
            return question(self.store)

    def inject(self, request: JsonObject, seconds: float = READ_BUDGET) -> Injection | None:
        """Decide on a request, and reserve the resources of a pinned pod, or of one that prefers a node, immediately.

        Objects that the caches lack are read live, within `seconds` and at most READ_BUDGET. With 0 seconds nothing is
        read, and the result is None if an object is missing.
        """
        vm = _vm_key_of(request)
        found = self._decide(request, vm, seconds)
        if found is None:
            return None
        # Outside the lock: a patch of a large affinity takes a second, and other decisions would wait.
        injection = with_patch(found.injection, request, self._settings)
        if found.reserves and not injection.patch:
            with self._lock:
                self._reservations.give_back(vm, found.withdrawn)
        return injection

    def _decide(self, request: JsonObject, vm: Key, seconds: float) -> _Decided | None:
        overlay = Overlay(self.store, self.reader.is_absent)
        deadline = self._clock() + min(seconds, READ_BUDGET)
        for _ in range(READ_ROUNDS):
            with self._lock:
                if found := self._decide_once(request, vm, overlay):
                    return found
            if not seconds:
                return None
            # Outside the lock, so that other decisions don't wait for the reads.
            overlay.fill(lambda miss: self.reader.read(miss, deadline - self._clock()))
        with self._lock:
            return self._decide_once(request, vm, overlay, accept_missing=True)

    def _decide_once(
        self, request: JsonObject, vm: Key, overlay: Overlay, *, accept_missing: bool = False
    ) -> _Decided | None:
        self.store.stale = self._stale_resources()
        # A pod may be rejected after an earlier decision and then retried: its own reservation must not block it.
        withdrawn = self._reservations.withdraw(vm)
        overlay.refresh(self.store)
        injection = without_patch(request, overlay, self._settings)
        if overlay.missed and not accept_missing:
            self._reservations.restore(withdrawn)
            return None
        changes_pod = (
            injection.decision.outcome is not Outcome.UNCHANGED and self._settings.action is not Action.OBSERVE
        )
        reserves = changes_pod and injection.decision.reservation is not None
        if request.get("dryRun") is True:
            self._reservations.restore(withdrawn)
            return _Decided(injection, withdrawn, reserves=False)
        self._reservations.settle(vm, withdrawn, injection.decision, reserves=reserves)
        return _Decided(injection, withdrawn, reserves)

    def _stale_resources(self) -> tuple[str, ...]:
        now = self._clock()
        return tuple(
            reflector.kind.plural
            for reflector in self._guarding
            if reflector.health.last_contact is not None and now - reflector.health.last_contact > STALE_SECONDS
        )


def _vm_key_of(request: JsonObject) -> Key:
    """Return the key that `vm_key` will give the created pod. A pod without a VMI and a name gets the request's uid."""
    pod = mapping(request, "object")
    return namespace_of(request), vmi_uid(pod) or text(pod, "metadata", "name") or text(request, "uid")
