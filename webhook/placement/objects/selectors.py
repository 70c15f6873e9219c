"""Match label selectors, node selectors and affinity terms like Kubernetes.

Source: k8s.io/apimachinery `labels.Requirement.Matches`, k8s.io/component-helpers/scheduling/corev1/nodeaffinity.
"""

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from webhook.placement.objects.fields import JsonObject, mapping, mappings, text

NODE_NAME_FIELD = "metadata.name"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
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


def _matches(requirement: JsonObject, values: Mapping[str, str]) -> bool:
    key, wanted = text(requirement, "key"), requirement.get("values") or []
    match operator := requirement.get("operator"):
        case "In":
            return key in values and values[key] in wanted
        case "NotIn":
            return key not in values or values[key] not in wanted
        case "Exists":
            return key in values
        case "DoesNotExist":
            return key not in values
        case "Gt" | "Lt":
            actual, bound = _integer(values.get(key)), _integer(wanted[0] if len(wanted) == 1 else None)
            return actual is not None and bound is not None and (actual > bound if operator == "Gt" else actual < bound)
        case _:
            return False


def labels_match(selector: JsonObject | None, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector selects these labels. Null selects nothing, an empty selector everything."""
    if selector is None:
        return False
    return all(labels.get(key) == value for key, value in mapping(selector, "matchLabels").items()) and all(
        _matches(requirement, labels) for requirement in mappings(selector, "matchExpressions")
    )


def is_empty_term(term: Any) -> bool:
    """Return whether a node selector term is null or empty. Such a term matches no node, and must stay empty."""
    return not (isinstance(term, dict) and (term.get("matchExpressions") or term.get("matchFields")))


def node_matches(selector: JsonObject, name: str, labels: Mapping[str, str]) -> bool:
    """Return whether a node selector selects a node: terms are ORed, the requirements of a term are ANDed.

    A list without terms and a term without requirements match nothing. An empty `name` skips matchFields, as the
    scheduler does for a PV's node affinity.
    """
    for term in mappings(selector, "nodeSelectorTerms"):
        if is_empty_term(term):
            continue
        fields = mappings(term, "matchFields") if name else []
        if all(_matches(requirement, labels) for requirement in mappings(term, "matchExpressions")) and all(
            _matches(requirement, {NODE_NAME_FIELD: name}) for requirement in fields
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
    """A required pod affinity or anti-affinity term.

    `has_namespace_selector` marks a namespace selector, which the webhook can't evaluate: it does not watch namespaces.
    `cost` is the cost of comparing one pod with the term: 1 plus the number of requirements and their values.
    """

    namespaces: frozenset[str]
    has_namespace_selector: bool
    selector: JsonObject | None
    topology_key: str
    cost: int = 1

    def selects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Return whether the term selects a pod with these labels. Ignores a namespace selector."""
        return namespace in self.namespaces and labels_match(self.selector, labels)

    def might_select(self, labels: Mapping[str, str]) -> bool:
        """Return whether the term selects a pod with these labels if its namespace selector selects the namespace."""
        return self.has_namespace_selector and labels_match(self.selector, labels)


def _merged_selector(term: JsonObject, labels: Mapping[str, str]) -> JsonObject | None:
    if not isinstance(term.get("labelSelector"), dict):
        return None
    selector = mapping(term, "labelSelector")
    # The API server merges these keys into the selector, but only after it has called the webhooks.
    merged = [
        {"key": key, "operator": operator, "values": [labels[key]]}
        for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn"))
        for key in term.get(field) or ()
        if key in labels
    ]
    return {**selector, "matchExpressions": mappings(selector, "matchExpressions") + merged} if merged else selector


def required_terms(pod: JsonObject, namespace: str, kind: str) -> tuple[AffinityTerm, ...]:
    """Read a pod's required terms; `kind` is podAffinity or podAntiAffinity."""
    terms = mappings(pod, "spec", "affinity", kind, REQUIRED)
    if not terms:  # most pods
        return ()
    labels = mapping(pod, "metadata", "labels")
    return tuple(_affinity_term(term, namespace, labels) for term in terms)


def _affinity_term(term: JsonObject, namespace: str, labels: Mapping[str, str]) -> AffinityTerm:
    selector = _merged_selector(term, labels)
    wanted = [requirement.get("values") or () for requirement in mappings(selector, "matchExpressions")]
    return AffinityTerm(
        frozenset(term.get("namespaces") or (() if selects_namespaces(term) else (namespace,))),
        selects_namespaces(term),
        selector,
        text(term, "topologyKey"),
        1 + len(mapping(selector, "matchLabels")) + len(wanted) + sum(map(len, wanted)),
    )


def selects_namespaces(term: JsonObject) -> bool:
    """Return whether a term has a namespace selector. Null is none; an empty selector selects all namespaces."""
    return term.get("namespaceSelector") is not None
