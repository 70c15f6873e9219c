"""In-memory tables of Kubernetes objects, one per kind, with the indexes that decisions need."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from webhook.cluster.claim_users import users_without_vm
from webhook.cluster.objects import Fact
from webhook.placement.facts import Key, Pod, Volume
from webhook.placement.longhorn import COMPONENT_LABEL, SHARE_MANAGER, VOLUME_LABEL

F = TypeVar("F", bound=Fact)


def vm_key(pod: Pod) -> Key:
    """Return the namespace and the VMI's uid, else the pod's name. Unlike the pod's uid, both exist before the pod."""
    return pod.namespace, pod.vmi_uid or pod.name


class Table(Generic[F]):
    """The objects of one kind, keyed by namespace and name."""

    def __init__(self) -> None:
        self._by_key: dict[Key, F] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._by_key)

    def values(self) -> Collection[F]:
        """List all objects."""
        return self._by_key.values()

    def get(self, key: Key) -> F | None:
        """Find one object."""
        return self._by_key.get(key)

    def put(self, fact: F) -> None:
        """Store an object, in place of an older one with the same key."""
        self._by_key[fact.key] = fact

    def remove(self, key: Key) -> F | None:
        """Remove and return an object; return None if it is missing."""
        return self._by_key.pop(key, None)

    def clear_stepwise(self) -> None:
        """Remove the objects one by one.

        Python frees a dict of 50,000 pods in one uninterruptible step, which stops all threads for 0.2 s.
        """
        for key in list(self):
            self.remove(key)


class Volumes(Table[Volume]):
    """The PVs, also indexed by Longhorn volume."""

    def __init__(self) -> None:
        super().__init__()
        self._by_handle: defaultdict[str, dict[Key, Volume]] = defaultdict(dict)

    def put(self, fact: Volume) -> None:
        """Store a PV, in place of an older one with the same name."""
        self.remove(fact.key)
        super().put(fact)
        if fact.handle:
            self._by_handle[fact.handle][fact.key] = fact

    def remove(self, key: Key) -> Volume | None:
        """Remove and return a PV. Another PV of the same volume, such as a static PV, stays indexed."""
        removed = super().remove(key)
        if removed is not None and removed.handle:
            del self._by_handle[removed.handle][key]
            if not self._by_handle[removed.handle]:
                del self._by_handle[removed.handle]
        return removed

    def with_handle(self, handle: str) -> tuple[Volume, ...]:
        """List the PVs of a Longhorn volume: those with its handle, otherwise the one with its name."""
        named = self.get(("", handle))
        return tuple(self._by_handle.get(handle, {}).values()) or ((named,) if named else ())


class Load(Table[Pod]):
    """Pods with the sum of their requests on each node."""

    def __init__(self) -> None:
        super().__init__()
        self._by_node: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))

    def put(self, fact: Pod) -> None:
        """Store a pod, in place of an older one with the same key."""
        self.remove(fact.key)
        super().put(fact)
        if fact.effective_node:
            load = self._by_node[fact.effective_node]
            for resource, amount in fact.requests.items():
                load[resource] += amount

    def remove(self, key: Key) -> Pod | None:
        """Remove and return a pod; return None if it is missing."""
        removed = super().remove(key)
        if removed is not None and removed.effective_node:
            load = self._by_node[removed.effective_node]
            for resource, amount in removed.requests.items():
                load[resource] -= amount
                if not load[resource]:  # otherwise resources of made-up pods would pile up
                    del load[resource]
            if not load:  # nor may the entries of deleted nodes, over the years
                del self._by_node[removed.effective_node]
        return removed

    def requested(self, node: str, excluding: Key) -> Mapping[str, int]:
        """Sum up the requests of the pods on a node, without the pod `excluding`."""
        total: Mapping[str, int] = self._by_node.get(node, {})
        own = self.get(excluding)
        if own is None or own.effective_node != node:
            return total
        return {resource: amount - own.requests.get(resource, 0) for resource, amount in total.items()}


class Pods(Load):
    """The unfinished pods, also indexed by namespace, effective node, claim, owner and served Longhorn volume."""

    def __init__(self) -> None:
        super().__init__()
        self._by_namespace: defaultdict[str, dict[Key, Pod]] = defaultdict(dict)
        self._by_repelled_namespace: defaultdict[str, dict[Key, Pod]] = defaultdict(dict)
        self._unbound: dict[Key, Pod] = {}
        self._stuck: dict[Key, Pod] = {}
        self._by_claim: defaultdict[Key, dict[Key, Pod]] = defaultdict(dict)
        self._launchers: dict[Key, Pod] = {}
        self._by_uid: dict[str, Pod] = {}
        self._by_vm: dict[Key, Pod] = {}
        self._serving: defaultdict[Key, dict[Key, Pod]] = defaultdict(dict)
        self._hotplug_pods: dict[Key, Pod] = {}
        self._without_vm: Mapping[Key, Sequence[Pod]] | None = None  # see `mounting_without_vm`

    def put(self, fact: Pod) -> None:
        """Store a pod, in place of an older one with the same key."""
        super().put(fact)
        self._without_vm = None
        key = fact.key
        for index in self._indexes(fact):
            index[key] = fact
        if fact.is_virt_launcher:
            self._by_uid[fact.uid] = fact
            self._by_vm[vm_key(fact)] = fact

    def remove(self, key: Key) -> Pod | None:
        """Remove and return a pod; return None if it is missing."""
        removed = super().remove(key)
        if removed is not None:
            self._without_vm = None
            for index in self._indexes(removed):
                index.pop(key, None)
            # Entries of deleted namespaces must not pile up either.
            for table, entry in self._index_entries(removed):
                if not table[entry]:
                    del table[entry]
            self._by_uid.pop(removed.uid, None)
            self._by_vm.pop(vm_key(removed), None)
        return removed

    def has_vm(self, vm: Key) -> bool:
        """Return whether the table has a pod of a VM; `vm` is a `vm_key`."""
        return vm in self._by_vm

    def unbound_pods(self) -> Collection[Pod]:
        """List the pods that are pinned or nominated to a node and not bound yet."""
        return self._unbound.values()

    def stuck(self) -> Collection[Pod]:
        """List the pods that the webhook pinned and for which the scheduler found no node."""
        return self._stuck.values()

    def _indexes(self, pod: Pod) -> Iterator[dict[Key, Pod]]:
        if pod.effective_node and not pod.node and not pod.prefers:
            yield self._unbound
        if pod.pin and pod.pin.unschedulable_since:
            yield self._stuck
        if pod.is_virt_launcher:
            yield self._launchers
        if pod.is_hotplug_pod:
            yield self._hotplug_pods
        for table, entry in self._index_entries(pod):
            yield table[entry]

    def _index_entries(self, pod: Pod) -> Iterator[tuple[defaultdict[Any, dict[Key, Pod]], Any]]:
        if pod.effective_node:
            yield self._by_namespace, pod.namespace
            for namespace in {
                name for term in pod.anti_affinity for name in (*term.namespaces, *[""] * term.has_namespace_selector)
            }:
                yield self._by_repelled_namespace, namespace
        for claim in pod.claims if pod.belongs_to_vm else ():
            yield self._by_claim, (pod.namespace, claim)
        if pod.labels.get(COMPONENT_LABEL) == SHARE_MANAGER:
            yield self._serving, (pod.namespace, pod.labels.get(VOLUME_LABEL, ""))

    def placed(self, namespaces: Collection[str]) -> Iterator[Pod]:
        """List the pods of some namespaces that have an effective node."""
        return (pod for namespace in namespaces for pod in self._by_namespace.get(namespace, {}).values())

    def has_unbound(self, node: str, excluding: Key) -> bool:
        """Return whether a pod other than `excluding` is pinned or nominated to this node and isn't bound yet."""
        return any(pod.effective_node == node and pod.key != excluding for pod in self._unbound.values())

    def with_anti_affinity(self, namespace: str) -> Iterable[Pod]:
        """List the pods with an effective node and a required anti-affinity to pods of a namespace (see `Catalog`)."""
        return self._by_repelled_namespace.get(namespace, {}).values()

    def serving(self, namespace: str, volume: str) -> list[Pod]:
        """List the share-manager pods of a Longhorn volume, sorted by name."""
        return sorted(self._serving.get((namespace, volume), {}).values(), key=lambda pod: pod.key)

    def launchers(self) -> Collection[Pod]:
        """List the virt-launcher pods."""
        return self._launchers.values()

    def hotplug_pods(self) -> Collection[Pod]:
        """List the pods that mount hotplugged claims for a virt-launcher pod."""
        return self._hotplug_pods.values()

    def share_managers(self, namespace: str) -> Iterator[Pod]:
        """List the share-manager pods in a namespace."""
        return (pod for key, pods in self._serving.items() if key[0] == namespace for pod in pods.values())

    def mounting(self, namespace: str, claim: str) -> Iterator[Pod]:
        """List the virt-launcher pods that mount a claim, directly or through a hotplug pod that they own."""
        found: set[Key] = set()
        # A copy: between two pods, the caller's queries may add others.
        for pod in tuple(self._by_claim.get((namespace, claim), {}).values()):
            # A terminating hotplug pod unplugs its disk.
            owners = [self._by_uid[uid] for uid in pod.owners if uid in self._by_uid] if pod.alive else []
            for launcher in (pod, *owners):
                if launcher.is_virt_launcher and launcher.key not in found:
                    found.add(launcher.key)
                    yield launcher

    def mounting_without_vm(self, namespace: str, claim: str) -> Collection[Pod]:
        """List the bound pods that mount a claim, are alive, and belong to no VM, sorted by name."""
        if self._without_vm is None:
            # Only the commands ask, after they have read the pods. The server would need 25 MB per 50,000 pods.
            self._without_vm = users_without_vm(self.values())
        return self._without_vm.get((namespace, claim), ())
