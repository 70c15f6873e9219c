"""KubeVirt's part, as far as somebody who installs the chart sees it: the kind VirtualMachine, and the pod of a VM.

The custom resource takes any field; no controller acts on it. Its pod is made by `started`, when a test says so.
"""

from __future__ import annotations

from contextlib import suppress

from tests.support.controlplane.api import ApiError, Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.longhorn import Longhorn
from tests.support.scenario import World

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SCHEMA: Object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
CRD: Object = {
    "metadata": {"name": "virtualmachines.kubevirt.io"},
    "spec": {
        "group": "kubevirt.io",
        "scope": "Namespaced",
        "names": {
            "kind": "VirtualMachine",
            "plural": "virtualmachines",
            "singular": "virtualmachine",
            "shortNames": ["vm", "vms"],
        },
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": SCHEMA}}],
    },
}


def install(plane: ControlPlane) -> None:
    """Make the kind known; twice does no harm."""
    with suppress(ApiError):
        plane.request("POST", CRDS, CRD)
    plane.wait(lambda: plane.request("GET", "/apis/kubevirt.io/v1/virtualmachines"), 20, "the VirtualMachine CRD")


def path(world: World, name: str = "") -> str:
    """Where a namespace's VMs are, or one of them."""
    return f"/apis/kubevirt.io/v1/namespaces/{world.namespace}/virtualmachines/{name}".rstrip("/")


def a_vm(plane: ControlPlane, longhorn: Longhorn, nodes: int, template: Object) -> World:
    """A cluster of so many nodes in which somebody has the VM `vm1`, and no webhook yet."""
    install(plane)
    world = World(plane, longhorn, None)
    world.add_nodes(nodes)
    vm = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "vm1"}}
    plane.request("POST", path(world), vm | {"spec": {"template": template}})
    return world


def pod_of(world: World, name: str, review: str = "vm-start") -> Object:
    """The pod that virt-controller makes of a VM: with its template's annotations, claims and scheduler."""
    template = world.plane.request("GET", path(world, name))["spec"]["template"]
    volumes = template["spec"].get("volumes", [])
    claims = [each["persistentVolumeClaim"]["claimName"] for each in volumes if "persistentVolumeClaim" in each]
    scheduler = template["spec"].get("schedulerName", "default-scheduler")
    pod = world.vm_pod(name, *claims, review=review, opt_in=None, schedulerName=scheduler)
    pod["metadata"]["annotations"] |= template.get("metadata", {}).get("annotations", {})
    return pod


def restart(world: World, name: str) -> str:
    """Stop a VM, if it runs, and start it; return its pod's name."""
    selector = f"labelSelector=vm.kubevirt.io/name%3D{name}"
    world.plane.request("DELETE", f"{world.pods}?{selector}&gracePeriodSeconds=0")
    return world.create(pod_of(world, name))
