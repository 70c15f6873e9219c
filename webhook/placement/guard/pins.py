"""The pin of a pod, and which unbound pods count on the node that the webhook pinned them to, or prefers for them.

Anybody who may create a pod can copy the webhook's annotation and its term. A pod that never runs on the node must not
keep another tenant's VM from its storage. So these rules ask for what only KubeVirt and the scheduler can give.
"""

from collections.abc import Callable, Iterable

from webhook.placement.affinity import CO_SCHEDULED_NODE, has_preferred_term, pinned_node, recorded_reason
from webhook.placement.objects.facts import Node, PendingPin, Pod
from webhook.placement.objects.fields import is_dns_subdomain, text
from webhook.placement.objects.pod import Manifest
from webhook.placement.objects.resources import PODS
from webhook.placement.reasons import MAY_FIT_REASONS, Reason

# Seconds after the webhook first saw the pod. Long enough for a scheduler that is being upgraded to come back.
MAX_AGE = 300.0
MAX_PODS = 8  # of one VMI: KubeVirt creates one or two unbound pods, and users may create thousands


def pinned_by_webhook(manifest: Manifest) -> str:
    """Return the node that an earlier call of the webhook pinned the pod to, or an empty string."""
    if recorded_reason(manifest.annotations) is not Reason.CO_SCHEDULED:
        return ""
    return pinned_node(manifest.annotations, manifest.node_terms)


def preferred_by_webhook(manifest: Manifest) -> str:
    """Return the node that an earlier call of the webhook preferred for the pod and that may fit it, or ""."""
    if recorded_reason(manifest.annotations) not in MAY_FIT_REASONS or is_gated(manifest):
        return ""
    node = text(manifest.annotations, CO_SCHEDULED_NODE)
    return node if is_dns_subdomain(node) and has_preferred_term(manifest.affinity, node) else ""


def is_gated(manifest: Manifest) -> bool:
    """Return whether the scheduler ignores the pod until its scheduling gates are removed."""
    return bool(manifest.spec.scheduling_gates)


def read_pin(manifest: Manifest) -> PendingPin | None:
    """Extract the pin of an unbound pod of a VMI, or the webhook's preference; None if the pod has neither.

    The scheduler ignores a pod with a scheduling gate, and the webhook never pins one.
    """
    if manifest.spec.node_name or not manifest.is_virt_launcher or is_gated(manifest):
        return None
    uid, vm = manifest.controlling_vmi
    # Namespace users control owner references: a name of any length must not fill the memory.
    if not uid or not is_dns_subdomain(vm):
        return None
    since = _unschedulable_since(manifest)
    if node := pinned_by_webhook(manifest):
        return PendingPin(node, vm, since)
    # The scheduler chooses another node for a pod that only prefers one, if that node can't run the pod.
    decided = since or manifest.pod.status.nominated_node_name
    node = "" if decided else preferred_by_webhook(manifest)
    return PendingPin(node, vm, prefers=True) if node else None


def _unschedulable_since(manifest: Manifest) -> str:
    scheduled = manifest.pod.status.condition("PodScheduled")
    if (scheduled.status, scheduled.reason) != ("False", "Unschedulable"):
        return ""
    return scheduled.last_transition_time or manifest.metadata.creation_timestamp or ""


def counting_pod(pods: Iterable[tuple[Pod, float]], find_node: Callable[[str], Node | None]) -> Pod | None:
    """Return the one of a VMI's pods that counts on the node of its pin, None if none does.

    `pods` are those with a pin, each with the seconds since the webhook first saw it. A pod that the scheduler
    nominated counts anyway.
    """
    return largest(
        pod
        for pod, age in pods
        if pod.pin and not pod.effective_node and age < MAX_AGE and fits_empty(pod, find_node(pod.pin.node))
    )


def largest(pods: Iterable[Pod]) -> Pod | None:
    """Return the pod with the largest requests for memory, then for CPU. None without pods."""
    return max(pods, key=lambda pod: (pod.requests.get("memory", 0), pod.requests.get("cpu", 0), pod.key), default=None)


def fits_empty(pod: Pod, node: Node | None) -> bool:
    """Return whether an empty node could run the pod, as far as resources decide. An unknown node passes."""
    if node is None or node.allocatable is None:
        return True
    limits = node.allocatable if PODS in node.allocatable else {**node.allocatable, PODS: 1}
    return all(requested <= limits.get(resource, 0) for resource, requested in pod.requests.items())
