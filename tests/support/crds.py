"""CRDs of KubeVirt, Longhorn and other projects. By default they accept any field."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from tests.support.controlplane.api import ApiError
from tests.support.controlplane.plane import ControlPlane

Object = dict[str, Any]

PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
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


def install(plane: ControlPlane, *definitions: Object) -> None:
    """Create the CRDs that are missing, and wait until the API server serves their kinds."""
    for definition in definitions:
        with suppress(ApiError):
            plane.request("POST", PATH, definition)
    for definition in definitions:
        spec = definition["spec"]
        path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        plane.wait(lambda path=path: plane.request("GET", path), 20, f"the CRD of {path}")  # type: ignore[misc]
