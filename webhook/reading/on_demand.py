"""A catalog for the commands, which decide on one pod: it reads an object from the cluster on first use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, TypeVar, cast

from webhook.cluster.caches.kinds import PODS, VM_POD_SELECTOR, all_kinds, object_path
from webhook.cluster.caches.pod_tables import PlacedPods
from webhook.cluster.caches.store import Store
from webhook.cluster.client import ClusterClient, ClusterError
from webhook.placement.objects import facts
from webhook.placement.objects.facts import Fact, Key, Pod
from webhook.placement.objects.longhorn import COMPONENT_LABEL, SHARE_MANAGER, VOLUME_LABEL
from webhook.reading.api import answered, list_raw

# These statuses leave the objects unknown, like in the webhook: without CSINodes, no claim counts as limited, and
# without VMIs, each one counts as known.
_TOLERATED: dict[type[Fact], tuple[int, ...]] = {
    facts.CSINode: (HTTPStatus.FORBIDDEN,),
    facts.VirtualMachine: (HTTPStatus.FORBIDDEN,),
    facts.VirtualMachineInstance: (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND),
}


def _skip(_name: str, _error: str) -> None:
    """Ignore a malformed object, like the webhook."""


Query = TypeVar("Query", bound=Callable[..., Any])


def _reads_one(query: Query, fact: type[Fact]) -> Query:
    """Return a query that first reads an object. Its arguments are the object's key, or only the name."""

    def answer(store: OnDemand, *key: str) -> Any:
        store.read(fact, (key[0] if len(key) == 2 else "", key[-1]))
        return query(store, *key)

    return cast(Query, answer)


def _lists(query: Query, fact: type[Fact]) -> Query:
    """Return a query that first lists all objects of a kind: the API server can't select by what the query asks for."""

    def answer(store: OnDemand, *arguments: Any, **options: Any) -> Any:
        store.list_objects(fact)
        return query(store, *arguments, **options)

    return cast(Query, answer)


class OnDemand(Store):
    """A store whose queries read missing objects. Each query raises BadInput if the API server request fails."""

    def __init__(self, cluster: ClusterClient, longhorn: str) -> None:
        super().__init__(taken_at=datetime.now(UTC))
        self._cluster = cluster
        self._kinds = {kind.fact: kind for kind in all_kinds(longhorn)}
        self._queried: set[tuple[Any, ...]] = set()

    def read(self, fact: type[Fact], key: Key) -> None:
        """Read one object, unless that has been done."""
        if self._is_first_query(fact, key):
            kind = self._kinds[fact]
            with suppress(ClusterError), answered(*_TOLERATED.get(fact, ())):
                if (item := self._cluster.get(object_path(kind, key))) and (found := kind.extract(item, _skip)):
                    self.put(found)

    def list_objects(self, fact: type[Fact], path: str = "", **query: str) -> None:
        """Read all objects of a kind, or those of a path and a query, unless that has been done."""
        kind = self._kinds[fact]
        if self._is_first_query(fact, path, *query.items()):
            tolerated = _TOLERATED.get(fact, ())
            with answered():
                items = list_raw(self._cluster, path or kind.path, tolerated, **kind.query, **query)
            for found in kind.read_all(items, _skip):
                self.put(found)

    def _is_first_query(self, *query: Any) -> bool:
        if query in self._queried:
            return False
        self._queried.add(query)
        return True

    claim = _reads_one(Store.claim, facts.Claim)
    volume = _reads_one(Store.volume, facts.Volume)
    volumes_by_handle = _lists(Store.volumes_by_handle, facts.Volume)
    share_manager = _reads_one(Store.share_manager, facts.ShareManager)
    namespace = _reads_one(Store.namespace, facts.Namespace)
    namespace_opt_in = _reads_one(Store.namespace_opt_in, facts.Namespace)
    all_namespaces = _lists(Store.all_namespaces, facts.Namespace)
    storage_class_opts_in = _reads_one(Store.storage_class_opts_in, facts.StorageClass)
    node = _reads_one(Store.node, facts.Node)
    is_reported = _lists(Store.is_reported, facts.Node)
    csi_node = _reads_one(Store.csi_node, facts.CSINode)
    virtual_machine = _reads_one(Store.virtual_machine, facts.VirtualMachine)
    vmi = _lists(Store.vmi, facts.VirtualMachineInstance)  # one alone would make all others unknown
    other_mounting_pods = _lists(Store.other_mounting_pods, Pod)
    requested = _lists(Store.requested, Pod)
    nominated_pods = _lists(Store.nominated_pods, Pod)
    expects_pods = _lists(Store.expects_pods, Pod)
    placed_pods = _lists(Store.placed_pods, Pod)
    repelling_terms = _lists(Store.repelling_terms, Pod)
    oversized_pods = _lists(Store.oversized_pods, Pod)

    def share_manager_pods(self, namespace: str, volume: str) -> Collection[Pod]:
        """Read the share-manager pods of a volume."""
        selector = f"{COMPONENT_LABEL}={SHARE_MANAGER},{VOLUME_LABEL}={volume}"
        self.list_objects(Pod, PODS.path_in(namespace), labelSelector=selector)
        return super().share_manager_pods(namespace, volume)

    def mounting_pods(self, namespace: str, claim: str) -> Iterable[Pod]:
        """Read the VM pods of a namespace, and return the virt-launcher pods that mount a claim."""
        self.list_objects(Pod, PODS.path_in(namespace), labelSelector=VM_POD_SELECTOR)
        return super().mounting_pods(namespace, claim)

    def has_nodes(self) -> bool:
        """Return True without a read: a cluster without nodes has no pods either."""
        return True

    def counting_pins(self) -> PlacedPods:
        """Return the pods that count on the node of their pin. Reads all VMIs, if a pod has a pin."""
        if len(self.pins):
            self.list_objects(facts.VirtualMachineInstance)
        return super().counting_pins()
