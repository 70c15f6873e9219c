"""Whether a pod and the pods around a node attract or repel each other: required pod (anti-)affinity.

Source: kube-scheduler, pkg/scheduler/framework/plugins/interpodaffinity/filtering.go.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from webhook.catalog import Catalog, Pod
from webhook.selectors import AffinityTerm


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """A pod, as it is to live on its site among the others, and whom it wants near."""

    pod: Pod
    attracts: tuple[AffinityTerm, ...]
    catalog: Catalog

    def conflict(self) -> str | None:
        """Say which pod affinity keeps the pod off the node, or None."""
        return self._repelled() or self._repelling() or self._unattracted()

    def unjudged(self) -> str | None:
        """Say whose anti-affinity might keep the pod off the node, if we knew its namespace selector's answer."""
        for other in self._others(self.catalog.repelling_pods()):
            for term in other.repels:
                if term.might_select(self.pod.labels) and self._together(other, term.topology_key):
                    return f"the namespace selector in the pod anti-affinity of {other.namespace}/{other.name}"
        return None

    def _others(self, pods: Iterable[Pod]) -> Iterable[Pod]:
        return (pod for pod in pods if pod.key != self.pod.key)

    def _domain(self, node: str, topology_key: str) -> str | None:
        known = self.catalog.node(node)
        # A node that we do not know is still a place of its own.
        return known.labels.get(topology_key) if known else f"node {node}"

    def _together(self, other: Pod, topology_key: str) -> bool:
        domain = self._domain(self.pod.site, topology_key)
        return domain is not None and domain == self._domain(other.site, topology_key)

    def _repelled(self) -> str | None:
        for other in self._others(self.catalog.repelling_pods()):
            for term in other.repels:
                if term.selects(self.pod.namespace, self.pod.labels) and self._together(other, term.topology_key):
                    return f"{other.namespace}/{other.name} repels this pod (required pod anti-affinity)"
        return None

    def _repelling(self) -> str | None:
        for term in self.pod.repels:
            for other in self._others(self.catalog.placed_pods(term.namespaces)):
                if term.selects(other.namespace, other.labels) and self._together(other, term.topology_key):
                    return f"this pod repels {other.namespace}/{other.name} (required pod anti-affinity)"
        return None

    def _unattracted(self) -> str | None:
        if not self.attracts or not self.catalog.knows_nodes():
            return None
        if any(term.any_namespace for term in self.attracts):  # not to be judged
            return None
        namespaces = frozenset().union(*(term.namespaces for term in self.attracts))
        placed = [
            other
            for other in self._others(self.catalog.placed_pods(namespaces))
            if self.catalog.node(other.site)  # the scheduler sees no pod on a node that is gone
            and all(term.selects(other.namespace, other.labels) for term in self.attracts)
        ]
        # A pod that we pinned but that is not bound yet may come first or last: both must work out.
        if self._attracted([other for other in placed if other.node]) and self._attracted(placed):
            return None
        return "no pod that this pod requires (required pod affinity) is there"

    def _attracted(self, friends: list[Pod]) -> bool:
        keys = [term.topology_key for term in self.attracts]
        if any(self._domain(self.pod.site, key) is None for key in keys):
            return False
        if all(any(self._together(friend, key) for friend in friends) for key in keys):
            return True
        somewhere = any(self._domain(friend.site, key) is not None for friend in friends for key in keys)
        return not somewhere and all(term.selects(self.pod.namespace, self.pod.labels) for term in self.attracts)
