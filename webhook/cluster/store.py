"""The catalog that a decision reads: facts put in, questions answered."""

from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from typing import Any

from webhook.cluster.objects import Fact
from webhook.cluster.tables import Pods, Table, Volumes, vm_key
from webhook.placement.catalog import Claim, Key, Node, Pod, ShareManager, Volume

TABLES: dict[type[Fact], str] = {
    Claim: "claims",
    Volume: "volumes",
    ShareManager: "share_managers",
    Node: "nodes",
    Pod: "pods",
}


class Store:
    """The catalog: facts put in, questions answered (see catalog.Catalog).

    Not safe between threads: who writes while others read holds a lock.
    """

    def __init__(self, facts: Iterable[Fact] = ()) -> None:
        self.claims = Table[Claim]()
        self.volumes = Volumes()
        self.share_managers = Table[ShareManager]()
        self.nodes = Table[Node]()
        self.pods = Pods()
        # Pods that we have just pinned and that the cluster does not show yet, by namespace and VM.
        self.reservations = Pods()
        for fact in facts:
            self.put(fact)

    def put(self, fact: Fact) -> None:
        """Keep a fact in place of what was known of the same object."""
        self.table(type(fact)).put(fact)
        if isinstance(fact, Pod):
            self.reservations.remove(vm_key(fact))

    def table(self, kind: type[Fact]) -> Table[Any]:
        """Return the table of one kind."""
        found: Table[Any] = getattr(self, TABLES[kind])
        return found

    def new_table(self, kind: type[Fact], facts: Iterable[Fact]) -> Table[Any]:
        """Return a table of one kind with these objects in it, which nobody sees yet."""
        fresh = type(self.table(kind))()
        for fact in facts:
            fresh.put(fact)
        return fresh

    def swap_table(self, kind: type[Fact], fresh: Table[Any]) -> Table[Any]:
        """Know the objects of this table and no others of their kind, from one moment to the next; return the old."""
        gone = self.table(kind)
        setattr(self, TABLES[kind], fresh)
        if isinstance(fresh, Pods):
            for vm in [vm for vm in self.reservations if fresh.shows(vm)]:
                self.reservations.remove(vm)
        return gone

    def claim(self, namespace: str, name: str) -> Claim | None:
        """Find a claim."""
        return self.claims.get((namespace, name))

    def volume(self, name: str) -> Volume | None:
        """Find a PV by its own name."""
        return self.volumes.get(("", name))

    def volume_by_handle(self, handle: str) -> Volume | None:
        """Find the PV of a Longhorn volume: by its handle, else by its name."""
        return self.volumes.serving(handle)

    def share_manager(self, namespace: str, volume: str) -> ShareManager | None:
        """Find the ShareManager of a Longhorn volume."""
        return self.share_managers.get((namespace, volume))

    def share_manager_pods(self, namespace: str, volume: str) -> Collection[Pod]:
        """List the share-manager pods of a Longhorn volume, in order of their names."""
        return self.pods.serving(namespace, volume)

    def mounting_pods(self, namespace: str, claim: str) -> Collection[Pod]:
        """List the virt-launcher pods that mount a claim, directly or through their hotplug pod."""
        return self.pods.mounting(namespace, claim)

    def node(self, name: str) -> Node | None:
        """Find a node."""
        return self.nodes.get(("", name))

    def has_nodes(self) -> bool:
        """Say whether any node is known at all."""
        return len(self.nodes) > 0

    def has_unbound_pins(self, node: str) -> bool:
        """Say whether a pod is pinned to a node and not bound to it yet."""
        return self.pods.has_unbound(node) or self.reservations.has_unbound(node)

    def requested(self, node: str, excluding: Key) -> Mapping[str, int]:
        """Sum up the effective requests of the pods whose site is `node`, without the pod `excluding`."""
        known, reservations = self.pods.requested(node, excluding), self.reservations.requested(node, excluding)
        if not reservations:
            return known
        return {name: known.get(name, 0) + reservations.get(name, 0) for name in known.keys() | reservations.keys()}

    def placed_pods(self, namespaces: Collection[str]) -> Iterable[Pod]:
        """List the pods of some namespaces that have a site."""
        return chain(self.pods.placed(namespaces), self.reservations.placed(namespaces))

    def pods_with_anti_affinity(self, namespace: str) -> Iterable[Pod]:
        """List the pods that have a site and a required anti-affinity to pods of a namespace: see Catalog."""
        return chain(self.pods.with_anti_affinity(namespace), self.reservations.with_anti_affinity(namespace))
