"""In-memory tables of pods, with the indexes that decisions need."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

from webhook.cluster.caches.tables import Table
from webhook.placement.objects.facts import Key, Pod
from webhook.placement.objects.kubevirt import APP_LABEL
from webhook.placement.objects.longhorn import COMPONENT_LABEL, SHARE_MANAGER, VOLUME_LABEL
from webhook.placement.objects.selectors import AffinityTerm, Selector

# Of one claim. A user can create thousands of pods that mount it, and each takes up to 4 µs of a review.
MAX_MOUNTING = 128


def vm_key(pod: Pod) -> Key:
    """Return the namespace and the VMI's uid, else the pod's name. Unlike the pod's uid, both exist before the pod."""
    return pod.namespace, pod.vmi_uid or pod.name


Index = defaultdict[Any, dict[Key, Pod]]
PodTerm = tuple[Pod, AffinityTerm]
Label = tuple[str, str]
Buckets = defaultdict[Label | None, dict[tuple[str, str, int], PodTerm]]
Place = tuple[tuple[str, bool], Label | None, tuple[str, str, int]]

MIN_INDEXED = 100  # pods of a namespace; to search in fewer takes 0.05 ms
MAX_INDEXES = 8  # of one namespace; each takes 5 MB per 50,000 pods


def _remove_from(index: Index, entry: Any, key: Key) -> None:
    """Remove a pod from an entry of an index, and an empty entry too: those of deleted namespaces must not pile up."""
    pods = index[entry]
    pods.pop(key, None)
    if not pods:
        del index[entry]


class LabeledPods:
    """Pods by namespace. In a large namespace, an index by label finds those that a selector may select.

    The index of a label's key is built when the first selector names the key, and then maintained. A namespace has only
    a few of them, so that selectors with made-up keys cost little memory and time.
    """

    def __init__(self) -> None:
        self._by_namespace: Index = defaultdict(dict)
        # For each namespace the keys of labels, and for each key the pods by value.
        self._by_value: dict[str, dict[str, Index]] = {}

    def put(self, pod: Pod) -> None:
        """Add a pod. The table must not have it."""
        key = pod.key
        self._by_namespace[pod.namespace][key] = pod
        for label, index in self._by_value.get(pod.namespace, {}).items():
            if label in pod.labels:
                index[pod.labels[label]][key] = pod

    def remove(self, pod: Pod) -> None:
        """Remove a pod of the table."""
        _remove_from(self._by_namespace, pod.namespace, pod.key)
        for label, index in self._by_value.get(pod.namespace, {}).items():
            if label in pod.labels:
                _remove_from(index, pod.labels[label], pod.key)
        if pod.namespace not in self._by_namespace:
            self._by_value.pop(pod.namespace, None)

    def matching(self, namespace: str, selector: Selector) -> Collection[Pod]:
        """List the pods of a namespace that the selector may select, and maybe others, by the rarest of its labels."""
        found: Collection[Pod] = self._by_namespace.get(namespace, {}).values()
        if len(found) < MIN_INDEXED:
            return found
        for requirement in selector:
            if requirement.equal_to and (index := self._index(namespace, requirement.key)) is not None:
                buckets = [index[value] for value in requirement.equal_to if value in index]
                if sum(map(len, buckets)) < len(found):
                    found = [pod for bucket in buckets for pod in bucket.values()]
        return found

    def _index(self, namespace: str, label: str) -> Index | None:
        indexes = self._by_value.setdefault(namespace, {})
        if label not in indexes and len(indexes) < MAX_INDEXES:
            index = indexes[label] = defaultdict(dict)
            for key, pod in self._by_namespace[namespace].items():
                if label in pod.labels:
                    index[pod.labels[label]][key] = pod
        return indexes.get(label)


class RepellingTerms:
    """The required anti-affinity terms of pods, by the namespace and one label of the pods that they repel.

    Of the labels that a term requires, it is the rarest one.
    """

    def __init__(self) -> None:
        # By the namespace, and whether the term's pod is in it; "" stands for the terms with a namespace selector. Then
        # by label, None for a term that requires no label.
        self.by_scope: defaultdict[tuple[str, bool], Buckets] = defaultdict(lambda: defaultdict(dict))
        self._places: dict[Key, list[Place]] = {}

    def put(self, pod: Pod) -> None:
        """Add the terms of a pod. The table must not have the pod."""
        for number, term in enumerate(pod.anti_affinity):
            for scope in _scopes(pod, term):
                buckets = self.by_scope[scope]
                for label in _rarest_label(term, buckets):
                    place = *pod.key, number
                    buckets[label][place] = pod, term
                    self._places.setdefault(pod.key, []).append((scope, label, place))

    def remove(self, key: Key) -> None:
        """Remove the terms of a pod, if it has any."""
        for scope, label, place in self._places.pop(key, ()):
            buckets = self.by_scope[scope]
            buckets[label].pop(place, None)
            if not buckets[label]:
                del buckets[label]
            if not buckets:
                del self.by_scope[scope]

    def repelling(self, namespace: str, labels: Mapping[str, str], *, own: bool) -> Iterator[PodTerm]:
        """Yield the terms that may select a pod, of the pods in its namespace, or else (not `own`) of all others.

        There may be many more than one review may compare.
        """
        for scope in ((namespace, True),) if own else ((namespace, False), ("", False)):
            if (buckets := self.by_scope.get(scope)) is not None:
                for label in {None, *labels.items()} & buckets.keys():
                    yield from (each for each in buckets[label].values() if own or each[0].namespace != namespace)


def _scopes(pod: Pod, term: AffinityTerm) -> Iterator[tuple[str, bool]]:
    if term.namespace_selector is not None:
        yield "", False
    if pod.namespace in term.namespaces or term.namespace_selector is not None:
        yield pod.namespace, True
    for namespace in term.namespaces:
        if namespace != pod.namespace:
            yield namespace, False


def _rarest_label(term: AffinityTerm, buckets: Buckets) -> Iterable[Label | None]:
    """Return under which labels to find a term: the values of that key of which the fewest terms are known."""
    if term.selector is None:  # selects nothing
        return ()
    keys = [[(each.key, value) for value in each.equal_to] for each in term.selector if each.equal_to]
    return min(keys, key=lambda labels: sum(len(buckets.get(label, ())) for label in labels), default=(None,))


class PlacedPods(Table[Pod]):
    """Pods that count on a node: the sum of their requests there, and what affects other pods.

    `labeled`, `terms` and `oversized` have those with an effective node.
    """

    def __init__(self) -> None:
        super().__init__()
        self._by_node: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        self.labeled = LabeledPods()
        self.terms = RepellingTerms()
        self.oversized: Index = defaultdict(dict)  # by namespace
        self._unbound: dict[Key, Pod] = {}

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
            self.labeled.put(fact)
            self.terms.put(fact)
            if not fact.node and not fact.prefers:
                self._unbound[key] = fact
            if fact.oversized:
                self.oversized[fact.namespace][key] = fact

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
            self.labeled.remove(removed)
            self.terms.remove(key)
            self._unbound.pop(key, None)
            if removed.oversized:
                _remove_from(self.oversized, removed.namespace, key)
        return removed

    def requested(self, node: str, excluding: Key) -> Mapping[str, int]:
        """Sum up the requests of the pods on a node, without the pod `excluding`."""
        total: Mapping[str, int] = self._by_node.get(node, {})
        own = self.get(excluding)
        if own is None or own.effective_node != node:
            return total
        return {resource: amount - own.requests.get(resource, 0) for resource, amount in total.items()}

    def nominated(self, node: str) -> Collection[Pod]:
        """List the unbound pods for which the scheduler has nominated this node."""
        return [pod for pod in self._unbound.values() if pod.nominated and pod.effective_node == node]

    def has_unbound(self, node: str, excluding: Key) -> bool:
        """Return whether a pod other than `excluding` is pinned or nominated to this node and isn't bound yet."""
        return any(pod.effective_node == node and pod.key != excluding for pod in self._unbound.values())


class Pods(PlacedPods):
    """The unfinished pods, also indexed by app, UID, claim and served Longhorn volume."""

    def __init__(self) -> None:
        super().__init__()
        self._index: Index = defaultdict(dict)
        self._without_vm: defaultdict[Key, list[Pod]] | None = None  # see `mounting_without_vm`

    def put(self, fact: Pod) -> None:
        """Store a pod, in place of an older one with the same key."""
        super().put(fact)
        self._without_vm = None
        for entry in _entries(fact):
            self._index[entry][fact.key] = fact

    def remove(self, key: Key) -> Pod | None:
        """Remove and return a pod; return None if it is missing."""
        removed = super().remove(key)
        if removed is not None:
            self._without_vm = None
            for entry in _entries(removed):
                _remove_from(self._index, entry, key)
        return removed

    def _find(self, *entry: str) -> Collection[Pod]:
        return self._index.get(entry, {}).values()

    def of_app(self, app: str) -> Collection[Pod]:
        """List the virt-launcher pods, or the hotplug pods, which mount hotplugged claims for a virt-launcher pod."""
        return self._find("app", app)

    def serving(self, namespace: str, volume: str) -> list[Pod]:
        """List the share-manager pods of a Longhorn volume, sorted by name."""
        return sorted(self._find("volume", namespace, volume), key=lambda pod: pod.key)

    def mounting(self, namespace: str, claim: str) -> Iterator[Pod]:
        """List the virt-launcher pods that mount a claim, directly or through a hotplug pod that they own.

        Of a claim that very many pods mount, only the first ones count.
        """
        found: set[Key] = set()
        for pod in islice(self._find("claim", namespace, claim), MAX_MOUNTING):
            # A terminating hotplug pod unplugs its disk.
            owners = chain(*(self._find("uid", uid) for uid in pod.owners)) if pod.alive else ()
            for launcher in (pod, *owners):
                if launcher.is_virt_launcher and launcher.key not in found:
                    found.add(launcher.key)
                    yield launcher

    def mounting_without_vm(self, namespace: str, claim: str) -> Collection[Pod]:
        """List the bound pods that mount a claim, are alive, and belong to no VM, sorted by name."""
        if self._without_vm is None:
            # Only the commands ask, after they have read the pods. The server would need 25 MB per 50,000 pods.
            self._without_vm = defaultdict(list)
            users = (pod for pod in self.values() if pod.claims and pod.node and pod.alive and not pod.belongs_to_vm)
            for pod in sorted(users, key=lambda pod: pod.key):
                for mounted in pod.claims:
                    self._without_vm[pod.namespace, mounted].append(pod)
        return self._without_vm.get((namespace, claim), ())


def _entries(pod: Pod) -> Iterator[tuple[str, ...]]:
    """Yield where to find a pod: the kind of the entry, and its values."""
    if pod.belongs_to_vm:
        yield "app", pod.labels[APP_LABEL]
        for claim in pod.claims:
            yield "claim", pod.namespace, claim
        if pod.is_virt_launcher:
            yield "uid", pod.uid
    if pod.labels.get(COMPONENT_LABEL) == SHARE_MANAGER:
        yield "volume", pod.namespace, pod.labels.get(VOLUME_LABEL, "")
