"""Find an existing pod, and restore the pod to its state before scheduling."""

import msgspec

from webhook.cluster.client import ClusterClient, ClusterError
from webhook.cluster.documents import BadInput
from webhook.placement.affinity import CO_SCHEDULED_NODE, DECISION
from webhook.placement.shape import JsonObject, mapping, mappings, text


def find_pod(cluster: ClusterClient, namespace: str, name: str) -> JsonObject:
    """Read a pod. Raises BadInput if the pod doesn't exist or the request fails."""
    body = _read(cluster, f"/api/v1/namespaces/{namespace}/pods/{name}")
    if body is None:
        raise BadInput(f"there is no pod {name} in namespace {namespace}; look with: kubectl get pods -n {namespace}")
    return body


def find_vm(cluster: ClusterClient, namespace: str, name: str) -> JsonObject:
    """Read the newest unfinished pod of a VM. Raises BadInput if there is none or the request fails."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    try:
        pages = [items for _, items in cluster.pages(path, labelSelector="kubevirt.io=virt-launcher")]
    except ClusterError as error:
        raise BadInput(f"the cluster does not answer: {error}") from None
    pods = [msgspec.json.decode(raw, type=JsonObject) for items in pages for raw in items]
    own = [pod for pod in pods if mapping(pod, "metadata", "annotations").get("kubevirt.io/domain") == name]
    unfinished = [pod for pod in own if text(pod, "status", "phase") not in ("Succeeded", "Failed")]
    if not unfinished:
        raise BadInput(f"VM {name} in namespace {namespace} has no pod; start it, or use -f with a pod from a file")
    return max(unfinished, key=lambda pod: text(pod, "metadata", "creationTimestamp"))


def _read(cluster: ClusterClient, path: str) -> JsonObject | None:
    try:
        body = cluster.get(path)
    except ClusterError as error:
        raise BadInput(f"the cluster does not answer: {error}") from None
    return None if body is None else msgspec.json.decode(body, type=JsonObject)


def describe_placement(pod: JsonObject) -> list[str]:
    """Describe where a pod is, what the scheduler reports, and what the webhook decided at creation."""
    node = text(pod, "spec", "nodeName")
    phase = text(pod, "status", "phase") or "without a phase"
    lines = [f"{phase}, on {node}" if node else f"{phase}, not bound to a node"]
    lines.extend(
        f"the scheduler says: {text(condition, 'message')}"
        for condition in mappings(pod, "status", "conditions")
        if (condition.get("type"), condition.get("status")) == ("PodScheduled", "False")
    )
    annotations = mapping(pod, "metadata", "annotations")
    lines.append(f"decided when it was created: {text(annotations, DECISION) or 'nothing, no annotation says so'}")
    if target := text(annotations, CO_SCHEDULED_NODE):
        lines.append(f"meant to be on {target}{', and it is' if target == node else ''}")
    return lines
