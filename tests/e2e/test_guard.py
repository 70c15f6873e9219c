"""The node guard: a VM that can't run on its share-manager's node runs elsewhere. Without it, the VM stays pending."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.builders import ZONE
from tests.support.controlplane import build
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.longhorn import STORAGE, VOLUMES
from tests.support.scenario import CO_SCHEDULED, DECISION, HOSTNAME, Scenario
from tests.support.webhook_process import Webhook

pytestmark = pytest.mark.controlplane

Change = Callable[[Scenario, str], object]
DRA = "/apis/resource.k8s.io/v1"


def fill_with_overhead(scenario: Scenario, node: str) -> None:
    """Run a pod that takes 10 CPUs of the node's 16, of which 6 are an overhead that Kubernetes 1.37 counts twice."""
    overhead = {"handler": "any", "overhead": {"podFixed": {"cpu": "6"}}}
    runtime = {"metadata": {"name": scenario.namespace}} | overhead
    scenario.plane.request("POST", "/apis/node.k8s.io/v1/runtimeclasses", runtime)
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "4"}}}
    spec = {"containers": [container], "nodeName": node, "runtimeClassName": scenario.namespace}
    name = scenario.create({"metadata": {"generateName": "filler-"}, "spec": spec})
    scenario.wait_running(name)
    # As the kubelet does: `generateAPIPodStatus` in pkg/kubelet/kubelet_pods.go.
    status = {"allocatedResources": {"cpu": "10"}, "resources": {"requests": {"cpu": "4"}}}
    scenario.plane.request("PATCH", f"{scenario.pods}/{name}/status", {"status": status})


# A change to the node, the resulting reason of the decision, and a part of the scheduler's message.
CHANGES: dict[str, tuple[Change, str, str]] = {
    "pod limit reached": (lambda scenario, node: scenario.fill(node, count=8), "NodeFull", "Too many pods"),
    "no kvm left": (
        lambda scenario, node: scenario.fill(node, kvm="5"),
        "NodeFull",
        "Insufficient devices.kubevirt.io/kvm",
    ),
    "cordoned": (
        lambda scenario, node: scenario.change_node(node, {"spec": {"unschedulable": True}}),
        "NodeCordoned",
        "unschedulable",
    ),
    "not ready": (lambda scenario, node: scenario.make_not_ready(node), "NodeNotReady", "untolerated taint"),
    # virt-controller sets this label when virt-handler stops sending heartbeats.
    "not schedulable for KubeVirt": (
        lambda scenario, node: scenario.change_node(
            node, {"metadata": {"labels": {"kubevirt.io/schedulable": "false"}}}
        ),
        "NodeMismatch",
        "node affinity/selector",
    ),
}
if not build.is_oldest():
    CHANGES["overhead counted twice"] = fill_with_overhead, "NodeFull", "Insufficient cpu"


@pytest.mark.parametrize(("change", "reason", "message"), CHANGES.values(), ids=CHANGES)
def test_the_vm_runs_elsewhere_and_stays_pending_without_the_guard(
    scenario: Scenario, plane: ControlPlane, unguarded_webhook: Webhook, *, change: Change, reason: str, message: str
) -> None:
    scenario.add_nodes(3, pods="8", kvm="5")
    _, node = scenario.add_attached_volume()
    # Longhorn would eventually move the share-manager away from a node that is not ready.
    with scenario.longhorn.paused():
        change(scenario, node)
        plane.wait(lambda: scenario.decision("disk1").startswith(f"{reason}: "), 20, f"a decision with reason {reason}")
        assert message in scenario.wait_rejected(node)
        guarded = scenario.start_vm("vm1", "disk1")
        assert scenario.wait_running(guarded) != node
        assert scenario.annotations(guarded)[DECISION].startswith(f"{reason}: ")

        scenario.use_webhook(unguarded_webhook)
        unguarded = scenario.create(scenario.vm_pod("vm2", "disk1"))
        assert scenario.annotations(unguarded)[CO_SCHEDULED] == node
        assert message in scenario.wait_unschedulable(unguarded)


def test_two_vms_with_anti_affinity_on_one_disk_run_on_two_nodes(scenario: Scenario) -> None:
    scenario.add_nodes(3)
    _, node = scenario.add_attached_volume()
    # The webhook decides on the second VM before the first has a node.
    pods = scenario.known(*(scenario.anti_affinity_pod("vm", "disk1") for _ in range(2)))
    first, second = map(scenario.create, pods)
    nodes = [scenario.wait_running(first), scenario.wait_running(second)]
    assert nodes[0] == node
    assert nodes[1] != node
    assert scenario.annotations(second)[DECISION].startswith("PodAffinity: ")


DRIVER, DEVICE = "disks.example.com", "example.com/gpu"


def put_pv_into_another_zone(scenario: Scenario, node: str) -> Object:
    (volume,) = scenario.volumes
    label = {"metadata": {"labels": {ZONE: "west__south"}}}
    scenario.plane.request("PATCH", f"{VOLUMES}/pv-{volume}", label)
    for name in scenario.node_names:
        zone = "east" if name == node else "west"
        scenario.change_node(name, {"metadata": {"labels": {ZONE: zone}}})
    return {}


def limit_volumes(scenario: Scenario, node: str) -> Object:
    """Let another CSI driver attach no volume to the node, and return a volume of that driver."""
    drivers = [{"name": DRIVER, "nodeID": node, "allocatable": {"count": 0}}]
    scenario.plane.request("POST", f"{STORAGE}/csinodes", {"metadata": {"name": node}, "spec": {"drivers": drivers}})
    common = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    claim = {"volumeName": f"{node}-data", "resources": {"requests": {"storage": "1Gi"}}}
    created = scenario.plane.request("POST", scenario.claims, {"metadata": {"name": "data"}, "spec": common | claim})
    reference = {"namespace": scenario.namespace, "name": "data", "uid": created["metadata"]["uid"]}
    csi = {"csi": {"driver": DRIVER, "volumeHandle": node}, "capacity": {"storage": "1Gi"}, "claimRef": reference}
    scenario.plane.request("POST", VOLUMES, {"metadata": {"name": f"{node}-data"}, "spec": common | csi})
    scenario.wait_bound("data")
    return {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}


def add_ephemeral_volume(scenario: Scenario, node: str) -> Object:
    """Create local PVs on another node, and return an ephemeral volume that needs one of them."""
    name = f"{scenario.namespace}-local"
    binding = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
    scenario.plane.request("POST", f"{STORAGE}/storageclasses", {"metadata": {"name": name}} | binding)
    scenario.storage_classes.append(name)
    other = next(each for each in scenario.node_names if each != node)
    expressions = [{"key": HOSTNAME, "operator": "In", "values": [other]}]
    common = {"accessModes": ["ReadWriteOnce"], "storageClassName": name}
    local = {"local": {"path": "/data"}, "capacity": {"storage": "1Gi"}, "persistentVolumeReclaimPolicy": "Retain"}
    affinity = {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}}
    for number in range(2):
        pv = {"metadata": {"name": f"{name}-{number}"}, "spec": common | local | affinity}
        scenario.plane.request("POST", VOLUMES, pv)
    template = {"spec": common | {"resources": {"requests": {"storage": "1Gi"}}}}
    return {"volumes": [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}]}


def add_devices(scenario: Scenario, node: str) -> Object:
    """Create two devices on another node, and return the request for one of them as an extended resource."""
    other = next(each for each in scenario.node_names if each != node)
    device_class = {"metadata": {"name": scenario.namespace}, "spec": {"extendedResourceName": DEVICE}}
    scenario.plane.request("POST", f"{DRA}/deviceclasses", device_class)
    pool = {"name": other, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.example.com", "pool": pool, "nodeName": other, "devices": [{"name": "a"}, {"name": "b"}]}
    scenario.plane.request("POST", f"{DRA}/resourceslices", {"metadata": {"name": other}, "spec": spec})
    return {"resources": {DEVICE: "1"}}


# What makes the node infeasible and returns fields of the VM's pod, the decision's reason, and the scheduler's message.
FILTERS: dict[str, tuple[Callable[[Scenario, str], Object], str, str]] = {
    "VolumeZone": (put_pv_into_another_zone, "VolumeMismatch", "no available volume zone"),
    "NodeVolumeLimits": (limit_volumes, "Unjudged", "exceed max volume count"),
    "VolumeBinding": (add_ephemeral_volume, "Unjudged", "find available persistent volumes"),
}
if not build.is_oldest():  # Kubernetes 1.30 has no extended resources of devices
    FILTERS["DynamicResources"] = (add_devices, "Unjudged", "cannot allocate all claims")


@pytest.mark.parametrize(("prepare", "reason", "message"), FILTERS.values(), ids=FILTERS)
def test_a_volume_or_a_device_keeps_the_vm_from_the_node(
    scenario: Scenario, plane: ControlPlane, unguarded_webhook: Webhook, *, prepare: Any, reason: str, message: str
) -> None:
    scenario.add_nodes(3)
    _, node = scenario.add_attached_volume()
    fields = prepare(scenario, node)

    def vm(name: str, **options: None) -> Object:
        pod = scenario.vm_pod(name, "disk1", **options)
        pod["spec"]["volumes"] += fields.get("volumes", [])
        resources = pod["spec"]["containers"][0]["resources"]
        for kind in "requests", "limits":
            resources[kind] = resources.get(kind, {}) | fields.get("resources", {})
        return pod

    def decision() -> str:
        return str(scenario.dry_run(vm("trial"))["metadata"]["annotations"][DECISION])

    plane.wait(lambda: decision().startswith(f"{reason}: "), 20, f"a decision with reason {reason}")
    scenario.wait_rejected(node, vm("probe", opt_in=None))
    guarded = scenario.create(vm("vm1"))
    assert scenario.wait_running(guarded) != node

    scenario.use_webhook(unguarded_webhook)
    unguarded = scenario.create(vm("vm2"))
    assert scenario.annotations(unguarded)[CO_SCHEDULED] == node
    # The first attempt may come before the controller has created the claim of an ephemeral volume.
    plane.wait(lambda: message in scenario.wait_unschedulable(unguarded), 20, f"the message {message}")
