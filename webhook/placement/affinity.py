"""Add one node to a pod's node affinity, required or preferred, and keep the user's own terms.

A term names the node by `matchFields metadata.name`, because the hostname label may differ from the node's name. If
every required term names one node this way, the scheduler evaluates only that node instead of all nodes.
"""

from typing import Any

from webhook.placement.objects.fields import JsonObject, list_in, map_in, mapping, mappings, text
from webhook.placement.objects.selectors import NODE_NAME_FIELD, REQUIRED, is_empty_term
from webhook.placement.reasons import Reason

CO_SCHEDULED_NODE = "kubevirt-scheduler/co-scheduled-node"
DECISION = "kubevirt-scheduler/decision"
_ANNOTATIONS = frozenset({CO_SCHEDULED_NODE, DECISION})

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

WEIGHT = 100  # the API's maximum, so that no preference of the user outweighs the storage
# Required terms of a pod that is pinned; KubeVirt writes one to three. To pin 999 took 34 ms, and 196 KB of patch.
MAX_TERMS = 64
REPLICA_WEIGHT = 50  # of a node that has a replica: less than any preference with a node of a share-manager
_REASONS = frozenset(Reason)


def _node_field(node: str, operator: str = "In") -> JsonObject:
    return {"key": NODE_NAME_FIELD, "operator": operator, "values": [node]}


def _preferred_term(node: str, operator: str = "In", weight: int = WEIGHT) -> JsonObject:
    return {"weight": weight, "preference": {"matchFields": [_node_field(node, operator)]}}


def replica_term(node: str) -> JsonObject:
    """Return the preferred term for a node that has a replica."""
    return _preferred_term(node, weight=REPLICA_WEIGHT)


def _pinned_term(term: Any, node: str) -> Any:
    if is_empty_term(term):
        return term
    fields = list_in(term, "matchFields")
    return term if _node_field(node) in fields else {**term, "matchFields": [*fields, _node_field(node)]}


def _with_pin(required: JsonObject | None, node: str) -> JsonObject:
    if required is None:
        return {"nodeSelectorTerms": [{"matchFields": [_node_field(node)]}]}
    # Terms are ORed, so a term without the pin would admit other nodes: every term needs the pin.
    terms = [_pinned_term(term, node) for term in list_in(required, "nodeSelectorTerms")]
    return {**required, "nodeSelectorTerms": terms}


def with_node(affinity: Any, node: str, *, pin: bool = False, avoid: bool = False) -> JsonObject:
    """Return a copy of a pod's affinity that also prefers `node` (with `avoid`, all nodes but `node`).

    With `pin`, it requires `node`, too. Adds no duplicate of an existing term. Raises Malformed for an affinity that
    the API server would reject.
    """
    original = map_in({"affinity": affinity}, "affinity")
    node_affinity = map_in(original, "nodeAffinity")
    changed = dict(node_affinity)
    if pin:
        required = map_in(node_affinity, REQUIRED) if node_affinity.get(REQUIRED) is not None else None
        changed[REQUIRED] = _with_pin(required, node)
    return with_preference({**original, "nodeAffinity": changed}, _preferred_term(node, "NotIn" if avoid else "In"))


def with_preference(affinity: Any, term: JsonObject) -> JsonObject:
    """Return a copy of a pod's affinity that has a preferred term, once. Raises Malformed like `with_node`."""
    original = map_in({"affinity": affinity}, "affinity")
    node_affinity = map_in(original, "nodeAffinity")
    preferred = list_in(node_affinity, PREFERRED)
    added = preferred if term in preferred else [*preferred, term]
    return {**original, "nodeAffinity": {**node_affinity, PREFERRED: added}}


def own_preferences(preferred: list[Any], node: str) -> list[Any]:
    """Return the preferred terms that the webhook may have added for the node."""
    added = _preferred_term(node), _preferred_term(node, "NotIn")
    return [term for term in preferred if term in added]


def _names_no_share_managers_node(term: Any) -> bool:
    """Return whether a preferred term of the webhook avoids a node, or prefers one that has a replica."""
    fields = mappings(term, "preference", "matchFields")
    values = fields[0].get("values") if len(fields) == 1 else None
    if not isinstance(values, list) or len(values) != 1:
        return False
    return term in (_preferred_term(values[0], "NotIn"), replica_term(values[0]))


def has_preferred_term(affinity: JsonObject, node: str) -> bool:
    """Return whether a pod's affinity has the webhook's preferred term for the node."""
    return _preferred_term(node) in mappings(affinity, "nodeAffinity", PREFERRED)


def without_injection(
    annotations: JsonObject, affinity: JsonObject, own_affinity: JsonObject | None = None
) -> tuple[JsonObject, JsonObject]:
    """Return the annotations and the affinity of a pod without what the webhook added.

    `own_affinity` is the affinity of the VMI. A required term of it may name the same node; then the user's term stays.
    No annotation names a node that the webhook had the pod avoid, or one with a replica: any preference of that form
    counts as the webhook's.
    """
    if annotations.keys().isdisjoint(_ANNOTATIONS):
        return annotations, affinity
    kept = {key: value for key, value in annotations.items() if key not in _ANNOTATIONS}
    node = annotations.get(CO_SCHEDULED_NODE)
    node_affinity = mapping(affinity, "nodeAffinity")
    if not node_affinity:
        return kept, affinity
    preferred = list_in(node_affinity, PREFERRED)
    if isinstance(node, str):
        own_terms = list_in(mapping(own_affinity, "nodeAffinity", REQUIRED), "nodeSelectorTerms")
        preferred = [term for term in preferred if term != _preferred_term(node)]
        node_affinity = _unpinned(node_affinity, node, own_terms)
    else:
        preferred = [term for term in preferred if not _names_no_share_managers_node(term)]
    changed = {key: value for key, value in node_affinity.items() if key != PREFERRED}
    changed |= {PREFERRED: preferred} if preferred else {}
    return kept, {**affinity, "nodeAffinity": changed}


def without_pin(affinity: Any, node: str) -> JsonObject:
    """Return a copy of a pod's affinity without the webhook's required terms for `node`. The preferred terms stay."""
    original = map_in({"affinity": affinity}, "affinity")
    return {**original, "nodeAffinity": _unpinned(map_in(original, "nodeAffinity"), node, [])}


_ADDED_BY_WEBHOOK = object()


def _unpinned(node_affinity: JsonObject, node: str, own_terms: list[Any]) -> JsonObject:
    changed = {key: value for key, value in node_affinity.items() if key != REQUIRED}
    required = map_in(node_affinity, REQUIRED)
    # KubeVirt copies the VMI's terms in their order, and only adds expressions to them.
    own = {index for index, term in enumerate(own_terms) if _node_field(node) in mappings(term, "matchFields")}
    terms = [
        term if index in own else _unpinned_term(term, node)
        for index, term in enumerate(list_in(required, "nodeSelectorTerms"))
    ]
    # The webhook never pins an empty term. So a term that is empty without the pin was added by the webhook.
    if remaining := [term for term in terms if term is not _ADDED_BY_WEBHOOK]:
        changed[REQUIRED] = {**required, "nodeSelectorTerms": remaining}
    elif REQUIRED in node_affinity and not terms:
        changed[REQUIRED] = node_affinity[REQUIRED]
    return changed


def _unpinned_term(term: Any, node: str) -> Any:
    if is_empty_term(term) or _node_field(node) not in list_in(term, "matchFields"):
        return term
    fields = [field for field in term["matchFields"] if field != _node_field(node)]
    rest = {key: value for key, value in term.items() if key != "matchFields"}
    rest |= {"matchFields": fields} if fields else {}
    return _ADDED_BY_WEBHOOK if is_empty_term(rest) else rest


def matches_no_node(terms: list[JsonObject]) -> bool:
    """Return whether the terms of a required node affinity are all empty. A pod with such terms matches no node."""
    return all(map(is_empty_term, terms))


def recorded_reason(annotations: JsonObject) -> Reason | None:
    """Return the reason that the webhook recorded in a pod's annotations, None if there is none."""
    word = text(annotations, DECISION).partition(":")[0]
    return Reason(word) if word in _REASONS else None


def unpinnable_part(terms: list[JsonObject], annotations: JsonObject, node: str) -> str:
    """Return what keeps the terms of a required node affinity from being pinned to `node`; empty if nothing does.

    A later call could not tell a user's own `matchFields` from the pin, and might remove both.
    """
    if len(terms) > MAX_TERMS:
        return f"more than {MAX_TERMS} terms"
    if annotations.get(CO_SCHEDULED_NODE) == node and recorded_reason(annotations) is Reason.CO_SCHEDULED:
        return ""  # another webhook has changed a pod that was pinned before
    fields = (field for term in terms for field in mappings(term, "matchFields"))
    return "matchFields, which name a node" if any(field.get("operator") == "In" for field in fields) else ""


def pinned_node(annotations: JsonObject, terms: list[JsonObject]) -> str:
    """Return the node that the annotation and every required term name. Empty if the webhook did not pin the pod."""
    node = annotations.get(CO_SCHEDULED_NODE)
    if not isinstance(node, str) or len(terms) > MAX_TERMS:
        return ""
    filled = [term for term in terms if not is_empty_term(term)]
    return node if filled and all(_node_field(node) in mappings(term, "matchFields") for term in filled) else ""
