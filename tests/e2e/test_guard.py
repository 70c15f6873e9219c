"""The node guard: a VM that the scheduler rejects on its share-manager's node runs elsewhere.

test_properties.py compares the guard with the scheduler for what the guard evaluates in random clusters: taints,
resources, affinity, volumes' zones and limits. Here are one such case, and those that no cluster there has.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.support.controlplane import build
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.json_server import JsonServer
from tests.support.longhorn import STORAGE, VOLUMES
from tests.support.scenario import HOSTNAME, Scenario, reason_of
from tests.support.webhook_process import REGISTRATIONS
from webhook.catalog.storage_kinds import LONGHORN_DRIVER

pytestmark = pytest.mark.controlplane

DRA = "/apis/resource.k8s.io/v1"
DEVICE = "example.com/gpu"
SIDECAR = {"name": "sidecar", "image": "none", "resources": {"requests": {"cpu": "10"}}}
PATCH = json.dumps([{"op": "add", "path": "/spec/containers/-", "value": SIDECAR}])


def fill(scenario: Scenario, node: str) -> Object:
    scenario.fill(node, kvm="1k")
    return {}


def fill_with_overhead(scenario: Scenario, node: str) -> Object:
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
    return {}


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


def declare_feature(scenario: Scenario, node: str) -> Object:
    """Let each other node declare a feature, and return a container that needs it."""
    for other in scenario.node_names:
        features = ["RestartAllContainersOnContainerExits"] if other != node else []
        scenario.plane.request("PATCH", f"/api/v1/nodes/{other}/status", {"status": {"declaredFeatures": features}})
    rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}
    return {"container": {"restartPolicy": "Never", "restartPolicyRules": [rule]}}


# What makes the node infeasible and returns fields of the VM's pod, the decision's reason, and the scheduler's message.
# First what only such a pod needs, then what any VM lacks on the node.
CHANGES: list[tuple[Callable[[Scenario, str], Object], str, str]] = [
    (add_ephemeral_volume, "Unjudged", "find available persistent volumes"),
    (fill, "NodeFull", "Insufficient devices.kubevirt.io/kvm"),
]
if not build.is_oldest():  # Kubernetes 1.30 has no extended resources of devices, and counts an overhead once
    CHANGES.insert(0, (add_devices, "Unjudged", "cannot allocate all claims"))
    CHANGES.insert(0, (declare_feature, "Unjudged", "didn't match Pod's required features"))
    CHANGES.insert(3, (fill_with_overhead, "NodeFull", "Insufficient cpu"))


def test_a_vm_runs_elsewhere_if_the_scheduler_rejects_it_on_the_node(scenario: Scenario, plane: ControlPlane) -> None:
    scenario.add_nodes(3)
    _, node = scenario.add_attached_volume()
    for prepare, reason, message in CHANGES:
        fields = prepare(scenario, node)
        vm, probe = pod_with(scenario, fields), pod_with(scenario, fields, opt_in=None)
        plane.wait(lambda vm=vm, reason=reason: reason_of(scenario.dry_run(vm)) == reason, 20, f"the reason {reason}")
        scenario.wait_rejected(node, probe)
        rejected = scenario.create(probe)
        # The first attempt may come before the controller has created the claim of an ephemeral volume.
        plane.wait(
            lambda pod=rejected, message=message: message in scenario.wait_unschedulable(pod),
            20,
            f"{message} on {node}",
        )
        guarded = scenario.create(vm)
        assert scenario.wait_running(guarded) != node
        assert reason_of(scenario.get(guarded)) == reason


@contextmanager
def limited_driver(scenario: Scenario, full: str) -> Iterator[None]:
    """Let the CSI driver of an in-tree type allow no volume on the node `full`, and any number on the others."""
    migrated = {"storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/aws-ebs"}
    path = f"{STORAGE}/csinodes"
    for node in scenario.node_names:
        limit = {"allocatable": {"count": 0}} if node == full else {}
        drivers = [{"name": LONGHORN_DRIVER, "nodeID": node}, {"name": "ebs.csi.aws.com", "nodeID": node} | limit]
        csi_node = {"metadata": {"name": node, "annotations": migrated}, "spec": {"drivers": drivers}}
        scenario.plane.request("POST", path, csi_node)
    try:
        yield
    finally:
        for node in scenario.node_names:
            scenario.plane.request("DELETE", f"{path}/{node}")


def test_a_vm_runs_elsewhere_if_the_node_takes_no_more_volumes_of_an_in_tree_type(scenario: Scenario) -> None:
    scenario.add_nodes(2)
    _, node = scenario.add_attached_volume()
    common = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    name, size = f"{scenario.namespace}-ebs", {"storage": "1Gi"}
    claimed = {"claimRef": {"namespace": scenario.namespace, "name": "data"}}
    pv = common | claimed | {"awsElasticBlockStore": {"volumeID": "vol-1"}, "capacity": size}
    scenario.plane.request("POST", VOLUMES, {"metadata": {"name": name}, "spec": pv})
    pvc = common | {"volumeName": name, "resources": {"requests": size}}
    scenario.plane.request("POST", scenario.claims, {"metadata": {"name": "data"}, "spec": pvc})
    scenario.wait_bound("data")
    with limited_driver(scenario, node):
        scenario.plane.wait(lambda: "ebs.csi.aws.com" in scenario.decision("disk1", "data"), 20, "a known CSINode")
        scenario.wait_rejected(node, scenario.vm_pod("probe", "disk1", "data", opt_in=None))
        pod = scenario.create(scenario.vm_pod("vm1", "disk1", "data"))
        assert reason_of(scenario.get(pod)) == "Unjudged"
        assert scenario.wait_running(pod) != node
    scenario.plane.request("DELETE", f"{VOLUMES}/{name}")


def pod_with(scenario: Scenario, fields: Object, opt_in: str | None = "true") -> Object:
    pod = scenario.vm_pod("vm", "disk1", opt_in=opt_in)
    pod["spec"]["volumes"] += fields.get("volumes", [])
    resources = pod["spec"]["containers"][0]["resources"]
    pod["spec"]["containers"][0] |= fields.get("container", {})
    for kind in "requests", "limits":
        resources[kind] = resources.get(kind, {}) | fields.get("resources", {})
    return pod


@contextmanager
def second_webhook(scenario: Scenario) -> Iterator[None]:
    """Run another webhook, such as Kyverno, that the API server calls after ours: it adds a sidecar to pods."""
    name, called = f"zz-{scenario.namespace}", threading.Event()  # they are called in the order of their names

    def answer(review: Object) -> Object:
        called.set()
        patch = {"patchType": "JSONPatch", "patch": base64.b64encode(PATCH.encode()).decode()}
        response = {"uid": review["request"]["uid"], "allowed": True} | patch
        return {key: review[key] for key in ("apiVersion", "kind")} | {"response": response}

    with JsonServer(answer, tls=True) as server:
        webhook = server.webhook("second.example.org", scenario.namespace)
        scenario.plane.request("POST", REGISTRATIONS, {"metadata": {"name": name}, "webhooks": [webhook]})
        try:
            scenario.plane.wait(lambda: scenario.decision("none") and called.is_set(), 20, f"a call of {name}")
            yield
        finally:
            scenario.plane.request("DELETE", f"{REGISTRATIONS}/{name}")


def test_a_vm_that_another_webhook_changed_after_its_pin_runs_elsewhere(scenario: Scenario) -> None:
    (node,) = scenario.add_nodes(1, "small", cpu="8")
    scenario.add_attached_volume()
    scenario.add_nodes(2)
    before = scenario.create(scenario.vm_pod("before", "disk1"))
    assert scenario.wait_running(before) == node
    with second_webhook(scenario):
        pod = scenario.create(scenario.vm_pod("vm1", "disk1"))
    assert reason_of(scenario.get(pod)) == "NodeFull"
    assert scenario.wait_running(pod) != node


def test_a_vm_runs_on_its_native_architecture_if_its_storage_is_on_another_one(scenario: Scenario) -> None:
    (emulating,) = scenario.add_nodes(1, "arm64", labels={"kubernetes.io/arch": "arm64"})
    _, node = scenario.add_attached_volume()
    assert node == emulating
    scenario.add_nodes(1)
    vm = scenario.vm_pod("vm1", "disk1")
    # With the feature gate CrossArchitectureVirtualization, KubeVirt replaces the node selector with a preference.
    architecture = vm["spec"]["nodeSelector"].pop("kubernetes.io/arch", "amd64")
    expressions = [{"key": "kubernetes.io/arch", "operator": "In", "values": [architecture]}]
    native = [{"weight": 100, "preference": {"matchExpressions": expressions}}]
    vm["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] = native
    pod = scenario.create(vm)
    assert reason_of(scenario.get(pod)) == "NodeMismatch"
    assert scenario.wait_running(pod) != emulating
