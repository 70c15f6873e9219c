"""Extract the facts that a decision uses from Kubernetes objects, and drop the rest.

Dropped fields can't leak: the share-manager pod of an encrypted volume carries its passphrase.
"""

from webhook.placement.affinity import pinned_node
from webhook.placement.catalog import Claim, Node, Pod, ShareManager, Volume
from webhook.placement.podfacts import is_terminating, labels_of, pod_facts
from webhook.placement.resources import amounts
from webhook.placement.shape import JsonObject, mapping, mappings, text

LONGHORN_DRIVER = "driver.longhorn.io"

Fact = Claim | Volume | ShareManager | Node | Pod


def _key(item: JsonObject) -> tuple[str, str]:
    return text(item, "metadata", "namespace") or "default", text(item, "metadata", "name")


def read_claim(item: JsonObject) -> Claim:
    """Extract the facts of a PersistentVolumeClaim."""
    namespace, name = _key(item)
    modes = mapping(item, "spec").get("accessModes")
    shared = isinstance(modes, list) and "ReadWriteMany" in modes
    persistent_state = bool(mapping(item, "metadata", "labels").get("persistent-state-for"))
    return Claim(namespace, name, text(item, "spec", "volumeName"), shared, persistent_state)


def read_volume(item: JsonObject) -> Volume:
    """Extract the facts of a PersistentVolume."""
    csi, claim = mapping(item, "spec", "csi"), mapping(item, "spec", "claimRef")
    handle = text(csi, "volumeHandle") if csi.get("driver") == LONGHORN_DRIVER else ""
    affinity = mapping(item, "spec", "nodeAffinity").get("required")
    return Volume(
        text(item, "metadata", "name"),
        handle,
        (text(claim, "namespace") or "default", text(claim, "name")) if claim else None,
        affinity if isinstance(affinity, dict) else None,
    )


def read_share_manager(item: JsonObject) -> ShareManager:
    """Extract the facts of a ShareManager."""
    status = mapping(item, "status")
    return ShareManager(*_key(item), text(status, "state"), text(status, "ownerID"), is_terminating(item))


def read_node(item: JsonObject) -> Node:
    """Extract the facts of a node. Raises Malformed for an invalid quantity."""
    conditions = {text(each, "type"): text(each, "status") for each in mappings(item, "status", "conditions")}
    allocatable = mapping(item, "status").get("allocatable")
    return Node(
        text(item, "metadata", "name"),
        labels_of(item),
        conditions["Ready"] == "True" if "Ready" in conditions else None,
        mapping(item, "spec").get("unschedulable") is True,
        tuple(mappings(item, "spec", "taints")),
        amounts(allocatable) if isinstance(allocatable, dict) else None,
    )


def read_pod(item: JsonObject) -> Pod | None:
    """Extract the facts of a pod; return None for a finished pod. Raises Malformed for an invalid quantity."""
    if text(item, "status", "phase") in ("Succeeded", "Failed"):
        return None
    # The scheduler has preempted pods on the nominated node for this pod, and counts the pod there.
    nominated = text(item, "status", "nominatedNodeName")
    return pod_facts(item, *_key(item), text(item, "spec", "nodeName") or pinned_node(item) or nominated)
