"""A catalog of the cluster as it will be: share-managers have stopped, and a plan has placed pods."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from itertools import chain

from webhook.placement.catalog import Catalog, CatalogProxy
from webhook.placement.objects.facts import Key, Pod, ShareManager
from webhook.placement.objects.selectors import AffinityTerm, Selector

STOPPED = "stopped"


class PlannedPods:
    """The pods that a plan has placed, by node and by namespace. A plan for 5,000 VMs asks for them for each VM."""

    def __init__(self, pods: Iterable[Pod] = ()) -> None:
        self.by_node: defaultdict[str, list[Pod]] = defaultdict(list)
        self.by_namespace: defaultdict[str, list[Pod]] = defaultdict(list)
        self.repelling: list[Pod] = []  # with a required anti-affinity
        for pod in pods:
            self.add(pod)

    def add(self, pod: Pod) -> None:
        """Place a pod."""
        self.by_node[pod.effective_node].append(pod)
        self.by_namespace[pod.namespace].append(pod)
        if pod.anti_affinity:
            self.repelling.append(pod)


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

    def share_manager_pods(self, namespace: str, volume: str) -> Collection[Pod]:
        return () if volume in self._stopped else self._catalog.share_manager_pods(namespace, volume)

    def requested(self, node: str, excluding: Key) -> Mapping[str, int]:
        total = Counter(self._catalog.requested(node, excluding))
        for pod in self._placed.by_node.get(node, ()):
            if pod.key != excluding:
                total.update(pod.requests)
        return total

    def placed_pods(self, namespace: str, selector: Selector) -> Iterable[Pod]:
        planned = self._placed.by_namespace.get(namespace, ())
        return chain(self._catalog.placed_pods(namespace, selector), planned)

    def repelling_terms(
        self, namespace: str, labels: Mapping[str, str], *, own: bool
    ) -> Iterable[tuple[Pod, AffinityTerm]]:
        planned = [
            (pod, term)
            for pod in self._placed.repelling
            if (pod.namespace == namespace) is own
            for term in pod.anti_affinity
            if namespace in term.namespaces or term.namespace_selector is not None
        ]
        return chain(self._catalog.repelling_terms(namespace, labels, own=own), planned)
