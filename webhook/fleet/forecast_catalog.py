"""A catalog of the cluster as it will be: share-managers and pods have moved or stopped, and nodes are cordoned."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain

from msgspec import Struct, field
from msgspec.structs import replace

from webhook.placement.catalog import Catalog, CatalogProxy
from webhook.placement.guard.feasibility import CORDON
from webhook.placement.objects.facts import Key, Node, Pod, ShareManager
from webhook.placement.objects.selectors import AffinityTerm, Selector

STOPPED, REPLACED = "stopped", "error"  # states of a ShareManager
Label = tuple[str, str]


class PlannedPods:
    """The pods that a plan has placed. A plan for 5,000 VMs asks for them for each VM, so each query has an index."""

    def __init__(self, pods: Iterable[Pod] = ()) -> None:
        self.by_node: defaultdict[str, list[Pod]] = defaultdict(list)
        self._by_namespace: defaultdict[str, list[Pod]] = defaultdict(list)
        self._by_label: defaultdict[tuple[str, Label], list[Pod]] = defaultdict(list)  # with the namespace
        # The required anti-affinity terms by a label of the pods that they repel; None for any.
        self._terms: defaultdict[Label | None, list[tuple[Pod, AffinityTerm]]] = defaultdict(list)
        self.extend(pods)

    def extend(self, pods: Iterable[Pod]) -> None:
        """Place pods."""
        for pod in pods:
            self.by_node[pod.effective_node].append(pod)
            self._by_namespace[pod.namespace].append(pod)
            for label in pod.labels.items():
                self._by_label[pod.namespace, label].append(pod)
            for term in pod.anti_affinity:
                for repelled in _one_of(term.selector or ()):
                    self._terms[repelled].append((pod, term))

    def matching(self, namespace: str, selector: Selector) -> Iterator[Pod]:
        """Yield the pods of a namespace that the selector may select."""
        for label in _one_of(selector):
            yield from self._by_label.get((namespace, label), ()) if label else self._by_namespace.get(namespace, ())

    def repelling(self, labels: Mapping[str, str]) -> Iterator[tuple[Pod, AffinityTerm]]:
        """Yield the terms that may select a pod with these labels."""
        for label in (None, *labels.items()):
            yield from self._terms.get(label, ())


def _one_of(selector: Selector) -> list[Label] | list[None]:
    """Return labels of which each selected object has one, or None if the selector names no values."""
    found = ([(requirement.key, value) for value in requirement.equal_to] for requirement in selector)
    return next(filter(None, found), [None])


NO_PODS = PlannedPods()


class Changes(Struct, frozen=True):
    """What is different from the cluster as it is."""

    cordons: Mapping[str, bool] = field(default_factory=dict)  # whether a node is unschedulable
    gone: Mapping[Key, Pod] = field(default_factory=dict)  # pods that have ended
    users: Mapping[Key, list[Pod]] = field(default_factory=dict)  # virt-launcher pods by the claims that they mount now
    # the share-manager pods of volumes; None for one that is being replaced
    servers: Mapping[str, Pod | None] = field(default_factory=dict)


NO_CHANGES = Changes()


def forecast(
    catalog: Catalog, stopped: Collection[str] = (), placed: PlannedPods = NO_PODS, changes: Changes = NO_CHANGES
) -> Catalog:
    """Return the catalog after the share-managers of these Longhorn volumes have stopped, and these pods run."""
    if not stopped and not placed.by_node and changes == NO_CHANGES:
        return catalog
    return _Forecast(catalog, stopped, placed, changes)


class _Forecast(CatalogProxy):
    def __init__(self, catalog: Catalog, stopped: Collection[str], placed: PlannedPods, changes: Changes) -> None:
        super().__init__(catalog)
        self._stopped = frozenset(stopped)
        self._placed = placed
        self._changes = changes

    def node(self, name: str) -> Node | None:
        found = self._catalog.node(name)
        return self._with_cordon(found) if found and name in self._changes.cordons else found

    def _with_cordon(self, node: Node) -> Node:
        unschedulable = self._changes.cordons.get(node.name, node.unschedulable)
        taints = tuple(taint for taint in node.taints if unschedulable or taint.key != CORDON.key)
        return replace(node, unschedulable=unschedulable, taints=taints)

    def all_nodes(self) -> Collection[Node]:
        nodes = self._catalog.all_nodes()
        return [self._with_cordon(node) for node in nodes] if self._changes.cordons else nodes

    def share_manager(self, namespace: str, volume: str) -> ShareManager | None:
        if volume in self._stopped:
            return ShareManager(namespace, volume, STOPPED, "", False)
        if volume in self._changes.servers and self._changes.servers[volume] is None:
            return ShareManager(namespace, volume, REPLACED, "", False)
        return self._catalog.share_manager(namespace, volume)

    def share_manager_pod(self, namespace: str, volume: str) -> Pod | None:
        if volume in self._stopped:
            return None
        if volume in self._changes.servers:
            return self._changes.servers[volume]
        return self._catalog.share_manager_pod(namespace, volume)

    def mounting_pods(self, namespace: str, claim: str) -> Iterable[Pod]:
        found = self._present(self._catalog.mounting_pods(namespace, claim))
        return chain(found, self._changes.users.get((namespace, claim), ()))

    def _present(self, pods: Iterable[Pod]) -> Iterable[Pod]:
        gone = self._changes.gone
        return (pod for pod in pods if pod.key not in gone) if gone else pods

    def requested(self, node: str, excluding: Key) -> Mapping[str, int]:
        total = dict(self._catalog.requested(node, excluding))
        ended = (pod for pod in self._changes.gone.values() if pod.effective_node == node)
        for sign, pods in ((1, self._placed.by_node.get(node, ())), (-1, ended)):
            for pod in pods:
                for name, amount in pod.requests.items() if pod.key != excluding else ():
                    total[name] = total.get(name, 0) + sign * amount
        return total

    def placed_pods(self, namespace: str, selector: Selector) -> Iterable[Pod]:
        found = self._present(self._catalog.placed_pods(namespace, selector))
        return chain(found, self._placed.matching(namespace, selector))

    def repelling_terms(
        self, namespace: str, labels: Mapping[str, str], *, own: bool
    ) -> Iterable[tuple[Pod, AffinityTerm]]:
        gone = self._changes.gone
        found = self._catalog.repelling_terms(namespace, labels, own=own)
        present = ((pod, term) for pod, term in found if pod.key not in gone) if gone else found
        planned = (
            (pod, term)
            for pod, term in self._placed.repelling(labels)
            if (pod.namespace == namespace) is own
            if namespace in term.namespaces or term.namespace_selector is not None
        )
        return chain(present, planned)
