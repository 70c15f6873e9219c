"""Evaluate required pod affinity and anti-affinity between a pod and the pods around a node.

Source: kube-scheduler, pkg/scheduler/framework/plugins/interpodaffinity/filtering.go.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from webhook.placement.catalog import Catalog
from webhook.placement.objects.facts import Pod
from webhook.placement.objects.selectors import AffinityTerm

# Limit for comparisons of a pod with a value in a term. 100,000 take about 50 ms and block all other requests.
# A user who can create pods can write thousands of terms. With the pods of a large cluster, these would take minutes.
MAX_COMPARISONS = 100_000


class _LimitExceeded(Exception):
    """The comparisons exceed the limit."""


@dataclass(slots=True)
class InterPodAffinity:
    """A pod on its target node, its required affinity terms, and the number of comparisons `left` before the limit."""

    pod: Pod
    affinity_terms: tuple[AffinityTerm, ...]
    catalog: Catalog
    comparisons_left: int = MAX_COMPARISONS
    _domains: dict[tuple[str, str], str | None] = field(default_factory=dict)

    def conflict(self) -> str | None:
        """Return the conflict as the detail of a `FailedCheck`, or None. `unsupported` reports an exceeded limit."""
        try:
            return self._repelled_by_other() or self._repels_other() or self._unmet_affinity()
        except _LimitExceeded:
            return None

    def unsupported(self) -> str | None:
        """Return what the guard can't evaluate: a namespace selector of an anti-affinity, or too many comparisons."""
        try:
            self._spend(0)  # raises if `conflict` exceeded the limit
            for other, term in self._terms_of_others(""):
                if term.has_namespace_selector and self._charged(term).might_select(self.pod.labels):
                    return f"the namespace selector in the pod anti-affinity of {other.namespace}/{other.name}"
        except _LimitExceeded:
            return f"required pod (anti-)affinity that needs more than {MAX_COMPARISONS:,} comparisons"
        return None

    def _spend(self, comparisons: int) -> None:
        self.comparisons_left -= comparisons
        if self.comparisons_left < 0:
            raise _LimitExceeded

    def _others(self, pods: Iterable[Pod], comparisons: int = 1) -> Iterator[Pod]:
        for pod in pods:
            self._spend(comparisons)
            if pod.key != self.pod.key:
                yield pod

    def _terms_of_others(self, namespace: str) -> Iterator[tuple[Pod, AffinityTerm]]:
        for other in self._others(self.catalog.pods_with_anti_affinity(namespace)):
            self._spend(len(other.anti_affinity))
            for term in other.anti_affinity:
                if self._same_domain(other, term):
                    yield other, term

    def _charged(self, term: AffinityTerm) -> AffinityTerm:
        self._spend(term.cost)
        return term

    def _domain(self, node: str, topology_key: str) -> str | None:
        key = node, topology_key
        if key not in self._domains:
            found = self.catalog.node(node)
            # An unknown node is a topology domain of its own.
            self._domains[key] = found.labels.get(topology_key) if found else f"node {node}"
        return self._domains[key]

    def _same_domain(self, other: Pod, term: AffinityTerm) -> bool:
        domain = self._domain(self.pod.effective_node, term.topology_key)
        return domain is not None and domain == self._domain(other.effective_node, term.topology_key)

    def _repelled_by_other(self) -> str | None:
        for other, term in self._terms_of_others(self.pod.namespace):
            in_namespace = self.pod.namespace in term.namespaces
            if in_namespace and self._charged(term).selects(self.pod.namespace, self.pod.labels):
                return f"conflicts with the required pod anti-affinity of {other.namespace}/{other.name}"
        return None

    def _repels_other(self) -> str | None:
        for term in self.pod.anti_affinity:
            for other in self._others(self.catalog.placed_pods(term.namespaces), term.cost):
                if self._same_domain(other, term) and term.selects(other.namespace, other.labels):
                    return f"conflicts with the pod's required anti-affinity to {other.namespace}/{other.name}"
        return None

    def _unmet_affinity(self) -> str | None:
        if not self.affinity_terms or not self.catalog.has_nodes():
            return None
        if any(term.has_namespace_selector for term in self.affinity_terms):  # unsupported_field reports the pod
            return None
        namespaces = frozenset().union(*(term.namespaces for term in self.affinity_terms))
        weight = sum(term.cost for term in self.affinity_terms)
        placed = [
            other
            for other in self._others(self.catalog.placed_pods(namespaces), weight)
            if self.catalog.node(other.effective_node)  # the scheduler ignores pods on deleted nodes
            and not other.prefers  # it may be bound to another node
            and all(term.selects(other.namespace, other.labels) for term in self.affinity_terms)
        ]
        # A pinned, unbound pod may be scheduled before or after this pod: the affinity must be met either way.
        if self._affinity_met([other for other in placed if other.node]) and self._affinity_met(placed):
            return None
        return "does not match the pod's required pod affinity"

    def _affinity_met(self, matching: list[Pod]) -> bool:
        self._spend(len(self.affinity_terms) * len(matching))
        if any(self._domain(self.pod.effective_node, term.topology_key) is None for term in self.affinity_terms):
            return False
        if all(any(self._same_domain(other, term) for other in matching) for term in self.affinity_terms):
            return True
        any_in_a_domain = any(
            self._domain(other.effective_node, term.topology_key) is not None
            for other in matching
            for term in self.affinity_terms
        )
        # The scheduler allows the first pod of a group to satisfy its own terms.
        return not any_in_a_domain and all(
            term.selects(self.pod.namespace, self.pod.labels) for term in self.affinity_terms
        )
