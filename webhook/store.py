"""The latest known objects and their indexes: the catalog that a decision reads."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Generic, TypeVar

from webhook.catalog import Claim, Key, Node, Pod, ShareManager, Volume
from webhook.objects import Fact

F = TypeVar("F", bound=Fact)


def _is_launcher(pod: Pod) -> bool:
    return pod.labels.get("kubevirt.io") == "virt-launcher"


class Table(Generic[F]):
    """The objects of one kind, found by namespace and name."""

    def __init__(self) -> None:
        self._by_key: dict[Key, F] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: Key) -> F | None:
        """Find one object."""
        return self._by_key.get(key)

    def put(self, fact: F) -> None:
        """Keep an object in place of the one of the same name."""
        self._by_key[fact.key] = fact

    def drop(self, key: Key) -> F | None:
        """Forget an object and return it; None where there is none."""
        return self._by_key.pop(key, None)


class Volumes(Table[Volume]):
    """The PVs, found by the Longhorn volume as well."""

    def __init__(self) -> None:
        super().__init__()
        self._by_handle: dict[str, Volume] = {}

    def put(self, fact: Volume) -> None:
        """Keep a PV in place of the one of the same name."""
        self.drop(fact.key)
        super().put(fact)
        if fact.handle:
            self._by_handle[fact.handle] = fact

    def drop(self, key: Key) -> Volume | None:
        """Forget a PV. Another one of the same volume, which a static PV may be, stays."""
        gone = super().drop(key)
        if gone is not None and self._by_handle.get(gone.handle) is gone:
            del self._by_handle[gone.handle]
        return gone

    def serving(self, handle: str) -> Volume | None:
        """Find the PV of a Longhorn volume: by its handle, else by its name."""
        return self._by_handle.get(handle) or self.get(("", handle))


class Pods(Table[Pod]):
    """The unfinished pods, found by namespace, site, claim, owner and volume served as well."""

    def __init__(self) -> None:
        super().__init__()
        self._by_namespace: defaultdict[str, dict[Key, Pod]] = defaultdict(dict)
        self._load: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._repelling: dict[Key, Pod] = {}
        self._by_claim: defaultdict[Key, dict[Key, Pod]] = defaultdict(dict)
        self._by_uid: dict[str, Pod] = {}
        self._serving: defaultdict[Key, dict[Key, Pod]] = defaultdict(dict)

    def put(self, fact: Pod) -> None:
        """Keep a pod in place of the one of the same name."""
        self.drop(fact.key)
        super().put(fact)
        for index in self._indexes(fact):
            index[fact.key] = fact
        if _is_launcher(fact):
            self._by_uid[fact.uid] = fact
        self._count(fact, 1)

    def drop(self, key: Key) -> Pod | None:
        """Forget a pod and return it; None where there is none."""
        gone = super().drop(key)
        if gone is not None:
            for index in self._indexes(gone):
                index.pop(key, None)
            self._by_uid.pop(gone.uid, None)
            self._count(gone, -1)
        return gone

    def _indexes(self, pod: Pod) -> Iterator[dict[Key, Pod]]:
        if pod.site:
            yield self._by_namespace[pod.namespace]
        if pod.site and pod.repels:
            yield self._repelling
        for claim in pod.claims:
            yield self._by_claim[pod.namespace, claim]
        if pod.labels.get("longhorn.io/component") == "share-manager":
            yield self._serving[pod.namespace, pod.labels.get("longhorn.io/share-manager", "")]

    def _count(self, pod: Pod, sign: int) -> None:
        if pod.site:
            for resource, amount in pod.requests.items():
                self._load[pod.site][resource] += sign * amount

    def load(self, node: str, besides: Key) -> Mapping[str, int]:
        """Sum up what is asked for on a node."""
        total: Mapping[str, int] = self._load.get(node, {})
        own = self.get(besides)
        if own is None or own.site != node:
            return total
        return {resource: amount - own.requests.get(resource, 0) for resource, amount in total.items()}

    def placed(self, namespaces: Collection[str]) -> Iterator[Pod]:
        """List the pods of some namespaces that have a site."""
        return (pod for namespace in namespaces for pod in self._by_namespace.get(namespace, {}).values())

    def repelling(self) -> Iterable[Pod]:
        """List the pods that have a site and a required pod anti-affinity."""
        return self._repelling.values()

    def serving(self, namespace: str, volume: str) -> list[Pod]:
        """List the share-manager pods of a volume, in order of their names."""
        return sorted(self._serving.get((namespace, volume), {}).values(), key=lambda pod: pod.key)

    def mounting(self, namespace: str, claim: str) -> list[Pod]:
        """List the virt-launcher pods that mount a claim, themselves or through a hotplug pod that they own."""
        found: dict[Key, Pod] = {}
        for pod in self._by_claim.get((namespace, claim), {}).values():
            # A hotplug pod that is going unplugs its disk.
            owners = [self._by_uid[uid] for uid in pod.owners if uid in self._by_uid] if pod.alive else []
            for launcher in (pod, *owners):
                if _is_launcher(launcher):
                    found[launcher.key] = launcher
        return list(found.values())


TABLES: dict[type[Fact], str] = {
    Claim: "claims",
    Volume: "volumes",
    ShareManager: "share_managers",
    Node: "nodes",
    Pod: "pods",
}


def vm_of(pod: Pod) -> Key:
    """Return a pod's namespace and the uid of its VMI, else its name: what it is known by before it is created."""
    return pod.namespace, pod.labels.get("kubevirt.io/created-by") or pod.name


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
        self.reserved = Pods()
        for fact in facts:
            self.put(fact)

    def put(self, fact: Fact) -> None:
        """Keep a fact in place of what was known of the same object."""
        self.table(type(fact)).put(fact)
        if isinstance(fact, Pod):
            self.reserved.drop(vm_of(fact))

    def table(self, kind: type[Fact]) -> Table[Any]:
        """Return the table of one kind."""
        found: Table[Any] = getattr(self, TABLES[kind])
        return found

    def replace(self, kind: type[Fact], facts: Iterable[Fact]) -> None:
        """Know these objects of one kind, and no others, from one moment to the next."""
        fresh = type(self.table(kind))()
        for fact in facts:
            fresh.put(fact)
            if isinstance(fact, Pod):
                self.reserved.drop(vm_of(fact))
        setattr(self, TABLES[kind], fresh)

    def claim(self, namespace: str, name: str) -> Claim | None:
        """Find a claim."""
        return self.claims.get((namespace, name))

    def volume(self, name: str) -> Volume | None:
        """Find a PV by its own name."""
        return self.volumes.get(("", name))

    def volume_served(self, handle: str) -> Volume | None:
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

    def knows_nodes(self) -> bool:
        """Say whether any node is known at all."""
        return len(self.nodes) > 0

    def load(self, node: str, besides: Key) -> Mapping[str, int]:
        """Sum up the effective requests of the pods whose site is `node`, without the pod `besides`."""
        known, reserved = self.pods.load(node, besides), self.reserved.load(node, besides)
        if not reserved:
            return known
        return {name: known.get(name, 0) + reserved.get(name, 0) for name in known.keys() | reserved.keys()}

    def placed_pods(self, namespaces: Collection[str]) -> Iterable[Pod]:
        """List the pods of some namespaces that have a site."""
        return chain(self.pods.placed(namespaces), self.reserved.placed(namespaces))

    def repelling_pods(self) -> Iterable[Pod]:
        """List the pods that have a site and a required pod anti-affinity."""
        return chain(self.pods.repelling(), self.reserved.repelling())
