"""Pin and prefer one node, and leave everything that the user asked for as it was.

The node is named in `matchFields metadata.name`, not by its hostname label, which may differ from the node's name; and
when every required term names a node so, the scheduler looks at that node alone instead of at all of them.
"""

from typing import Any

from webhook.placement.selectors import NODE_NAME_FIELD, REQUIRED, is_empty_term
from webhook.placement.shape import JsonObject, list_in, map_in, mapping, mappings

CO_SCHEDULED_NODE = "kubevirt-scheduler/co-scheduled-node"
DECISION = "kubevirt-scheduler/decision"

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

WEIGHT = 100  # the largest that the API allows: of all the user's preferences none outweighs the storage


def _named(node: str) -> JsonObject:
    return {"key": NODE_NAME_FIELD, "operator": "In", "values": [node]}


def _preference(node: str) -> JsonObject:
    return {"weight": WEIGHT, "preference": {"matchFields": [_named(node)]}}


def _pin_term(term: Any, node: str) -> Any:
    if is_empty_term(term):
        return term
    fields = list_in(term, "matchFields")
    return term if _named(node) in fields else {**term, "matchFields": [*fields, _named(node)]}


def _pin(required: JsonObject | None, node: str) -> JsonObject:
    if required is None:
        return {"nodeSelectorTerms": [{"matchFields": [_named(node)]}]}
    # Terms are ORed, so a pin in one of them, or in one more, would void it: it goes into every term.
    terms = list_in(required, "nodeSelectorTerms")
    if not terms:  # matches nothing, and can't carry a pin
        return required
    return {**required, "nodeSelectorTerms": [_pin_term(term, node) for term in terms]}


def _prefer(preferred: list[Any], node: str) -> list[Any]:
    return preferred if _preference(node) in preferred else [*preferred, _preference(node)]


def with_node(affinity: Any, node: str, *, pin: bool) -> JsonObject:
    """Return a pod's affinity that also prefers `node` and, with `pin`, requires it. `affinity` is not changed.

    What is there already is not added twice. Raises Malformed for an affinity that the API server would refuse.
    """
    whole = map_in({"affinity": affinity}, "affinity")
    inner = map_in(whole, "nodeAffinity")
    changed = dict(inner)
    if pin:
        required = map_in(inner, REQUIRED) if inner.get(REQUIRED) is not None else None
        changed[REQUIRED] = _pin(required, node)
    changed[PREFERRED] = _prefer(list_in(inner, PREFERRED), node)
    return {**whole, "nodeAffinity": changed}


def is_voided(pod: JsonObject, node: str) -> bool:
    """Say whether our pin stands in some of the required terms but not in all: another webhook added one after us."""
    carried = _carried(pod, node)
    return any(carried) and not all(carried)


def _carried(pod: JsonObject, node: str) -> list[bool]:
    """Say of each required term that is not empty whether it carries our pin."""
    required = mapping(pod, "spec", "affinity", "nodeAffinity", REQUIRED)
    terms = [term for term in mappings(required, "nodeSelectorTerms") if not is_empty_term(term)]
    return [_named(node) in mappings(term, "matchFields") for term in terms]


def prefers(pod: JsonObject, node: str) -> bool:
    """Say whether the pod carries our preferred term for the node."""
    return _preference(node) in mappings(pod, "spec", "affinity", "nodeAffinity", PREFERRED)


def without_injection(pod: JsonObject) -> JsonObject:
    """Return a pod as it was before we pinned it: without our annotations and our terms. `pod` is not changed."""
    annotations = mapping(pod, "metadata", "annotations")
    node = annotations.get(CO_SCHEDULED_NODE)
    kept = {key: value for key, value in annotations.items() if key not in (CO_SCHEDULED_NODE, DECISION)}
    bare = {**pod, "metadata": {**mapping(pod, "metadata"), "annotations": kept}}
    inner = mapping(pod, "spec", "affinity", "nodeAffinity")
    if not isinstance(node, str) or not inner:
        return bare
    changed = {key: value for key, value in inner.items() if key not in (REQUIRED, PREFERRED)}
    required = map_in(inner, REQUIRED)
    terms = [_unpin_term(term, node) for term in list_in(required, "nodeSelectorTerms")]
    # A term in which nothing is left was ours as a whole: into an empty one we put nothing.
    if left := [term for term in terms if term is not _OURS]:
        changed[REQUIRED] = {**required, "nodeSelectorTerms": left}
    elif REQUIRED in inner and not terms:
        changed[REQUIRED] = inner[REQUIRED]
    if wishes := [wish for wish in list_in(inner, PREFERRED) if wish != _preference(node)]:
        changed[PREFERRED] = wishes
    affinity = {**mapping(pod, "spec", "affinity"), "nodeAffinity": changed}
    return {**bare, "spec": {**mapping(pod, "spec"), "affinity": affinity}}


_OURS = object()


def _unpin_term(term: Any, node: str) -> Any:
    if is_empty_term(term) or _named(node) not in list_in(term, "matchFields"):
        return term
    fields = [field for field in term["matchFields"] if field != _named(node)]
    rest = {key: value for key, value in term.items() if key != "matchFields"} | (
        {"matchFields": fields} if fields else {}
    )
    return _OURS if is_empty_term(rest) else rest


def matches_nothing(pod: JsonObject) -> bool:
    """Say whether the pod's required node affinity has no term that matches any node, so that none can carry a pin."""
    required = mapping(pod, "spec", "affinity", "nodeAffinity").get(REQUIRED)
    return isinstance(required, dict) and all(is_empty_term(term) for term in mappings(required, "nodeSelectorTerms"))


def pinned_node(pod: JsonObject) -> str:
    """Return the node that annotation and every required term name: we pinned the pod to it. Empty where we did not."""
    node = mapping(pod, "metadata", "annotations").get(CO_SCHEDULED_NODE)
    if not isinstance(node, str):
        return ""
    carried = _carried(pod, node)
    return node if carried and all(carried) else ""
