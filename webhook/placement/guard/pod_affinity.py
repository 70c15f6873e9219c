"""Evaluate required pod affinity and anti-affinity between a pod and the pods around a node.

Source: kube-scheduler, pkg/scheduler/framework/plugins/interpodaffinity/filtering.go.
"""

from collections.abc import Collection, Iterator

from msgspec import Struct

from webhook.placement.catalog import Catalog
from webhook.placement.guard.comparison_limit import MAX_COMPARISONS, Comparisons, LimitExceeded
from webhook.placement.objects.facts import Pod
from webhook.placement.objects.selectors import AffinityTerm, selects

UNKNOWN_NAMESPACES = "a namespaceSelector, because the namespaces are unknown"
TOO_MANY_COMPARISONS = f"constraints that need more than {MAX_COMPARISONS:,} comparisons"


class Verdict(Struct, frozen=True):
    """The conflict as the detail of a `FailedCheck`, and what can't be evaluated."""

    conflict: str | None = None
    unsupported: str = ""


class InterPodAffinity:
    """A pod on its target node, and its required affinity terms.

    The terms of the pod itself and of its own namespace's pods come first. Those of other namespaces get half of the
    comparisons that are left. `passed_over` means that something of another namespace's pod couldn't be evaluated: its
    users must not change this pod's placement with terms that are hard to evaluate.
    """

    def __init__(
        self, pod: Pod, affinity_terms: tuple[AffinityTerm, ...], catalog: Catalog, comparisons: Comparisons
    ) -> None:
        self.pod = pod
        self.affinity_terms = affinity_terms
        self.catalog = catalog
        self.comparisons = comparisons
        self._unknown = self.passed_over = False
        self._oversized: Collection[str] = ()
        self._verdict: Verdict | None = None

    @property
    def verdict(self) -> Verdict:
        """Evaluate the terms of the pod and of all pods that may repel it, once."""
        self._verdict = self._verdict or self._evaluate()
        return self._verdict

    def _evaluate(self) -> Verdict:
        self._oversized = self.catalog.oversized_pods()
        unknown = self._unknown_terms()
        try:
            conflict = self._repels_other() or (None if unknown else self._unmet_affinity()) or self._repelled(own=True)
        except LimitExceeded:
            return Verdict(None, unknown or TOO_MANY_COMPARISONS)
        if not conflict:
            conflict = self._repelled_by_others()
        return Verdict(conflict, unknown or (UNKNOWN_NAMESPACES if self._unknown else ""))

    def _unknown_terms(self) -> str:
        own = self.pod.namespace
        if self.pod.oversized:
            return "labels, claims, requests or required pod (anti-)affinity of this size"
        if own in self._oversized:  # it may repel each pod of its namespace
            return f"a pod of namespace {own} that has too many labels or terms"
        terms = self.pod.anti_affinity + self.affinity_terms
        if terms and any(term.namespace_selector is not None for term in terms) and self.catalog.namespace(own) is None:
            return UNKNOWN_NAMESPACES
        return ""

    def _namespaces(self, term: AffinityTerm) -> Iterator[str]:
        yield from term.namespaces
        if term.namespace_selector is not None:
            for namespace in self.catalog.all_namespaces():
                self.comparisons.spend(1 + len(term.namespace_selector))
                if namespace.name not in term.namespaces and selects(term.namespace_selector, namespace.labels):
                    yield namespace.name

    def _selected(self, term: AffinityTerm) -> Iterator[Pod]:
        """Yield the pods that one of the pod's own terms selects, on any node."""
        for namespace in self._namespaces(term) if term.selector is not None else ():
            if namespace != self.pod.namespace and namespace in self._oversized:
                self.passed_over = True
            for other in self.catalog.placed_pods(namespace, term.selector or ()):
                self.comparisons.spend(term.cost)
                ignored = other.key == self.pod.key or other.is_ignored_for(self.pod)
                if not ignored and selects(term.selector, other.labels):
                    yield other

    def _domain(self, node: str, topology_key: str) -> str | None:
        found = self.catalog.node(node)
        return found.labels.get(topology_key) if found else f"node {node}"  # an unknown node is a domain of its own

    def _same_domain(self, other: Pod, term: AffinityTerm) -> bool:
        domain = self._domain(self.pod.effective_node, term.topology_key)
        return domain is not None and domain == self._domain(other.effective_node, term.topology_key)

    def _name(self, other: Pod) -> str:
        # The sentence reaches the VM's namespace, whose users may not know the pods of others.
        in_namespace = other.namespace == self.pod.namespace
        return f"{other.namespace}/{other.name}" if in_namespace else "a pod of another namespace"

    def _repels_other(self) -> str | None:
        for term in self.pod.anti_affinity:
            for other in self._selected(term):
                if self._same_domain(other, term):
                    return f"conflicts with the pod's required anti-affinity to {self._name(other)}"
        return None

    def _repelled_by_others(self) -> str | None:
        self.passed_over |= any(namespace != self.pod.namespace for namespace in self._oversized)
        kept = self.comparisons.left - self.comparisons.left // 2
        self.comparisons.left -= kept
        try:
            return self._repelled(own=False)
        except LimitExceeded:
            self.passed_over, self.comparisons.left = True, 0
            return None
        finally:
            self.comparisons.left += kept

    def _repelled(self, *, own: bool) -> str | None:
        namespace, labels = self.pod.namespace, self.pod.labels
        for other, term in self.catalog.repelling_terms(namespace, labels, own=own):
            self.comparisons.spend()
            if other.key == self.pod.key or other.is_ignored_for(self.pod) or not self._same_domain(other, term):
                continue
            self.comparisons.spend(term.cost)
            if not selects(term.selector, labels):
                continue
            if namespace in term.namespaces or self._selects_namespace(term, own=own):
                return f"conflicts with the required pod anti-affinity of {self._name(other)}"
        return None

    def _selects_namespace(self, term: AffinityTerm, *, own: bool) -> bool:
        found = self.catalog.namespace(self.pod.namespace) if term.namespace_selector else None
        if term.namespace_selector and found is None:
            self._unknown = self._unknown or own
            self.passed_over = self.passed_over or not own
            return False
        return selects(term.namespace_selector, found.labels if found else {})

    def _unmet_affinity(self) -> str | None:
        if not self.affinity_terms or not self.catalog.all_nodes():
            return None
        terms = self.affinity_terms
        placed = [
            other
            for other in self._selected(terms[0])
            if self.catalog.node(other.effective_node)  # the scheduler ignores pods on deleted nodes
            and not other.prefers  # it may be bound to another node
            and all(self._selects(term, other) for term in terms[1:])
        ]
        # A pinned, unbound pod may be scheduled before or after this pod: the affinity must be met either way.
        if self._affinity_met([other for other in placed if other.node]) and self._affinity_met(placed):
            return None
        return "does not match the pod's required pod affinity"

    def _selects(self, term: AffinityTerm, other: Pod) -> bool:
        self.comparisons.spend(term.cost)
        namespace = self.catalog.namespace(other.namespace)
        return term.selects(other.namespace, namespace.labels if namespace else {}, other.labels)

    def _affinity_met(self, matching: list[Pod]) -> bool:
        self.comparisons.spend(len(self.affinity_terms) * len(matching))
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
        return not any_in_a_domain and all(self._selects(term, self.pod) for term in self.affinity_terms)
