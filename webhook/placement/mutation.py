"""What a pod becomes: the fields that the webhook may touch, before and after a decision."""

from webhook.placement.affinity import CO_SCHEDULED_NODE, DECISION, with_node
from webhook.placement.decision import Decision, Outcome, Reason
from webhook.placement.eligibility import is_opted_in, is_virt_launcher
from webhook.placement.patch import Operation, cached_patch, patch_between
from webhook.placement.settings import Settings
from webhook.placement.shape import JsonObject, Malformed, map_in, text

# The API server's limit for all annotations of an object together, in bytes; a pod beyond it is refused.
ANNOTATIONS_SIZE = 256 * 1024


def patch_for(decision: Decision, pod: JsonObject, settings: Settings) -> list[Operation]:
    """Return the patch that makes a pod what was decided; empty where nothing is left to do.

    Only annotations, affinity and schedulerName are looked at: a copy of the whole pod costs a millisecond.
    Raises Malformed or Unproven where the patch might not be right.
    """
    metadata, spec = map_in(pod, "metadata"), map_in(pod, "spec")
    before = {"metadata": _some(metadata, "annotations"), "spec": _some(spec, "affinity", "schedulerName")}
    after = {"metadata": dict(before["metadata"]), "spec": dict(before["spec"])}
    if decision.recorded:
        after["metadata"]["annotations"] = _annotated(map_in(metadata, "annotations"), decision)
    if decision.outcome is not Outcome.UNCHANGED and decision.node:
        if not spec:
            raise Malformed("spec is empty")
        pin = decision.outcome is Outcome.PINNED
        after["spec"]["affinity"] = with_node(spec.get("affinity"), decision.node, pin=pin)
    if scheduler := _scheduler_name(pod, decision, settings):
        after["spec"]["schedulerName"] = scheduler
    return [
        *patch_between({"metadata": before["metadata"]}, {"metadata": after["metadata"]}),
        *cached_patch({"spec": before["spec"]}, {"spec": after["spec"]}),
    ]


def _some(parent: JsonObject, *keys: str) -> JsonObject:
    return {key: parent[key] for key in keys if key in parent}


def _annotated(annotations: JsonObject, decision: Decision) -> JsonObject:
    changed = {**annotations, DECISION: f"{decision.reason}: {decision.message}"}
    if decision.outcome is not Outcome.UNCHANGED and decision.node:
        changed[CO_SCHEDULED_NODE] = decision.node
    else:
        changed.pop(CO_SCHEDULED_NODE, None)  # copied from another pod: nothing in this one stands behind it
    return changed if _fits(changed) else annotations


def _fits(annotations: JsonObject) -> bool:
    length = sum(map(len, annotations)) + sum(map(len, map(str, annotations.values())))
    if length <= ANNOTATIONS_SIZE // 4:  # of UTF-8, whose characters have 4 bytes at the most
        return True
    return sum(len(f"{key}{value}".encode()) for key, value in annotations.items()) <= ANNOTATIONS_SIZE


def _scheduler_name(pod: JsonObject, decision: Decision, settings: Settings) -> str | None:
    if not settings.scheduler_names or not is_virt_launcher(pod) or not is_opted_in(pod, settings):
        return None
    if decision.reason in (Reason.ALREADY_BOUND, Reason.NOT_A_POD_CREATION):
        return None
    # A pod from a file may name none yet; the API server makes that the default scheduler.
    return settings.scheduler_names.get(text(pod, "spec", "schedulerName") or "default-scheduler")
