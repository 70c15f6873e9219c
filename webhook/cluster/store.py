"""The in-memory catalog that decisions read: facts about Kubernetes objects, and queries on them."""

from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from typing import Any

from webhook.cluster.objects import Fact
from webhook.cluster.tables import Pods, Table, Volumes, vm_key
from webhook.placement.catalog import Claim, Key, Node, Pod, ShareManager, Volume

TABLE_NAMES: dict[type[Fact], str] = {
    Claim: "claims",
    Volume: "volumes",
    ShareManager: "share_managers",
    Node: "nodes",
    Pod: "pods",
}


class Store:
    """An in-memory `Catalog` (see `webhook.placement.catalog`).

    Not thread-safe: readers and writers must share a lock.
    """

    def __init__(self, facts: Iterable[Fact] = ()) -> None:
        self.claims = Table[Claim]()
        self.volumes = Volumes()
        self.share_managers = Table[ShareManager]()
        self.nodes = Table[Node]()
        self.pods = Pods()
        # Pods that the webhook just pinned and that the cache doesn't have yet, by namespace and VM.
        self.reservations = Pods()
        for fact in facts:
            self.put(fact)

    def put(self, fact: Fact) -> None:
        """Store a fact, in place of an older fact about the same object. A pod also removes its reservation."""
        self.table(type(fact)).put(fact)
        if isinstance(fact, Pod):
            self.reservations.remove(vm_key(fact))

    def table(self, kind: type[Fact]) -> Table[Any]:
        """Return the table of one kind."""
        found: Table[Any] = getattr(self, TABLE_NAMES[kind])
        return found

    def new_table(self, kind: type[Fact], facts: Iterable[Fact]) -> Table[Any]:
        """Return a new table of one kind with these facts. Readers see it only after `swap_table`."""
        new = type(self.table(kind))()
        for fact in facts:
            new.put(fact)
        return new

    def swap_table(self, kind: type[Fact], new: Table[Any]) -> Table[Any]:
        """Replace the table of one kind and return the old table. A pod in the new table removes its reservation."""
        old = self.table(kind)
        setattr(self, TABLE_NAMES[kind], new)
        if isinstance(new, Pods):
            for vm in [vm for vm in self.reservations if new.has_vm(vm)]:
                self.reservations.remove(vm)
        return old

    def claim(self, namespace: str, name: str) -> Claim | None:
        """Find a claim."""
        return self.claims.get((namespace, name))

    def volume(self, name: str) -> Volume | None:
        """Find a PV by its own name."""
        return self.volumes.get(("", name))

    def volumes_by_handle(self, handle: str) -> Collection[Volume]:
        """List the PVs of a Longhorn volume: those with its handle, otherwise the one with its name."""
        return self.volumes.with_handle(handle)

    def share_manager(self, namespace: str, volume: str) -> ShareManager | None:
        """Find the ShareManager of a Longhorn volume."""
        return self.share_managers.get((namespace, volume))

    def share_manager_pods(self, namespace: str, volume: str) -> Collection[Pod]:
        """List the share-manager pods of a Longhorn volume, sorted by name."""
        return self.pods.serving(namespace, volume)

    def mounting_pods(self, namespace: str, claim: str) -> Collection[Pod]:
        """List the virt-launcher pods that mount a claim, directly or through their hotplug pod."""
        return self.pods.mounting(namespace, claim)

    def node(self, name: str) -> Node | None:
        """Find a node."""
        return self.nodes.get(("", name))

    def has_nodes(self) -> bool:
        """Return whether any node is known."""
        return len(self.nodes) > 0

    def has_unbound_pins(self, node: str) -> bool:
        """Return whether a pod is pinned to a node and not bound to it yet."""
        return self.pods.has_unbound(node) or self.reservations.has_unbound(node)

    def requested(self, node: str, excluding: Key) -> Mapping[str, int]:
        """Sum up the effective requests of the pods whose effective node is `node`, without the pod `excluding`."""
        known, reservations = self.pods.requested(node, excluding), self.reservations.requested(node, excluding)
        if not reservations:
            return known
        return {name: known.get(name, 0) + reservations.get(name, 0) for name in known.keys() | reservations.keys()}

    def placed_pods(self, namespaces: Collection[str]) -> Iterable[Pod]:
        """List the pods of some namespaces that have an effective node."""
        return chain(self.pods.placed(namespaces), self.reservations.placed(namespaces))

    def pods_with_anti_affinity(self, namespace: str) -> Iterable[Pod]:
        """List the pods with an effective node and a required anti-affinity to pods of a namespace (see `Catalog`)."""
        return chain(self.pods.with_anti_affinity(namespace), self.reservations.with_anti_affinity(namespace))
