"""Turn a decision into the pod's patch: annotations, affinity and schedulerName."""

from webhook.placement.affinity import CO_SCHEDULED_NODE, DECISION, with_avoided_node, with_node, without_pin
from webhook.placement.objects.fields import JsonObject, Malformed, map_in, text
from webhook.placement.objects.kubevirt import is_virt_launcher
from webhook.placement.patch import Operation, cached_patch, patch_between
from webhook.placement.reasons import Decision, OptedInBy, Outcome, Reason
from webhook.placement.settings import Settings

# The API server's limit for all annotations of an object together, in bytes. It rejects a pod above the limit.
MAX_ANNOTATIONS_SIZE = 256 * 1024


def patch_for(decision: Decision, pod: JsonObject, settings: Settings) -> list[Operation]:
    """Return the patch that applies a decision to a pod; empty if nothing changes.

    Copies only the webhook's annotations, affinity and schedulerName: a copy of the whole pod takes a millisecond.
    Raises Malformed or PatchMismatch if the patch might be wrong.
    """
    spec = map_in(pod, "spec")
    before = {"spec": _subset(spec, "affinity", "schedulerName")}
    after = {"spec": dict(before["spec"])}
    if decision.outcome is not Outcome.UNCHANGED and decision.node:
        if not spec:
            raise Malformed("spec is empty")
        affinity, pin = spec.get("affinity"), decision.outcome is Outcome.PINNED
        affinity = without_pin(affinity, decision.node) if decision.unpins else affinity
        after["spec"]["affinity"] = with_node(affinity, decision.node, pin=pin)
    if decision.avoids and decision.node and spec:
        after["spec"]["affinity"] = with_avoided_node(spec.get("affinity"), decision.node)
    if scheduler := _scheduler_name(pod, decision, settings):
        after["spec"]["schedulerName"] = scheduler
    recorded = _patch_of_annotations(map_in(pod, "metadata"), decision) if decision.recorded else []
    return [*recorded, *cached_patch(before, after)]


def _subset(parent: JsonObject, *keys: str) -> JsonObject:
    return {key: parent[key] for key in keys if key in parent}


def _patch_of_annotations(metadata: JsonObject, decision: Decision) -> list[Operation]:
    annotations = map_in(metadata, "annotations")
    before = _subset(annotations, DECISION, CO_SCHEDULED_NODE)
    after = {DECISION: f"{decision.reason}: {decision.message}"}
    # Without a node, no term of this pod backs the annotation: it was copied from another pod.
    if decision.outcome is not Outcome.UNCHANGED and decision.node:
        after[CO_SCHEDULED_NODE] = decision.node
    if not _within_limit({**annotations, **after}):
        return []
    old = {"annotations": before} if isinstance(metadata.get("annotations"), dict) else _subset(metadata, "annotations")
    if before:
        return patch_between({"metadata": old}, {"metadata": {"annotations": after}})
    # Texts change only the values of the operations. So verify the patch once, with each key as its own text.
    keys = cached_patch({"metadata": old}, {"metadata": {"annotations": {key: key for key in after}}})
    return [each | {"value": after[each["value"]] if isinstance(each["value"], str) else after} for each in keys]


def _within_limit(annotations: JsonObject) -> bool:
    characters = sum(map(len, annotations)) + sum(map(len, map(str, annotations.values())))
    if characters <= MAX_ANNOTATIONS_SIZE // 4:  # a UTF-8 character has at most 4 bytes
        return True
    return sum(len(f"{key}{value}".encode()) for key, value in annotations.items()) <= MAX_ANNOTATIONS_SIZE


def _scheduler_name(pod: JsonObject, decision: Decision, settings: Settings) -> str | None:
    if not settings.scheduler_names or not is_virt_launcher(pod):
        return None
    if decision.opted_in_by in (OptedInBy.NOTHING, OptedInBy.UNKNOWN):
        return None
    if decision.reason in (Reason.ALREADY_BOUND, Reason.NOT_A_POD_CREATION):
        return None
    # A pod from a file may have no schedulerName yet; the API server sets default-scheduler.
    return settings.scheduler_names.get(text(pod, "spec", "schedulerName") or "default-scheduler")
