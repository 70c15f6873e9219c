"""Turn a decision into the pod's patch: annotations, affinity and schedulerName."""

from webhook.placement.affinity import CO_SCHEDULED_NODE, DECISION, with_avoided_node, with_node, without_pin
from webhook.placement.decision import Decision, OptedInBy, Outcome, Reason
from webhook.placement.kubevirt import is_virt_launcher
from webhook.placement.patch import Operation, cached_patch, patch_between
from webhook.placement.settings import Settings
from webhook.placement.shape import JsonObject, Malformed, map_in, text

# The API server's limit for all annotations of an object together, in bytes. It rejects a pod above the limit.
MAX_ANNOTATIONS_SIZE = 256 * 1024


def patch_for(decision: Decision, pod: JsonObject, settings: Settings) -> list[Operation]:
    """Return the patch that applies a decision to a pod; empty if nothing changes.

    Copies only annotations, affinity and schedulerName, because a copy of the whole pod takes a millisecond.
    Raises Malformed or PatchMismatch if the patch might be wrong.
    """
    metadata, spec = map_in(pod, "metadata"), map_in(pod, "spec")
    before = {"metadata": _subset(metadata, "annotations"), "spec": _subset(spec, "affinity", "schedulerName")}
    after = {"metadata": dict(before["metadata"]), "spec": dict(before["spec"])}
    if decision.recorded:
        after["metadata"]["annotations"] = _with_decision(map_in(metadata, "annotations"), decision)
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
    return [
        *patch_between({"metadata": before["metadata"]}, {"metadata": after["metadata"]}),
        *cached_patch({"spec": before["spec"]}, {"spec": after["spec"]}),
    ]


def _subset(parent: JsonObject, *keys: str) -> JsonObject:
    return {key: parent[key] for key in keys if key in parent}


def _with_decision(annotations: JsonObject, decision: Decision) -> JsonObject:
    changed = {**annotations, DECISION: f"{decision.reason}: {decision.message}"}
    if decision.outcome is not Outcome.UNCHANGED and decision.node:
        changed[CO_SCHEDULED_NODE] = decision.node
    else:
        changed.pop(CO_SCHEDULED_NODE, None)  # copied from another pod: no term of this pod backs the annotation
    return changed if _within_limit(changed) else annotations


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
