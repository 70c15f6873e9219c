"""CRDs of KubeVirt, Longhorn and other projects. By default they accept any field."""

from collections.abc import Iterable
from typing import Any

Object = dict[str, Any]

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
OPEN: Object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def crd(
    kind: str,
    group: str = "kubevirt.io",
    version: str = "v1",
    *,
    schema: Object = OPEN,
    status: bool = True,
    served: bool = True,
    short_names: Iterable[str] = (),
) -> Object:
    """Build the CRD of a namespaced kind. `status` makes the status a subresource."""
    plural = f"{kind.lower()}s"
    names = {"kind": kind, "plural": plural, "singular": kind.lower(), "shortNames": [*short_names]}
    own = {"name": version, "served": served, "storage": True, "schema": {"openAPIV3Schema": schema}}
    own |= {"subresources": {"status": {}}} if status else {}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [own]},
    }
