"""In-memory tables of pods, with the indexes that decisions need."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from webhook.cluster.claim_users import users_without_vm
from webhook.cluster.tables import Table
from webhook.placement.objects.facts import Key, Pod
from webhook.placement.objects.longhorn import COMPONENT_LABEL, SHARE_MANAGER, VOLUME_LABEL


def vm_key(pod: Pod) -> Key:
    """Return the namespace and the VMI's uid, else the pod's name. Unlike the pod's uid, both exist before the pod."""
    return pod.namespace, pod.vmi_uid or pod.name


class Load(Table[Pod]):
    """Pods with the sum of their requests on each node."""

    def __init__(self) -> None:
        super().__init__()
        self._by_node: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))

    def put(self, fact: Pod) -> None:
        """Store a pod, in place of an older one with the same key."""
        key = fact.key
        if key in self._by_key:
            self.remove(key)
        self._by_key[key] = fact
        if fact.effective_node:
            load = self._by_node[fact.effective_node]
            for resource, amount in fact.requests.items():
                load[resource] += amount

    def remove(self, key: Key) -> Pod | None:
        """Remove and return a pod; return None if it is missing."""
        removed = self._by_key.pop(key, None)
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


Index = defaultdict[Any, dict[Key, Pod]]


def _remove_from(index: Index, entry: Any, key: Key) -> None:
    """Remove a pod from an entry of an index, and an empty entry too: those of deleted namespaces must not pile up."""
    pods = index[entry]
    pods.pop(key, None)
    if not pods:
        del index[entry]


class PlacedPods(Load):
    """Pods that count on a node, also indexed by what affects other pods there."""

    def __init__(self) -> None:
        super().__init__()
        self._by_namespace: Index = defaultdict(dict)
        self._by_repelled_namespace: Index = defaultdict(dict)
        self._unbound: dict[Key, Pod] = {}

    def put(self, fact: Pod) -> None:
        """Store a pod, in place of an older one with the same key."""
        super().put(fact)
        if fact.effective_node:
            key = fact.key
            self._by_namespace[fact.namespace][key] = fact
            if not fact.node and not fact.prefers:
                self._unbound[key] = fact
            for namespace in _repelled_namespaces(fact):
                self._by_repelled_namespace[namespace][key] = fact

    def remove(self, key: Key) -> Pod | None:
        """Remove and return a pod; return None if it is missing."""
        removed = super().remove(key)
        if removed is not None and removed.effective_node:
            _remove_from(self._by_namespace, removed.namespace, key)
            self._unbound.pop(key, None)
            for namespace in _repelled_namespaces(removed):
                _remove_from(self._by_repelled_namespace, namespace, key)
        return removed

    def placed(self, namespaces: Collection[str]) -> Iterator[Pod]:
        """List the pods of some namespaces that have an effective node."""
        return (pod for namespace in namespaces for pod in self._by_namespace.get(namespace, {}).values())

    def has_unbound(self, node: str, excluding: Key) -> bool:
        """Return whether a pod other than `excluding` is pinned or nominated to this node and isn't bound yet."""
        return any(pod.effective_node == node and pod.key != excluding for pod in self._unbound.values())

    def with_anti_affinity(self, namespace: str) -> Iterable[Pod]:
        """List the pods with an effective node and a required anti-affinity to pods of a namespace (see `Catalog`)."""
        return self._by_repelled_namespace.get(namespace, {}).values()


def _repelled_namespaces(pod: Pod) -> Collection[str]:
    """Return the namespaces of the pods that the pod may repel; an empty string stands for a namespace selector."""
    if not pod.anti_affinity:  # most pods
        return ()
    return {name for term in pod.anti_affinity for name in (*term.namespaces, *[""] * term.has_namespace_selector)}


class Pods(PlacedPods):
    """The unfinished pods, also indexed by claim, owner, VM and served Longhorn volume."""

    def __init__(self) -> None:
        super().__init__()
        self._stuck: dict[Key, Pod] = {}
        self._by_claim: Index = defaultdict(dict)
        self._launchers: dict[Key, Pod] = {}
        self._by_uid: dict[str, Pod] = {}
        self._by_vm: dict[Key, Pod] = {}
        self._serving: Index = defaultdict(dict)
        self._hotplug_pods: dict[Key, Pod] = {}
        self._without_vm: Mapping[Key, Sequence[Pod]] | None = None  # see `mounting_without_vm`

    def put(self, fact: Pod) -> None:
        """Store a pod, in place of an older one with the same key."""
        super().put(fact)
        self._without_vm = None
        key = fact.key
        for group in self._groups(fact):
            group[key] = fact
        for index, entry in self._index_entries(fact):
            index[entry][key] = fact
        if fact.is_virt_launcher:
            self._by_uid[fact.uid] = fact
            self._by_vm[vm_key(fact)] = fact

    def remove(self, key: Key) -> Pod | None:
        """Remove and return a pod; return None if it is missing."""
        removed = super().remove(key)
        if removed is not None:
            self._without_vm = None
            for group in self._groups(removed):
                group.pop(key, None)
            for index, entry in self._index_entries(removed):
                _remove_from(index, entry, key)
            self._by_uid.pop(removed.uid, None)
            self._by_vm.pop(vm_key(removed), None)
        return removed

    def has_vm(self, vm: Key) -> bool:
        """Return whether the table has a pod of a VM; `vm` is a `vm_key`."""
        return vm in self._by_vm

    def stuck(self) -> Collection[Pod]:
        """List the pods that the webhook pinned and for which the scheduler found no node."""
        return self._stuck.values()

    def _groups(self, pod: Pod) -> Iterator[dict[Key, Pod]]:
        if pod.pin and pod.pin.unschedulable_since:
            yield self._stuck
        if pod.is_virt_launcher:
            yield self._launchers
        if pod.is_hotplug_pod:
            yield self._hotplug_pods

    def _index_entries(self, pod: Pod) -> Iterator[tuple[Index, Any]]:
        for claim in pod.claims if pod.belongs_to_vm else ():
            yield self._by_claim, (pod.namespace, claim)
        if pod.labels.get(COMPONENT_LABEL) == SHARE_MANAGER:
            yield self._serving, (pod.namespace, pod.labels.get(VOLUME_LABEL, ""))

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
