"""The latest known objects, kind by kind, each with the indexes that a decision asks for."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from webhook.cluster.objects import Fact
from webhook.placement.catalog import Key, Pod, Volume

F = TypeVar("F", bound=Fact)


def vm_key(pod: Pod) -> Key:
    """Return a pod's namespace and the uid of its VMI, else its name: what it is known by before it is created."""
    return pod.namespace, pod.labels.get("kubevirt.io/created-by") or pod.name


def _is_launcher(pod: Pod) -> bool:
    return pod.labels.get("kubevirt.io") == "virt-launcher"


class Table(Generic[F]):
    """The objects of one kind, found by namespace and name."""

    def __init__(self) -> None:
        self._by_key: dict[Key, F] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._by_key)

    def get(self, key: Key) -> F | None:
        """Find one object."""
        return self._by_key.get(key)

    def put(self, fact: F) -> None:
        """Keep an object in place of the one of the same name."""
        self._by_key[fact.key] = fact

    def remove(self, key: Key) -> F | None:
        """Forget an object and return it; None where there is none."""
        return self._by_key.pop(key, None)

    def clear_stepwise(self) -> None:
        """Forget one object after the other: at once, 50,000 pods are one step of Python's, and all wait for 0.2 s."""
        for key in list(self):
            self.remove(key)


class Volumes(Table[Volume]):
    """The PVs, found by the Longhorn volume as well."""

    def __init__(self) -> None:
        super().__init__()
        self._by_handle: dict[str, Volume] = {}

    def put(self, fact: Volume) -> None:
        """Keep a PV in place of the one of the same name."""
        self.remove(fact.key)
        super().put(fact)
        if fact.handle:
            self._by_handle[fact.handle] = fact

    def remove(self, key: Key) -> Volume | None:
        """Forget a PV. Another one of the same volume, which a static PV may be, stays."""
        gone = super().remove(key)
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
        self._repelling: defaultdict[str, dict[Key, Pod]] = defaultdict(dict)
        self._awaited: dict[Key, Pod] = {}
        self._by_claim: defaultdict[Key, dict[Key, Pod]] = defaultdict(dict)
        self._by_uid: dict[str, Pod] = {}
        self._vms: dict[Key, Pod] = {}
        self._serving: defaultdict[Key, dict[Key, Pod]] = defaultdict(dict)

    def put(self, fact: Pod) -> None:
        """Keep a pod in place of the one of the same name."""
        self.remove(fact.key)
        super().put(fact)
        for index in self._indexes(fact):
            index[fact.key] = fact
        if _is_launcher(fact):
            self._by_uid[fact.uid] = fact
            self._vms[vm_key(fact)] = fact
        self._count(fact, 1)

    def remove(self, key: Key) -> Pod | None:
        """Forget a pod and return it; None where there is none."""
        gone = super().remove(key)
        if gone is not None:
            for index in self._indexes(gone):
                index.pop(key, None)
            for table, place in self._places(gone):  # or the namespaces of years would pile up
                if not table[place]:
                    del table[place]
            self._by_uid.pop(gone.uid, None)
            self._vms.pop(vm_key(gone), None)
            self._count(gone, -1)
        return gone

    def shows(self, vm: Key) -> bool:
        """Say whether a VM's pod is here, by what `vm_key` calls it."""
        return vm in self._vms

    def _indexes(self, pod: Pod) -> Iterator[dict[Key, Pod]]:
        if pod.effective_node and not pod.node:
            yield self._awaited
        for table, place in self._places(pod):
            yield table[place]

    def _places(self, pod: Pod) -> Iterator[tuple[defaultdict[Any, dict[Key, Pod]], Any]]:
        if pod.effective_node:
            yield self._by_namespace, pod.namespace
            for namespace in {
                name for term in pod.anti_affinity for name in (*term.namespaces, *[""] * term.any_namespace)
            }:
                yield self._repelling, namespace
        for claim in pod.claims:
            yield self._by_claim, (pod.namespace, claim)
        if pod.labels.get("longhorn.io/component") == "share-manager":
            yield self._serving, (pod.namespace, pod.labels.get("longhorn.io/share-manager", ""))

    def _count(self, pod: Pod, sign: int) -> None:
        if pod.effective_node:
            for resource, amount in pod.requests.items():
                self._load[pod.effective_node][resource] += sign * amount

    def requested(self, node: str, excluding: Key) -> Mapping[str, int]:
        """Sum up what is asked for on a node."""
        total: Mapping[str, int] = self._load.get(node, {})
        own = self.get(excluding)
        if own is None or own.effective_node != node:
            return total
        return {resource: amount - own.requests.get(resource, 0) for resource, amount in total.items()}

    def placed(self, namespaces: Collection[str]) -> Iterator[Pod]:
        """List the pods of some namespaces that have a site."""
        return (pod for namespace in namespaces for pod in self._by_namespace.get(namespace, {}).values())

    def has_unbound(self, node: str) -> bool:
        """Say whether a pod is pinned to a node and not bound to it yet."""
        return any(pod.effective_node == node for pod in self._awaited.values())

    def with_anti_affinity(self, namespace: str) -> Iterable[Pod]:
        """List the pods that have a site and a required anti-affinity to pods of a namespace: see Catalog."""
        return self._repelling.get(namespace, {}).values()

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
