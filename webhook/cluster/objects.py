"""Cut each Kubernetes object down to the facts that a decision uses, and not a byte more.

What is not kept can't leak: the share-manager pod of an encrypted volume carries its passphrase.
"""

from sys import intern
from typing import Any

from webhook.affinity import pinned_node
from webhook.catalog import Claim, Node, Pod, ShareManager, Volume
from webhook.claims import mounted_claims
from webhook.resources import amounts, effective_requests
from webhook.selectors import required_terms
from webhook.shape import JsonObject, mapping, mappings, text

LONGHORN_DRIVER = "driver.longhorn.io"

# Each empty set that is made takes 216 bytes, and most pods have two.
NONE: frozenset[str] = frozenset()

Fact = Claim | Volume | ShareManager | Node | Pod


def _name(item: JsonObject) -> tuple[str, str]:
    return text(item, "metadata", "namespace") or "default", text(item, "metadata", "name")


def read_claim(item: JsonObject) -> Claim:
    """Read a PersistentVolumeClaim."""
    namespace, name = _name(item)
    modes = mapping(item, "spec").get("accessModes")
    shared = isinstance(modes, list) and "ReadWriteMany" in modes
    state = bool(mapping(item, "metadata", "labels").get("persistent-state-for"))
    return Claim(namespace, name, text(item, "spec", "volumeName"), shared, state)


def read_volume(item: JsonObject) -> Volume:
    """Read a PersistentVolume."""
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
    """Read a ShareManager."""
    status = mapping(item, "status")
    return ShareManager(*_name(item), text(status, "state"), text(status, "ownerID"), _terminating(item))


def read_node(item: JsonObject) -> Node:
    """Read a node. Raises Malformed for a quantity that can't be read."""
    conditions = {text(found, "type"): text(found, "status") for found in mappings(item, "status", "conditions")}
    allocatable = mapping(item, "status").get("allocatable")
    return Node(
        text(item, "metadata", "name"),
        _labels(item),
        conditions["Ready"] == "True" if "Ready" in conditions else None,
        mapping(item, "spec").get("unschedulable") is True,
        tuple(mappings(item, "spec", "taints")),
        amounts(allocatable) if isinstance(allocatable, dict) else None,
    )


def read_pod(item: JsonObject) -> Pod | None:
    """Read a pod; None for one that has finished. Raises Malformed for a quantity that can't be read."""
    if text(item, "status", "phase") in ("Succeeded", "Failed"):
        return None
    return read_as(item, *_name(item), text(item, "spec", "nodeName") or pinned_node(item))


def read_as(item: JsonObject, namespace: str, name: str, site: str) -> Pod:
    """Read a pod that may have no name, no namespace and no node yet. Raises Malformed as `read_pod` does."""
    labels = _labels(item)
    of_a_vm = labels.get("kubevirt.io") in ("virt-launcher", "hotplug-disk")
    annotations = mapping(item, "metadata", "annotations") if of_a_vm else {}
    owners = mappings(item, "metadata", "ownerReferences") if of_a_vm else []
    return Pod(
        namespace=namespace,
        name=name,
        uid=text(item, "metadata", "uid"),
        node=text(item, "spec", "nodeName"),
        site=site,
        alive=text(item, "status", "phase") in ("Pending", "Running", "") and not _terminating(item),
        created=text(item, "metadata", "creationTimestamp"),
        labels=labels,
        requests=effective_requests(item),
        repels=required_terms(item, namespace, "podAntiAffinity"),
        claims=mounted_claims(item) if of_a_vm else (),
        true_annotations=frozenset(key for key, value in annotations.items() if value == "true") or NONE,
        owners=frozenset(text(owner, "uid") for owner in owners) or NONE,
    )


def _labels(item: JsonObject) -> dict[str, str]:
    # The same few keys and values stand in thousands of objects: keep one of each.
    labels = mapping(item, "metadata", "labels").items()
    return {intern(key): intern(value) for key, value in labels if isinstance(value, str)}


def _terminating(item: Any) -> bool:
    return bool(mapping(item, "metadata").get("deletionTimestamp"))
