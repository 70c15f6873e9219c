"""Decide on a live cluster: caches that follow it with watches, and reservations for pinned pods."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import islice
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from webhook.catalog.kinds import kinds
from webhook.catalog.store import Store
from webhook.cluster.client import ClusterClient
from webhook.cluster.reflector import Reflector
from webhook.placement.catalog import Catalog, CatalogProxy
from webhook.placement.guard.comparison_limit import MAX_COMPARISONS
from webhook.placement.guard.feasibility import STALE_MINUTES
from webhook.placement.injector import Injection, inject
from webhook.placement.objects.facts import Claim, Key, Node, Pod, ShareManager, VirtualMachineInstance, Volume
from webhook.placement.objects.fields import text
from webhook.placement.objects.pod import MAX_NAME
from webhook.placement.reasons import Outcome
from webhook.placement.review import Review
from webhook.placement.settings import Settings

STALE_SECONDS = STALE_MINUTES * 60.0
# If one of these kinds is stale, the pod may be pinned to the node of an earlier share-manager, or to a full node.
GUARDING = (Claim, Volume, ShareManager, Node, Pod, VirtualMachineInstance)

T = TypeVar("T")


class Live:
    """Decides from caches that mirror a live cluster. Thread-safe."""

    def __init__(self, cluster: ClusterClient, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self.store = Store(clock=clock)
        self._settings = settings
        self._clock = clock
        # Decisions hold the lock while they read, reflectors while they write. Each takes a fraction of a millisecond.
        self._lock = threading.Lock()
        self.reflectors = [
            Reflector(kind, cluster, self.store, self._lock, clock) for kind in kinds(settings.longhorn_namespace)
        ]
        self._guarding = [each for each in self.reflectors if each.kind.fact in GUARDING]
        self._is_synced = False
        self.store.stale_resources = self._stale_kinds

    def start(self, stop: threading.Event) -> None:
        """Start one reflector thread per kind. The threads end when `stop` is set."""
        for reflector in self.reflectors:
            name = f"reflector-{reflector.kind.plural}"
            threading.Thread(target=reflector.run, args=(stop,), name=name, daemon=True).start()

    def synced(self) -> bool:
        """Return whether each required kind and each kind that opts in VMs was listed at least once."""
        # Once true, it remains so. Each review asks.
        self._is_synced = self._is_synced or all(map(Reflector.is_ready, self.reflectors))
        return self._is_synced

    def query(self, question: Callable[[Store], T]) -> T:
        """Query the store while no other thread changes it. The query must be short: decisions wait for it."""
        with self._lock:
            return question(self.store)

    def catalog(self) -> Catalog:
        """Return the caches as a catalog each of whose queries holds the lock on its own.

        No decision waits while its reader evaluates what the queries return. The objects may change in between, as they
        do between the watches of two kinds.
        """
        return _LockedCatalog(self)

    def inject(self, review: Review) -> Injection:
        """Decide on a review. Reserve the resources of a pod that requires or prefers a node immediately.

        The decision is `unseen` if the caches lack a claim of the pod, the PV of a claim without a node, or the VMI.
        The watches show a new object after about 30 ms. Longhorn creates the ShareManager with the volume, and runs it
        only after a pod has mounted the claim: a ShareManager that the caches lack serves no volume yet.
        """
        vm = _vm_key_of(review)
        store = self.store
        reservations = self.store.reservations
        with self._lock:
            # A pod may be rejected after an earlier decision and then retried: its own reservation must not block it.
            withdrawn = reservations.withdraw(vm)
            injection = inject(review, store, self._settings)
            decision = injection.decision
            known = store.pins.knows_vmi(*vm)
            if review.dry_run:
                reservations.restore(withdrawn)
            else:
                changes_pod = decision.outcome is not Outcome.UNCHANGED and injection.applied
                reservations.settle(vm, withdrawn, decision, changes_pod=changes_pod, known=known)
        # The pod of an unknown VMI reserves nothing.
        unseen = decision.reservation is not None and not known and not review.dry_run
        unseen = unseen or any(each.unseen and not each.node for each in decision.claims)
        return replace(injection, unseen=True) if unseen else injection

    def _stale_kinds(self) -> list[str]:
        since = self._clock() - STALE_SECONDS
        return [
            each.kind.plural
            for each in self._guarding
            if each.health.last_contact is not None and each.health.last_contact < since
        ]


class _LockedCatalog(CatalogProxy):
    def __init__(self, live: Live) -> None:
        super().__init__(live.store)
        self._live = live
        self._mounting_pods = cache(super().mounting_pods)

    def ask(self, query: str, *arguments: Any, **options: Any) -> Any:
        return self._live.query(lambda store: _copied(getattr(store, query)(*arguments, **options)))

    def mounting_pods(self, namespace: str, claim: str) -> Iterable[Pod]:
        return self._mounting_pods(namespace, claim)  # each claim's 128 pods once, for all its VMs


def _copied(answer: T) -> T:
    """Copy a collection, which may change once the lock is released, as far as one evaluation may compare it."""
    if isinstance(answer, Mapping):
        return cast(T, dict(answer))
    return cast(T, tuple(islice(answer, MAX_COMPARISONS + 1))) if isinstance(answer, Iterable) else answer


def _vm_key_of(review: Review) -> Key:
    """Return the key that `vm_key` will give the created pod. A pod without a VMI and a name gets the review's uid."""
    manifest = review.manifest
    name = manifest.vmi_uid or text(manifest.metadata, "name") or review.uid
    return manifest.namespace[:MAX_NAME], name[:MAX_NAME]  # a made-up review may have longer ones
