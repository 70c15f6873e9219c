"""A catalog of the cluster as it will be: share-managers have stopped, and a plan has placed pods."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain

from webhook.placement.catalog import Catalog, CatalogProxy
from webhook.placement.objects.facts import Key, Pod, ShareManager
from webhook.placement.objects.selectors import AffinityTerm, Selector

STOPPED = "stopped"
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


def forecast(catalog: Catalog, stopped: Collection[str] = (), placed: PlannedPods = NO_PODS) -> Catalog:
    """Return the catalog after the share-managers of these Longhorn volumes have stopped, and these pods run."""
    return _Forecast(catalog, stopped, placed) if stopped or placed.by_node else catalog


class _Forecast(CatalogProxy):
    def __init__(self, catalog: Catalog, stopped: Collection[str], placed: PlannedPods) -> None:
        super().__init__(catalog)
        self._stopped, self._placed = frozenset(stopped), placed

    def share_manager(self, namespace: str, volume: str) -> ShareManager | None:
        found = self._catalog.share_manager(namespace, volume)
        return ShareManager(namespace, volume, STOPPED, "", False) if volume in self._stopped else found

    def share_manager_pod(self, namespace: str, volume: str) -> Pod | None:
        return None if volume in self._stopped else self._catalog.share_manager_pod(namespace, volume)

    def requested(self, node: str, excluding: Key) -> Mapping[str, int]:
        total = dict(self._catalog.requested(node, excluding))
        for pod in self._placed.by_node.get(node, ()):
            for name, amount in pod.requests.items() if pod.key != excluding else ():
                total[name] = total.get(name, 0) + amount
        return total

    def placed_pods(self, namespace: str, selector: Selector) -> Iterable[Pod]:
        return chain(self._catalog.placed_pods(namespace, selector), self._placed.matching(namespace, selector))

    def repelling_terms(
        self, namespace: str, labels: Mapping[str, str], *, own: bool
    ) -> Iterable[tuple[Pod, AffinityTerm]]:
        planned = (
            (pod, term)
            for pod, term in self._placed.repelling(labels)
            if (pod.namespace == namespace) is own
            if namespace in term.namespaces or term.namespace_selector is not None
        )
        return chain(self._catalog.repelling_terms(namespace, labels, own=own), planned)
