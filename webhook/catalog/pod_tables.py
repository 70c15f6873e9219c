"""In-memory tables of pods, with the indexes that decisions need."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice

from webhook.catalog.tables import Entry, Table
from webhook.placement.objects.facts import Key, Pod
from webhook.placement.objects.kubevirt import APP_LABEL
from webhook.placement.objects.longhorn import SHARE_MANAGER
from webhook.placement.objects.selectors import AffinityTerm, Selector

# Pods of one claim that count: a user can create thousands that mount it, and each takes up to 4 µs of a review.
MAX_MOUNTING = 128
MAX_INDEXED_CLAIMS = 16  # of a pod that belongs to no VM; each takes 0.4 KB


def vm_key(pod: Pod) -> Key:
    """Return the namespace and the VMI's uid, else the pod's name. Unlike the pod's uid, both exist before the pod."""
    return pod.namespace, pod.vmi_uid or pod.name


PodTerm = tuple[Pod, AffinityTerm]
Label = tuple[str, str]
Buckets = defaultdict[Label | None, dict[tuple[str, str, int], PodTerm]]
Place = tuple[tuple[str, bool], Label | None, tuple[str, str, int]]

MAX_NAMESPACES = 4  # of an indexed term: one with 140 namespaces and 7 values took 0.5 MB
MIN_INDEXED = 100  # pods of a namespace; to search in fewer takes 0.05 ms
MAX_INDEXES = 8  # of one namespace; each takes 5 MB per 50,000 pods


class RepellingTerms:
    """The required anti-affinity terms of pods, by the namespace and one label of the pods that they repel.

    Of the labels that a term requires, it is the rarest one.
    """

    def __init__(self) -> None:
        # By the namespace, and whether the term's pod is in it; "" stands for the terms with a namespace selector, or
        # with more than MAX_NAMESPACES. Then by label, None for a term that requires no label.
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
    anywhere = term.namespace_selector is not None or len(term.namespaces) > MAX_NAMESPACES
    if anywhere:
        yield "", False
    else:
        yield from ((namespace, False) for namespace in term.namespaces if namespace != pod.namespace)
    if pod.namespace in term.namespaces or term.namespace_selector is not None:
        yield pod.namespace, True


def _rarest_label(term: AffinityTerm, buckets: Buckets) -> Iterable[Label | None]:
    """Return under which labels to find a term: the values of that key of which the fewest terms are known."""
    if term.selector is None:  # selects nothing
        return ()
    keys = [[(each.key, value) for value in each.equal_to] for each in term.selector if each.equal_to]
    return min(keys, key=lambda labels: sum(len(buckets.get(label, ())) for label in labels), default=(None,))


class PlacedPods(Table[Pod]):
    """Pods that count on a node: the sum of their requests there, and what affects other pods.

    `terms` and `oversized` have those with an effective node.
    """

    def __init__(self) -> None:
        super().__init__()
        self._by_node: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._label_keys: defaultdict[str, set[str]] = defaultdict(set)  # by namespace, see `matching`
        self.terms = RepellingTerms()
        self.oversized: Counter[str] = Counter()  # by namespace

    def entries(self, fact: Pod) -> Iterator[Entry]:
        """Yield where to find a pod: the kind of the entry, and its values."""
        if fact.effective_node:
            yield "placed", fact.namespace
            if not fact.node and not fact.prefers:
                yield "unbound", fact.effective_node
            for label in self._label_keys.get(fact.namespace, ()):
                if label in fact.labels:
                    yield "label", fact.namespace, label, fact.labels[label]

    def put(self, fact: Pod) -> Pod | None:
        """Store a pod, in place of an older one with the same key. Return the older one."""
        old = super().put(fact)
        if fact.effective_node:
            load = self._by_node[fact.effective_node]
            for resource, amount in fact.requests.items():
                load[resource] += amount
            self.terms.put(fact)
            if fact.oversized:
                self.oversized[fact.namespace] += 1
        return old

    def remove(self, key: Key) -> Pod | None:
        """Remove and return a pod; return None if it is missing."""
        removed = super().remove(key)
        if removed is not None and removed.effective_node:
            load = self._by_node[removed.effective_node]
            for resource, amount in removed.requests.items():
                if left := load[resource] - amount:
                    load[resource] = left
                else:  # otherwise resources of made-up pods would pile up
                    del load[resource]
            if not load:  # nor may the entries of deleted nodes, over the years
                del self._by_node[removed.effective_node]
            self.terms.remove(key)
            if removed.oversized:
                self.oversized -= Counter([removed.namespace])  # without those of which there are none
            if not self.indexed("placed", removed.namespace):
                self._label_keys.pop(removed.namespace, None)
        return removed

    def matching(self, namespace: str, selector: Selector) -> Collection[Pod]:
        """List the placed pods of a namespace that the selector may select, and maybe others.

        In a large namespace, an index finds them by the rarest label of the selector. The index of a label's key is
        built when the first selector names the key, and then maintained. A namespace has only a few of them, so that
        selectors with made-up keys cost little memory and time.
        """
        found = self.indexed("placed", namespace)
        if len(found) < MIN_INDEXED:
            return found
        for requirement in selector:
            if requirement.equal_to and self._indexes(namespace, requirement.key):
                buckets = [self.indexed("label", namespace, requirement.key, value) for value in requirement.equal_to]
                if sum(map(len, buckets)) < len(found):
                    found = [pod for bucket in buckets for pod in bucket]
        return found

    def _indexes(self, namespace: str, label: str) -> bool:
        keys = self._label_keys[namespace]
        if label not in keys and len(keys) < MAX_INDEXES:
            keys.add(label)
            for pod in self.indexed("placed", namespace):
                if label in pod.labels:
                    self._by_entry["label", namespace, label, pod.labels[label]][pod.key] = pod
        return label in keys

    def requested(self, node: str, excluding: Key) -> Mapping[str, int]:
        """Sum up the requests of the pods on a node, without the pod `excluding`."""
        total: Mapping[str, int] = self._by_node.get(node, {})
        own = self.find(*excluding)
        if own is None or own.effective_node != node:
            return total
        return {resource: amount - own.requests.get(resource, 0) for resource, amount in total.items()}

    def unbound(self, node: str) -> Collection[Pod]:
        """List the pods that are pinned or nominated to a node, but not bound yet."""
        return self.indexed("unbound", node)


class Pods(PlacedPods):
    """The unfinished pods, also indexed by app, UID and claim."""

    def entries(self, fact: Pod) -> Iterator[Entry]:
        """Yield where to find a pod: the kind of the entry, and its values."""
        yield from super().entries(fact)
        if fact.belongs_to_vm:
            yield "app", fact.labels[APP_LABEL]
            for claim in fact.claims:
                yield "claim", fact.namespace, claim
            if fact.is_virt_launcher:
                yield "uid", fact.namespace, fact.uid
        elif fact.node and fact.alive:
            for claim in fact.claims[:MAX_INDEXED_CLAIMS]:
                yield "claim without VM", fact.namespace, claim

    def of_app(self, app: str) -> Collection[Pod]:
        """List the virt-launcher pods, or the hotplug pods, which mount hotplugged claims for a virt-launcher pod."""
        return self.indexed("app", app)

    def serving(self, namespace: str, volume: str) -> Pod | None:
        """Find the share-manager pod of a Longhorn volume. Longhorn names it after the volume, so there is only one."""
        return self.find(namespace, f"{SHARE_MANAGER}-{volume}")

    def mounting(self, namespace: str, claim: str) -> Iterator[Pod]:
        """List the virt-launcher pods that mount a claim, directly or through a hotplug pod that they own."""
        found: set[Key] = set()
        for pod in islice(self.indexed("claim", namespace, claim), MAX_MOUNTING):
            # A terminating hotplug pod unplugs its disk.
            owner = self.indexed("uid", namespace, pod.owner) if pod.alive and pod.owner else ()
            for launcher in (pod, *owner):
                if launcher.is_virt_launcher and launcher.key not in found:
                    found.add(launcher.key)
                    yield launcher

    def mounting_without_vm(self, namespace: str, claim: str) -> Collection[Pod]:
        """List the bound pods that mount a claim, are alive, and belong to no VM, sorted by name."""
        users = islice(self.indexed("claim without VM", namespace, claim), MAX_MOUNTING)
        return sorted(users, key=lambda pod: pod.key)
