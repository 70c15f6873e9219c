"""Match label selectors, node selectors and affinity terms like Kubernetes.

Source: k8s.io/apimachinery `labels.Requirement.Matches`, k8s.io/component-helpers/scheduling/corev1/nodeaffinity,
kube-scheduler `framework.AffinityTerm.Matches`.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from msgspec import Struct

from webhook.placement.objects.fields import JsonObject, mapping, mappings, strings, text

NODE_NAME_FIELD = "metadata.name"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
MIN_SET = 8  # values; a search in fewer is faster in a tuple, which also takes a quarter of the memory
# The labels of a PV that the scheduler compares with its nodes, and the node's label if it lacks the same one.
TOPOLOGY_LABELS = {
    f"{prefix}/{domain}": f"topology.kubernetes.io/{domain}"
    for prefix in ("failure-domain.beta.kubernetes.io", "topology.kubernetes.io")
    for domain in ("zone", "region")
}

_INTEGER = re.compile(r"[+-]?[0-9]+")


def _integer(value: Any) -> int | None:
    # Like Go's ParseInt, which accepts no underscores, only ASCII digits, and at most 64 bits.
    if not isinstance(value, str) or not _INTEGER.fullmatch(value) or len(value) > 20:
        return None
    number = int(value)
    return number if -(2**63) <= number < 2**63 else None


class Requirement(Struct, frozen=True):
    """One requirement of a selector. To match it takes the same time, however many `values` it has."""

    key: str
    operator: str
    values: Collection[str] = ()

    @property
    def equal_to(self) -> Collection[str]:
        """Return the few values of which a selected object has one. Empty if an index by value can't help."""
        return self.values if self.operator == "In" and len(self.values) < MIN_SET else ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels meet the requirement. One with an unknown operator matches nothing."""
        key = self.key
        match self.operator:
            case "In":
                return key in labels and labels[key] in self.values
            case "NotIn":
                return key not in labels or labels[key] not in self.values
            case "Exists":
                return key in labels
            case "DoesNotExist":
                return key not in labels
            case "Gt" | "Lt":
                actual = _integer(labels.get(key))
                bound = _integer(next(iter(self.values))) if len(self.values) == 1 else None
                if actual is None or bound is None:
                    return False
                return actual > bound if self.operator == "Gt" else actual < bound
            case _:
                return False


# All must match. An empty selector selects everything.
Selector = tuple[Requirement, ...]


def _requirement(requirement: JsonObject) -> Requirement:
    values = strings(requirement, "values")
    found = values if len(values) < MIN_SET else frozenset(values)
    return Requirement(text(requirement, "key"), text(requirement, "operator"), found)


def label_selector(selector: Any) -> Selector | None:
    """Compile a label selector. None, which selects nothing, for null."""
    if not isinstance(selector, dict):
        return None
    labels = mapping(selector, "matchLabels").items()
    equalities = tuple(Requirement(key, "In", (value,) if type(value) is str else ()) for key, value in labels)
    return equalities + tuple(map(_requirement, mappings(selector, "matchExpressions")))


def selects(selector: Iterable[Requirement] | None, labels: Mapping[str, str]) -> bool:
    """Return whether a selector selects labels. None selects nothing, an empty selector everything."""
    if selector is None:
        return False
    for requirement in selector:  # noqa: SIM110 (`all` with a generator takes twice as long)
        if not requirement.matches(labels):
            return False
    return True


def labels_match(selector: JsonObject | None, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector selects these labels."""
    return selects(label_selector(selector), labels)


def is_empty_term(term: Any) -> bool:
    """Return whether a node selector term is null or empty. Such a term matches no node, and must stay empty."""
    return not (isinstance(term, dict) and (term.get("matchExpressions") or term.get("matchFields")))


def node_matches(
    terms: Iterable[JsonObject], name: str, labels: Mapping[str, str], spend: Callable[[int], None]
) -> bool:
    """Return whether a node selector selects a node: terms are ORed, the requirements of a term are ANDed.

    A selector without terms and a term without requirements match nothing. An empty `name` skips matchFields, as the
    scheduler does for a PV's node affinity. Calls `spend` with the requirements and values of a term before it compares
    them.
    """
    for term in terms:
        spend(1)
        if is_empty_term(term):
            continue
        fields = mappings(term, "matchFields") if name and "matchFields" in term else []
        expressions = mappings(term, "matchExpressions")
        for requirement in (*expressions, *fields):
            spend(1 + len(strings(requirement, "values")))
        if selects(map(_requirement, expressions), labels) and selects(
            map(_requirement, fields), {NODE_NAME_FIELD: name}
        ):
            return True
    return False


def zones_match(zones: Mapping[str, frozenset[str]], labels: Mapping[str, str]) -> bool:
    """Return whether a node is in the zones and regions of a PV. A node without any such label is in all of them.

    Source: kube-scheduler, pkg/scheduler/framework/plugins/volumezone/volume_zone.go.
    """
    if not any(key in labels for key in TOPOLOGY_LABELS):
        return True
    return all(labels.get(key, labels.get(TOPOLOGY_LABELS[key])) in admitted for key, admitted in zones.items())


class AffinityTerm(Struct, frozen=True):
    """A required pod affinity or anti-affinity term. It selects pods of `namespaces`, and of those that have labels."""

    namespaces: Collection[str]
    namespace_selector: Selector | None
    selector: Selector | None
    topology_key: str

    @property
    def cost(self) -> int:
        """Return how many comparisons it takes to evaluate the term for one pod."""
        return 1 + len(self.selector or ()) + len(self.namespace_selector or ())

    def selects(self, namespace: str, namespace_labels: Mapping[str, str], labels: Mapping[str, str]) -> bool:
        """Return whether the term selects a pod with these labels in a namespace with those labels."""
        in_namespace = namespace in self.namespaces or selects(self.namespace_selector, namespace_labels)
        return in_namespace and selects(self.selector, labels)


def required_terms(
    affinity: JsonObject, labels: Mapping[str, str], namespace: str, kind: str
) -> tuple[AffinityTerm, ...]:
    """Read the required terms of a pod with these labels; `kind` is podAffinity or podAntiAffinity."""
    if kind not in affinity:  # most pods
        return ()
    terms = mappings(affinity, kind, REQUIRED)
    return tuple(_affinity_term(term, namespace, labels) for term in terms)


def _affinity_term(term: JsonObject, namespace: str, labels: Mapping[str, str]) -> AffinityTerm:
    selector = label_selector(term.get("labelSelector"))
    namespaces = label_selector(term.get("namespaceSelector"))
    if selector is not None:
        # The API server merges these keys into the selector, but only after it has called the webhooks.
        selector += tuple(
            Requirement(key, operator, (labels[key],))
            for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn"))
            for key in strings(term, field)
            if type(labels.get(key)) is str
        )
    named = strings(term, "namespaces") or (() if namespaces is not None else (namespace,))
    return AffinityTerm(tuple(dict.fromkeys(named)), namespaces, selector, text(term, "topologyKey"))
