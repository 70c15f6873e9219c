"""A stand-in for KubeVirt: the VirtualMachine CRD, and the virt-launcher pods of VMs.

The CRD accepts any field, and no controller acts on its objects: `restart_vm` creates the pod.
"""

from __future__ import annotations

from contextlib import suppress

from tests.support.controlplane.api import ApiError, Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.longhorn import Longhorn
from tests.support.scenario import Scenario

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


def install_crd(plane: ControlPlane) -> None:
    """Create the VirtualMachine CRD if it doesn't exist, and wait until the API server serves it."""
    with suppress(ApiError):
        plane.request("POST", CRDS, CRD)
    plane.wait(lambda: plane.request("GET", "/apis/kubevirt.io/v1/virtualmachines"), 20, "the VirtualMachine CRD")


def vm_path(scenario: Scenario, name: str = "") -> str:
    """Return the API path of the scenario's VMs, or of one VM."""
    return f"/apis/kubevirt.io/v1/namespaces/{scenario.namespace}/virtualmachines/{name}".rstrip("/")


def scenario_with_vm(plane: ControlPlane, longhorn: Longhorn, nodes: int, template: Object) -> Scenario:
    """Return a scenario with the VM `vm1` and without a webhook."""
    install_crd(plane)
    scenario = Scenario(plane, longhorn, None)
    scenario.add_nodes(nodes)
    vm = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "vm1"}}
    plane.request("POST", vm_path(scenario), vm | {"spec": {"template": template}})
    return scenario


def launcher_pod(scenario: Scenario, name: str, review: str = "vm-start") -> Object:
    """Return the pod that virt-controller would create: with the template's annotations, claims and scheduler."""
    template = scenario.plane.request("GET", vm_path(scenario, name))["spec"]["template"]
    volumes = template["spec"].get("volumes", [])
    claims = [each["persistentVolumeClaim"]["claimName"] for each in volumes if "persistentVolumeClaim" in each]
    scheduler = template["spec"].get("schedulerName", "default-scheduler")
    pod = scenario.vm_pod(name, *claims, review=review, opt_in=None, schedulerName=scheduler)
    pod["metadata"]["annotations"] |= template.get("metadata", {}).get("annotations", {})
    return pod


def restart_vm(scenario: Scenario, name: str) -> str:
    """Delete the pods of a VM, if any, create a new one, and return its name."""
    selector = f"labelSelector=vm.kubevirt.io/name%3D{name}"
    scenario.plane.request("DELETE", f"{scenario.pods}?{selector}&gracePeriodSeconds=0")
    return scenario.create(launcher_pod(scenario, name))
