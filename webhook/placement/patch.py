"""Turn a decision into the pod's JSON patch: annotations, affinity and schedulerName.

The diff is our own: a general differ walks the whole pod and emits `move`, `test` and index operations that the API
server may reject. jsonpatch verifies the patch, because a patch that does not apply rejects the user's pod.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import jsonpatch
import msgspec

from webhook.placement.affinity import (
    CO_SCHEDULED_NODE,
    DECISION,
    PREFERRED,
    WEIGHT,
    own_preferences,
    replica_term,
    with_node,
    with_preference,
    without_pin,
)
from webhook.placement.objects.fields import JsonObject, Malformed, list_in, map_in
from webhook.placement.objects.pod import Manifest
from webhook.placement.objects.pod_object import NO_SPEC, PodSpec
from webhook.placement.objects.selectors import REQUIRED, Selector
from webhook.placement.reasons import Decision, OptedInBy, Outcome, Reason
from webhook.placement.settings import Settings

Operation = dict[str, Any]

# bytes of an affinity. KubeVirt's have 200; larger ones rarely repeat, and 1,000 of 16 KiB with their operations took
# 100 MB.
MAX_CACHED_LENGTH = 1024
# The API server's limit for all annotations of an object together, in bytes. It rejects a pod above the limit.
MAX_ANNOTATIONS_SIZE = 256 * 1024


class PatchMismatch(RuntimeError):
    """A patch that does not turn the received object into the intended one."""


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _diff(before: Any, after: Any, path: str) -> Iterator[Operation]:
    # `before` and `after` differ: the callers have compared them.
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _diff_maps(before, after, path)
    elif isinstance(before, list) and isinstance(after, list) and len(before) <= len(after):
        for index, old in enumerate(before):
            if old != after[index]:
                yield from _diff(old, after[index], f"{path}/{index}")
        for value in after[len(before) :]:
            yield {"op": "add", "path": f"{path}/-", "value": value}
    else:
        yield {"op": "replace", "path": path, "value": after}


def _diff_maps(before: JsonObject, after: JsonObject, path: str) -> Iterator[Operation]:
    for key in before:
        if key not in after:
            yield {"op": "remove", "path": f"{path}/{_escape(key)}"}
    for key, value in after.items():
        old = before.get(key)
        if old is value or old == value:
            continue
        if old is None:
            # Use `add` for a null, too: some JSON patch libraries can't replace a null or descend into it.
            yield {"op": "add", "path": f"{path}/{_escape(key)}", "value": value}
        else:
            yield from _diff(old, value, f"{path}/{_escape(key)}")


def apply_patch(operations: list[Operation], before: JsonObject) -> JsonObject:
    """Return a copy of `before` with the operations applied by jsonpatch."""
    result: JsonObject = jsonpatch.apply_patch(before, operations)
    return result


def patch_between(before: JsonObject, after: JsonObject) -> list[Operation]:
    """Return the operations that turn `before` into `after`. A list grows only at its end; a shorter list is replaced.

    Raises PatchMismatch if jsonpatch, applying the operations, does not produce `after`.
    """
    if before == after:
        return []
    operations = list(_diff(before, after, ""))
    copied = msgspec.json.decode(msgspec.json.encode(before))  # in a fifth of the time of jsonpatch's own copy
    if jsonpatch.apply_patch(copied, operations, in_place=True) != after:
        raise PatchMismatch("the patch does not lead to the intended object")
    return operations


# A preference at a cold start: a node with a replica, or the labels of the nodes that the share-manager may run on.
_Preference = str | Selector
# What to change in a pod's spec: the node, the outcome, whether the pin is removed, the scheduler, and preferences.
# Without a node and preferences, the affinity stays; an empty scheduler keeps the scheduler.
_Change = tuple[str, Outcome, bool, str, tuple[_Preference, ...]]


@lru_cache(maxsize=1024)
def _cached_patch_of_spec(encoded: bytes, change: _Change) -> Sequence[Operation]:
    """Return the operations of a change, verified once: KubeVirt gives all its VMs the same few affinities."""
    return _patch_of_spec(msgspec.json.decode(encoded), change)


def _patch_of_spec(spec: JsonObject, change: _Change) -> Sequence[Operation]:
    node, outcome, unpins, scheduler, preferences = change
    changed = dict(spec)
    affinity = spec.get("affinity")
    if node:
        affinity = without_pin(affinity, node) if unpins else affinity
        pin = outcome is Outcome.PINNED
        avoid = outcome is Outcome.UNCHANGED
        changed["affinity"] = with_node(affinity, node, pin=pin, avoid=avoid)
    for preference in preferences:
        changed["affinity"] = with_preference(changed.get("affinity"), _term(preference))
    changed |= {"schedulerName": scheduler} if scheduler else {}
    return patch_between({"spec": spec}, {"spec": changed})


def _term(preference: _Preference) -> JsonObject:
    if isinstance(preference, str):
        return replica_term(preference)
    return {"weight": WEIGHT, "preference": {"matchExpressions": msgspec.json.decode(msgspec.json.encode(preference))}}


def patch_for(decision: Decision, manifest: Manifest, settings: Settings) -> list[Operation]:
    """Return the patch that applies a decision to a pod; empty if nothing changes.

    Copies only the webhook's annotations, affinity and schedulerName: a copy of the whole pod takes a millisecond.
    Raises Malformed or PatchMismatch if the patch might be wrong.
    """
    spec = manifest.spec
    node = decision.node or ""
    outcome = decision.outcome
    if node and outcome is not Outcome.UNCHANGED and spec == NO_SPEC:
        raise Malformed("spec is empty")
    if outcome is Outcome.UNCHANGED and not decision.avoids:
        node = ""
    scheduler = _scheduler_name(manifest, decision, settings)
    recorded = _patch_of_annotations(manifest.annotations, decision) if decision.recorded else []
    cold = decision.claims if decision.reason is Reason.COLD_START else ()
    labels = dict.fromkeys(each.limits for each in cold if each.decides and each.limits)
    preferences: tuple[_Preference, ...] = (*labels, *decision.replica_nodes)
    if not (node or scheduler or preferences):
        return recorded
    terms = outcome is Outcome.PINNED or decision.unpins
    change = node, outcome, decision.unpins, scheduler, preferences
    kept = _touched(spec, node, preferences, terms=terms)
    encoded = msgspec.json.encode(kept)
    if len(encoded) <= MAX_CACHED_LENGTH:
        return [*recorded, *_cached_patch_of_spec(encoded, change)]
    return [*recorded, *_patch_of_spec(kept, change)]


def _touched(spec: PodSpec, node: str, preferences: tuple[_Preference, ...], *, terms: bool) -> JsonObject:
    """Return what a patch may change: to copy and compare an affinity of 500 KB takes 8 ms."""
    touched: JsonObject = {"schedulerName": spec.scheduler_name} if spec.scheduler_name else {}
    if spec.affinity is not None and (node or preferences):
        touched["affinity"] = part = _subset(spec.affinity, "nodeAffinity")
        if node_affinity := map_in(part, "nodeAffinity"):
            part["nodeAffinity"] = part = _subset(node_affinity, PREFERRED, *((REQUIRED,) if terms else ()))
            if preferred := list_in(part, PREFERRED):
                own = [*own_preferences(preferred, node), *map(_term, preferences)]
                part[PREFERRED] = [term for term in preferred if term in own]
    return touched


def _subset(parent: JsonObject, *keys: str) -> JsonObject:
    return {key: parent[key] for key in keys if key in parent}


def _patch_of_annotations(annotations: JsonObject, decision: Decision) -> list[Operation]:
    before = _subset(annotations, DECISION, CO_SCHEDULED_NODE)
    after = {DECISION: f"{decision.reason}: {decision.message}"}
    # Without a node, no term of this pod backs the annotation: it was copied from another pod.
    if decision.outcome is not Outcome.UNCHANGED and decision.node:
        after[CO_SCHEDULED_NODE] = decision.node
    together = {**annotations, **after}
    # Their JSON is never shorter, and its length takes a tenth of the time.
    if len(msgspec.json.encode(together)) > MAX_ANNOTATIONS_SIZE and _size(together) > MAX_ANNOTATIONS_SIZE:
        return []
    if before:
        return patch_between({"metadata": {"annotations": before}}, {"metadata": {"annotations": after}})
    # Texts change only the values of the operations. So verify the patch once, with each key as its own text.
    keys = _cached_additions(tuple(after), bool(annotations))
    return [each | {"value": after[each["value"]] if type(each["value"]) is str else after} for each in keys]


def _size(annotations: JsonObject) -> int:
    return len("".join(map(str, (*annotations, *annotations.values()))).encode())


@lru_cache(maxsize=8)
def _cached_additions(keys: tuple[str, ...], exist: bool) -> Sequence[Operation]:
    """Return the operations that add annotations to a pod. `exist`: the pod has others, which stay."""
    old: JsonObject = {"annotations": {}} if exist else {}
    return patch_between({"metadata": old}, {"metadata": {"annotations": {key: key for key in keys}}})


def _scheduler_name(manifest: Manifest, decision: Decision, settings: Settings) -> str:
    foreign_or_bound = decision.reason in (Reason.NOT_FROM_KUBEVIRT, Reason.ALREADY_BOUND)
    if not settings.scheduler_names or not manifest.is_virt_launcher or foreign_or_bound:
        return ""
    if decision.opted_in_by in (OptedInBy.NOTHING, OptedInBy.UNKNOWN):
        return ""
    return settings.scheduler_names.get(manifest.spec.scheduler, "")
