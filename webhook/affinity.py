"""Pin and prefer one node, and leave everything that the user asked for as it was.

The node is named in `matchFields metadata.name`, not by its hostname label, which may differ from the node's name; and
when every required term names a node so, the scheduler looks at that node alone instead of at all of them.
"""

from typing import Any

from webhook.selectors import NODE_NAME_FIELD, is_empty_term
from webhook.shape import JsonObject, Malformed, mapping, mappings

CO_SCHEDULED_NODE = "kubevirt-scheduler/co-scheduled-node"
DECISION = "kubevirt-scheduler/decision"

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

WEIGHT = 100  # the largest that the API allows: of all the user's preferences none outweighs the storage


def _named(node: str) -> JsonObject:
    return {"key": NODE_NAME_FIELD, "operator": "In", "values": [node]}


def _preference(node: str) -> JsonObject:
    return {"weight": WEIGHT, "preference": {"matchFields": [_named(node)]}}


# Unlike when reading, nothing of another type may pass for empty here: it would be overwritten.
def _map(parent: JsonObject, key: str) -> JsonObject:
    value = parent.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Malformed(f"{key} is not a map")
    return value


def _list(parent: JsonObject, key: str) -> list[Any]:
    value = parent.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise Malformed(f"{key} is not a list")
    return value


def _pin_term(term: Any, node: str) -> Any:
    if is_empty_term(term):
        return term
    fields = _list(term, "matchFields")
    return term if _named(node) in fields else {**term, "matchFields": [*fields, _named(node)]}


def _pin(required: JsonObject | None, node: str) -> JsonObject:
    if required is None:
        return {"nodeSelectorTerms": [{"matchFields": [_named(node)]}]}
    # Terms are ORed, so a pin in one of them, or in one more, would void it: it goes into every term.
    terms = _list(required, "nodeSelectorTerms")
    return {**required, "nodeSelectorTerms": [_pin_term(term, node) for term in terms]}


def _prefer(preferred: list[Any], node: str) -> list[Any]:
    return preferred if _preference(node) in preferred else [*preferred, _preference(node)]


def with_node(affinity: Any, node: str, *, pin: bool) -> JsonObject:
    """Return a pod's affinity that also prefers `node` and, with `pin`, requires it. `affinity` is not changed.

    What is there already is not added twice. Raises Malformed for an affinity that the API server would refuse.
    """
    whole = _map({"affinity": affinity}, "affinity")
    inner = _map(whole, "nodeAffinity")
    changed = dict(inner)
    if pin:
        required = _map(inner, REQUIRED) if inner.get(REQUIRED) is not None else None
        changed[REQUIRED] = _pin(required, node)
    changed[PREFERRED] = _prefer(_list(inner, PREFERRED), node)
    return {**whole, "nodeAffinity": changed}


def prefers(pod: JsonObject, node: str) -> bool:
    """Say whether the pod carries our preferred term for the node."""
    return _preference(node) in mappings(pod, "spec", "affinity", "nodeAffinity", PREFERRED)


def matches_nothing(pod: JsonObject) -> bool:
    """Say whether the pod's required node affinity has no term that matches any node, so that none can carry a pin."""
    required = mapping(pod, "spec", "affinity", "nodeAffinity").get(REQUIRED)
    return isinstance(required, dict) and all(is_empty_term(term) for term in mappings(required, "nodeSelectorTerms"))


def pinned_node(pod: JsonObject) -> str:
    """Return the node that annotation and every required term name: we pinned the pod to it. Empty where we did not."""
    node = mapping(pod, "metadata", "annotations").get(CO_SCHEDULED_NODE)
    required = mapping(pod, "spec", "affinity", "nodeAffinity", REQUIRED)
    terms = [term for term in mappings(required, "nodeSelectorTerms") if not is_empty_term(term)]
    if isinstance(node, str) and terms and all(_named(node) in mappings(term, "matchFields") for term in terms):
        return node
    return ""
