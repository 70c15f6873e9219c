"""The simulated parts of the playground: KubeVirt, Longhorn's provisioner, and the probes of `benchmark`."""

from __future__ import annotations

import json
from contextlib import ExitStack
from copy import copy

from tests.support import crds
from tests.support.accounts import KUBEVIRT
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.fleet import longhorn_volume, replica
from tests.support.kubevirt import launcher_pod
from tests.support.longhorn import DRIVER, GROUP, STORAGE, VOLUMES
from tests.support.migration_controller import MigrationController
from tests.support.migrations import MIGRATABLE, READY, kubevirt
from tests.support.scenario import POOL, Scenario
from tests.support.virt_controller import VirtController, _Vm
from webhook.commands.benchmark.plan import LABEL
from webhook.commands.benchmark.probe import summarize
from webhook.placement.objects.kubevirt import HOSTNAME

STORAGE_CLASS: Object = {"metadata": {"name": "longhorn"}, "provisioner": DRIVER, "volumeBindingMode": "Immediate"}
LONGHORN = f"{GROUP}/namespaces/longhorn-system"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
KUBEVIRTS = "/apis/kubevirt.io/v1/namespaces/kubevirt/kubevirts"
NOT_MIGRATABLE: Object = MIGRATABLE | {
    "status": "False",
    "reason": "HostDeviceNotLiveMigratable",
    "message": "VMI uses a PCI host devices",  # KubeVirt's own text: pkg/virt-handler
}
ACCOUNT = KUBEVIRT.rpartition(":")[2]
LABELS = {"kubevirt.io": "virt-controller"}
VIRT_CONTROLLER: Object = {
    "metadata": {"name": "virt-controller"},
    "spec": {
        "selector": {"matchLabels": LABELS},
        "template": {
            "metadata": {"labels": LABELS},
            "spec": {
                "nodeSelector": {HOSTNAME: "node-a"},
                "serviceAccountName": ACCOUNT,
                # Without requests, the scheduler would count 100m and 200 MB, and choose other nodes for the VMs.
                "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}}}],
            },
        },
    },
}
DEPLOYED: Object = {"phase": "Deployed", "observedKubeVirtVersion": "v1.6.0"}
MIGRATION = 2.0  # seconds of a live migration
DISK, HOP = 0.0005, 0.00025  # seconds of an operation of `benchmark`, and more on another node
LONGHORN_VERSION = "v1.11.3"  # it keeps a VM's pod when a share-manager is replaced


class KubeVirt(VirtController):
    """A virt-controller for all VMs of a namespace. Each pod follows the current template of its VM.

    A MigrationController acts on the same VMs.
    """

    def _vmi_spec(self, vm: str) -> Object:
        spec = self.vm(vm)["spec"]["template"]["spec"]
        return {key: spec[key] for key in ("evictionStrategy",) if key in spec}

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
        del vm.pod["spec"]["nodeSelector"][POOL]  # each namespace may use all nodes
        return super()._owned_pod(name, vm)


class KubeVirts:
    """KubeVirt in all namespaces: in each, the two controllers run from its first VM to its end."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._running: dict[str, ExitStack] = {}  # by namespace
        self._start(scenario)

    def reconcile(self) -> None:
        vms = self._scenario.plane.request("GET", "/apis/kubevirt.io/v1/virtualmachines")["items"]
        for namespace in {vm["metadata"]["namespace"] for vm in vms} - self._running.keys():
            self._start(_in_namespace(self._scenario, namespace))
        namespaces = self._scenario.plane.request("GET", "/api/v1/namespaces")["items"]
        for deleted in self._running.keys() - {each["metadata"]["name"] for each in namespaces}:
            self._running.pop(deleted).close()

    def stop(self) -> None:
        while self._running:
            self._running.popitem()[1].close()

    def _start(self, scenario: Scenario) -> None:
        with ExitStack() as stack:
            stack.enter_context(KubeVirt(scenario))
            stack.enter_context(MigrationController(scenario, MIGRATION))
            self._running[scenario.namespace] = stack.pop_all()


def _in_namespace(scenario: Scenario, namespace: str) -> Scenario:
    """Return the scenario for another namespace, which exists already."""
    other = copy(scenario)
    other.namespace, other.pods = namespace, f"/api/v1/namespaces/{namespace}/pods"
    return other


class Provisioner:
    """Longhorn's CSI provisioner: it creates a volume for each new claim of its StorageClasses, and deletes it."""

    def __init__(self, scenario: Scenario) -> None:
        self._longhorn, self._plane, self._nodes = scenario.longhorn, scenario.plane, scenario.node_names
        self._provisioned: set[str] = set()  # UIDs of claims
        self._plane.request("POST", f"{STORAGE}/storageclasses", STORAGE_CLASS)

    def reconcile(self) -> None:
        found = self._plane.request("GET", f"{STORAGE}/storageclasses")["items"]
        classes = {each["metadata"]["name"]: each for each in found if each["provisioner"] == DRIVER}
        for claim in self._plane.request("GET", "/api/v1/persistentvolumeclaims")["items"]:
            storage_class = classes.get(claim["spec"].get("storageClassName"))
            if storage_class and claim["metadata"]["uid"] not in self._provisioned:
                self._provision(claim, storage_class)
        for volume in self._plane.request("GET", VOLUMES)["items"]:
            if volume["status"]["phase"] == "Released" and volume["metadata"].get("annotations", {}).get(
                PROVISIONED_BY
            ):
                self._delete(volume)

    def _provision(self, claim: Object, storage_class: Object) -> None:
        self._longhorn.provision_claim(claim)
        for item in _data(f"pvc-{claim['metadata']['uid']}", self._nodes):
            self._plane.request("POST", f"{LONGHORN}/{item['kind'].lower()}s", item)
        self._provisioned.add(claim["metadata"]["uid"])
        # As the external provisioner does. With the annotation, the controller manager leaves the deletion to it.
        change = {"metadata": {"annotations": {PROVISIONED_BY: DRIVER}}}
        change["spec"] = {"persistentVolumeReclaimPolicy": storage_class["reclaimPolicy"]}
        self._plane.request("PATCH", f"{VOLUMES}/pvc-{claim['metadata']['uid']}", change)

    def _delete(self, volume: Object) -> None:
        if volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete":
            name = volume["spec"]["csi"]["volumeHandle"]
            self._longhorn.remove_volume(name)
            for item in _data(name, self._nodes):
                self._plane.request("DELETE", f"{LONGHORN}/{item['kind'].lower()}s/{item['metadata']['name']}")
            self._plane.request("DELETE", f"{VOLUMES}/{volume['metadata']['name']}")


class Probes:
    """The kubelets of the pods of `benchmark`. On another node than the share-manager, an operation takes longer."""

    def __init__(self, scenario: Scenario) -> None:
        self._longhorn, self._plane = scenario.longhorn, scenario.plane

    def reconcile(self) -> None:
        for pod in self._plane.request("GET", f"/api/v1/pods?labelSelector={LABEL}")["items"]:
            if pod["status"].get("phase") == "Running" and not pod["metadata"]["name"].endswith("-0"):
                self._end(pod)

    def _end(self, pod: Object) -> None:
        metadata, claim = pod["metadata"], pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"]
        namespace = f"/api/v1/namespaces/{metadata['namespace']}"
        bound = self._plane.request("GET", f"{namespace}/persistentvolumeclaims/{claim}")
        server = self._longhorn.pod(bound["spec"]["volumeName"])
        together = server is not None and server["spec"]["nodeName"] == pod["spec"]["nodeName"]
        figures = summarize([DISK if together else DISK + HOP] * 1000)
        message = json.dumps({"direct": True, "figures": dict.fromkeys(["4 KiB write", "4 KiB read"], figures)})
        ended = {"name": "benchmark", "state": {"terminated": {"exitCode": 0, "message": message}}}
        status = {"phase": "Succeeded", "containerStatuses": [pod["status"]["containerStatuses"][0] | ended]}
        self._plane.request("PATCH", f"{namespace}/pods/{metadata['name']}/status", {"status": status})


def _data(volume: str, nodes: list[str]) -> list[Object]:
    """Return the Longhorn volume, and its replica on each node. No controller acts on them."""
    return [longhorn_volume(volume, "disabled", currentNodeID=""), *(replica(node, volume) for node in nodes)]


def show_installation(plane: ControlPlane) -> None:
    """Create what `doctor` reads: the versions of KubeVirt and Longhorn, and the pod of virt-controller."""
    plane.create_namespace("kubevirt")
    created = plane.request("POST", KUBEVIRTS, kubevirt())["metadata"]
    plane.request("PATCH", f"{KUBEVIRTS}/{created['name']}/status", {"status": DEPLOYED})
    # `Longhorn.install` adds Setting
    crds.install(plane, *(crds.crd(name, "longhorn.io", "v1beta2", status=False) for name in ("Volume", "Replica")))
    kind = {"apiVersion": "longhorn.io/v1beta2", "kind": "Setting", "metadata": {"name": "current-longhorn-version"}}
    plane.request("POST", f"{LONGHORN}/settings", kind | {"value": LONGHORN_VERSION})
    core = "/api/v1/namespaces/kubevirt"
    plane.request("POST", f"{core}/serviceaccounts", {"metadata": {"name": ACCOUNT}})
    plane.request("POST", "/apis/apps/v1/namespaces/kubevirt/deployments", VIRT_CONTROLLER)
