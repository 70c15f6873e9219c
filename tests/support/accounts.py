"""The accounts that create the pods of VMs and of share-managers: KubeVirt's controller and Longhorn's manager."""

from __future__ import annotations

from typing import Any

from webhook.placement.objects.fields import mapping, text

Object = dict[str, Any]

KUBEVIRT_NAMESPACE = "kubevirt"
KUBEVIRT = f"system:serviceaccount:{KUBEVIRT_NAMESPACE}:kubevirt-controller"
LONGHORN = "system:serviceaccount:longhorn-system:longhorn-service-account"


def creator_of(pod: Object, namespace: str = "") -> str:
    """Return the account whose controller creates such a pod; empty for a pod that neither of the two creates.

    Longhorn's account is in the namespace of the pod.
    """
    labels = mapping(pod, "metadata", "labels")
    if labels.get("kubevirt.io") == "virt-launcher":
        return KUBEVIRT
    if labels.get("longhorn.io/component") == "share-manager":
        return LONGHORN.replace("longhorn-system", namespace or text(pod, "metadata", "namespace"))
    return ""


def impersonation(user: str) -> dict[str, str]:
    """Return the headers with which an administrator sends a request as another user, with all rights."""
    return {"Impersonate-User": user, "Impersonate-Group": "system:masters"} if user else {}
