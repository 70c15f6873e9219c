"""Whether a pod and the pods around a node attract or repel each other: required pod (anti-)affinity.

Source: kube-scheduler, pkg/scheduler/framework/plugins/interpodaffinity/filtering.go.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from webhook.placement.catalog import Catalog, Pod
from webhook.placement.selectors import AffinityTerm

# Comparisons of a pod with a value in a term: about 50 ms, in which nobody else is answered. Whoever may create pods
# may write thousands of terms, and these times the pods of a large cluster would take minutes.
COMPARISONS = 100_000


class _TooMuch(Exception):
    """There is more to compare than may be."""


@dataclass(slots=True)
class InterPodAffinity:
    """A pod, as it is to live on its site among the others, and whom it wants near; `left` is what may be compared."""

    pod: Pod
    affinity_terms: tuple[AffinityTerm, ...]
    catalog: Catalog
    left: int = COMPARISONS
    _domains: dict[tuple[str, str], str | None] = field(default_factory=dict)

    def conflict(self) -> str | None:
        """Say which pod affinity keeps the pod off the node, or None. What is too much is left to `unjudged`."""
        try:
            return self._repelled() or self._repelling() or self._unattracted()
        except _TooMuch:
            return None

    def unjudged(self) -> str | None:
        """Say what might keep the pod off the node: an anti-affinity with a namespace selector, or too much of any."""
        try:
            self._spend(0)
            for other, term in self._terms_of_others(""):
                if term.any_namespace and self._weighed(term).might_select(self.pod.labels):
                    return f"the namespace selector in the pod anti-affinity of {other.namespace}/{other.name}"
        except _TooMuch:
            return "required pod (anti-)affinity with so many terms and pods"
        return None

    def _spend(self, comparisons: int) -> None:
        self.left -= comparisons
        if self.left < 0:
            raise _TooMuch

    def _others(self, pods: Iterable[Pod], comparisons: int = 1) -> Iterator[Pod]:
        for pod in pods:
            self._spend(comparisons)
            if pod.key != self.pod.key:
                yield pod

    def _terms_of_others(self, namespace: str) -> Iterator[tuple[Pod, AffinityTerm]]:
        for other in self._others(self.catalog.pods_with_anti_affinity(namespace)):
            self._spend(len(other.anti_affinity))
            for term in other.anti_affinity:
                if self._together(other, term):
                    yield other, term

    def _weighed(self, term: AffinityTerm) -> AffinityTerm:
        self._spend(term.weight)
        return term

    def _domain(self, node: str, topology_key: str) -> str | None:
        place = node, topology_key
        if place not in self._domains:
            known = self.catalog.node(node)
            # A node that we do not know is still a place of its own.
            self._domains[place] = known.labels.get(topology_key) if known else f"node {node}"
        return self._domains[place]

    def _together(self, other: Pod, term: AffinityTerm) -> bool:
        domain = self._domain(self.pod.effective_node, term.topology_key)
        return domain is not None and domain == self._domain(other.effective_node, term.topology_key)

    def _repelled(self) -> str | None:
        for other, term in self._terms_of_others(self.pod.namespace):
            about_us = self.pod.namespace in term.namespaces
            if about_us and self._weighed(term).selects(self.pod.namespace, self.pod.labels):
                return f"{other.namespace}/{other.name} repels this pod (required pod anti-affinity)"
        return None

    def _repelling(self) -> str | None:
        for term in self.pod.anti_affinity:
            for other in self._others(self.catalog.placed_pods(term.namespaces), term.weight):
                if self._together(other, term) and term.selects(other.namespace, other.labels):
                    return f"this pod repels {other.namespace}/{other.name} (required pod anti-affinity)"
        return None

    def _unattracted(self) -> str | None:
        if not self.affinity_terms or not self.catalog.has_nodes():
            return None
        if any(term.any_namespace for term in self.affinity_terms):  # not to be judged
            return None
        namespaces = frozenset().union(*(term.namespaces for term in self.affinity_terms))
        weight = sum(term.weight for term in self.affinity_terms)
        placed = [
            other
            for other in self._others(self.catalog.placed_pods(namespaces), weight)
            if self.catalog.node(other.effective_node)  # the scheduler sees no pod on a node that is gone
            and all(term.selects(other.namespace, other.labels) for term in self.affinity_terms)
        ]
        # A pod that we pinned but that is not bound yet may come first or last: both must work out.
        if self._attracted([other for other in placed if other.node]) and self._attracted(placed):
            return None
        return "no pod that this pod requires (required pod affinity) is there"

    def _attracted(self, friends: list[Pod]) -> bool:
        self._spend(len(self.affinity_terms) * len(friends))
        if any(self._domain(self.pod.effective_node, term.topology_key) is None for term in self.affinity_terms):
            return False
        if all(any(self._together(friend, term) for friend in friends) for term in self.affinity_terms):
            return True
        somewhere = any(
            self._domain(friend.effective_node, term.topology_key) is not None
            for friend in friends
            for term in self.affinity_terms
        )
        return not somewhere and all(term.selects(self.pod.namespace, self.pod.labels) for term in self.affinity_terms)
