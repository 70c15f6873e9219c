"""The simulated parts of the playground: KubeVirt, and Longhorn's provisioner."""

from __future__ import annotations

from tests.support.accounts import KUBEVIRT
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.fleet import longhorn_volume, replica
from tests.support.kubevirt import CRDS, launcher_pod
from tests.support.longhorn import DRIVER, GROUP, STORAGE, VERSION
from tests.support.migrations import MIGRATABLE, READY, kubevirt
from tests.support.scenario import Scenario
from tests.support.virt_controller import VirtController, _Vm

STORAGE_CLASS: Object = {"metadata": {"name": "longhorn"}, "provisioner": DRIVER, "volumeBindingMode": "Immediate"}
LONGHORN = f"{GROUP}/namespaces/longhorn-system"
KUBEVIRTS = "/apis/kubevirt.io/v1/namespaces/kubevirt/kubevirts"
NOT_MIGRATABLE: Object = MIGRATABLE | {
    "status": "False",
    "reason": "HostDeviceNotLiveMigratable",
    "message": "VMI uses a PCI host devices",  # KubeVirt's own text: pkg/virt-handler
}
ACCOUNT = KUBEVIRT.rpartition(":")[2]
VIRT_CONTROLLER: Object = {
    "metadata": {"name": "virt-controller", "labels": {"kubevirt.io": "virt-controller"}},
    "spec": {
        "nodeName": "node-a",
        "serviceAccountName": ACCOUNT,
        # Without requests, the scheduler would count 100m and 200 MB, and choose other nodes for the VMs.
        "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}}}],
    },
}
DEPLOYED: Object = {"phase": "Deployed", "observedKubeVirtVersion": "v1.6.0"}
LONGHORN_VERSION = "v1.11.3"  # it keeps a VM's pod when a share-manager is replaced


class KubeVirt(VirtController):
    """A virt-controller for all VMs of the namespace. Each pod follows the current template of its VM.

    A MigrationController acts on the same VMs.
    """

    def _running(self, pod: Object) -> Object:
        vm = pod["metadata"]["annotations"]["kubevirt.io/domain"]
        devices = self.vm(vm)["spec"]["template"]["spec"].get("domain", {}).get("devices", {})
        conditions = [READY, NOT_MIGRATABLE if "hostDevices" in devices else MIGRATABLE]
        return super()._running(pod) | {"nodeName": pod["spec"]["nodeName"], "conditions": conditions}

    def _reconcile(self) -> None:
        found = {vm["metadata"]["name"] for vm in self._list(self._vm_path)}
        for deleted in self._vms.keys() - found:
            vm = self._vms.pop(deleted)
            self._delete(f"{self._vmi_path}/{deleted}")
            self._delete_pod(self._pods_by_vmi().get(vm.vmi))
        for created in found - self._vms.keys():
            self._vms[created] = _Vm({})
        super()._reconcile()

    def _owned_pod(self, name: str, vm: _Vm) -> Object:
        vm.pod = launcher_pod(self._scenario, name)
        return super()._owned_pod(name, vm)


class Provisioner:
    """Longhorn's CSI provisioner: it creates a volume for each new claim of its StorageClasses."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._provisioned: set[str] = set()  # UIDs of claims
        scenario.plane.request("POST", f"{STORAGE}/storageclasses", STORAGE_CLASS)

    def reconcile(self) -> None:
        found = self._scenario.plane.request("GET", f"{STORAGE}/storageclasses")["items"]
        classes = {each["metadata"]["name"] for each in found if each["provisioner"] == DRIVER}
        for claim in self._scenario.plane.request("GET", self._scenario.claims)["items"]:
            of_class = claim["spec"].get("storageClassName") in classes
            if of_class and claim["metadata"]["uid"] not in self._provisioned:
                self._scenario.longhorn.provision_claim(claim)
                self._create_data(f"pvc-{claim['metadata']['uid']}")
                self._provisioned.add(claim["metadata"]["uid"])

    def _create_data(self, volume: str) -> None:
        """Create the Longhorn volume with a replica on each node. No controller acts on them."""
        nodes = self._scenario.node_names
        objects = [longhorn_volume(volume, "disabled", currentNodeID=""), *(replica(node, volume) for node in nodes)]
        for each in objects:
            self._scenario.plane.request("POST", f"{LONGHORN}/{each['kind'].lower()}s", each)


def show_installation(plane: ControlPlane) -> None:
    """Create what `doctor` reads: the versions of KubeVirt and Longhorn, and the pod of virt-controller."""
    plane.create_namespace("kubevirt")
    created = plane.request("POST", KUBEVIRTS, kubevirt())["metadata"]
    plane.request("PATCH", f"{KUBEVIRTS}/{created['name']}/status", {"status": DEPLOYED})
    for name in "Volume", "Replica":  # `Longhorn.install` adds Setting
        plural = f"{name.lower()}s"
        names = {"kind": name, "plural": plural, "singular": name.lower()}
        spec = {"group": "longhorn.io", "scope": "Namespaced", "names": names, "versions": [VERSION]}
        plane.request("POST", CRDS, {"metadata": {"name": f"{plural}.longhorn.io"}, "spec": spec})
        plane.wait(lambda path=f"{LONGHORN}/{plural}": plane.request("GET", path), 20, f"the CRD of {plural}")  # type: ignore[misc]
    kind = {"apiVersion": "longhorn.io/v1beta2", "kind": "Setting", "metadata": {"name": "current-longhorn-version"}}
    plane.request("POST", f"{LONGHORN}/settings", kind | {"value": LONGHORN_VERSION})
    core = "/api/v1/namespaces/kubevirt"
    plane.request("POST", f"{core}/serviceaccounts", {"metadata": {"name": ACCOUNT}})
    plane.request("POST", f"{core}/pods", VIRT_CONTROLLER)
