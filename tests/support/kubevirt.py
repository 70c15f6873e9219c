"""A stand-in for KubeVirt: its CRDs, and the virt-launcher pods of VMs.

The CRDs accept any field. No controller acts on their objects here, so `restart_vm` creates the pod. Where restarts
matter, virt_controller.py acts on them.
"""

from __future__ import annotations

from contextlib import suppress

from tests.support import crds
from tests.support.accounts import KUBEVIRT
from tests.support.builders import PREFERRED
from tests.support.controlplane.api import ApiError, Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.rights import RBAC
from tests.support.longhorn import Longhorn
from tests.support.scenario import Scenario


def install_crds(plane: ControlPlane) -> None:
    """Create the CRDs of VMs, VMIs and their replica sets if they are missing, and wait until they are served.

    KubeVirt's controller may create pods, as in a cluster: `doctor` impersonates it.
    """
    role = {"metadata": {"name": "kubevirt-controller"}}
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": KUBEVIRT}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "kubevirt-controller"}
    for path, body in (
        ("clusterroles", {"rules": [rule]}),
        ("clusterrolebindings", {"subjects": [subject], "roleRef": reference}),
    ):
        with suppress(ApiError):
            plane.request("POST", f"{RBAC}/{path}", role | body)
    kinds = {"VirtualMachine": "vm", "VirtualMachineInstance": "vmi", "VirtualMachineInstanceReplicaSet": "vmirs"}
    crds.install(plane, *(crds.crd(kind, short_names=(name, f"{name}s")) for kind, name in kinds.items()))


def vm_path(scenario: Scenario, name: str = "") -> str:
    """Return the API path of the scenario's VMs, or of one VM."""
    return f"/apis/kubevirt.io/v1/namespaces/{scenario.namespace}/virtualmachines/{name}".rstrip("/")


def scenario_with_vm(plane: ControlPlane, longhorn: Longhorn, nodes: int, template: Object) -> Scenario:
    """Return a scenario with the VM `vm1` and without a webhook."""
    install_crds(plane)
    scenario = Scenario(plane, longhorn, None)
    scenario.add_nodes(nodes)
    vm = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "vm1"}}
    plane.request("POST", vm_path(scenario), vm | {"spec": {"template": template}})
    return scenario


def vm_of(pod: Object, run_strategy: str = "Always") -> Object:
    """Return the VM of a virt-launcher pod, with the pod's opt-in annotations and claims in its template."""
    metadata = pod["metadata"]
    annotations = {key: value for key, value in metadata["annotations"].items() if "co-schedule" in key}
    volumes = [each for each in pod["spec"]["volumes"] if "persistentVolumeClaim" in each]
    template = {"metadata": {"annotations": annotations}, "spec": {"volumes": volumes}}
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": metadata["annotations"]["kubevirt.io/domain"]},
        "spec": {"runStrategy": run_strategy, "template": template},
    }


def launcher_pod(scenario: Scenario, name: str) -> Object:
    """Return the pod that virt-controller would create from the template of a VM."""
    template = scenario.plane.request("GET", vm_path(scenario, name))["spec"]["template"]
    volumes = template["spec"].get("volumes", [])
    disks = [each["persistentVolumeClaim"] for each in volumes if "persistentVolumeClaim" in each]
    claims = [disk["claimName"] for disk in disks if not disk.get("hotpluggable")]
    scheduler = template["spec"].get("schedulerName", "default-scheduler")
    pod = scenario.vm_pod(name, *claims, opt_in=None, schedulerName=scheduler)
    pod["metadata"]["annotations"] |= template.get("metadata", {}).get("annotations", {})
    preferred = template["spec"].get("affinity", {}).get("nodeAffinity", {}).get(PREFERRED, [])
    pod["spec"]["affinity"]["nodeAffinity"] |= {PREFERRED: preferred} if preferred else {}
    return pod


def restart_vm(scenario: Scenario, name: str) -> str:
    """Delete the pods of a VM, if any, create a new one, and return its name."""
    selector = f"labelSelector=vm.kubevirt.io/name%3D{name}"
    scenario.plane.request("DELETE", f"{scenario.pods}?{selector}&gracePeriodSeconds=0")
    return scenario.create(launcher_pod(scenario, name))
