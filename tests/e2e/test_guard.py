"""The node guard: a VM that can't run on its share-manager's node runs elsewhere. Without it, the VM stays pending.

test_properties.py compares the guard with the scheduler for what the guard evaluates in random clusters: taints,
resources, affinity, volumes' zones and limits. Here are one such case, and those that no cluster there has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.controlplane import build
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.longhorn import STORAGE, VOLUMES
from tests.support.scenario import CO_SCHEDULED, DECISION, HOSTNAME, Scenario
from tests.support.webhook_process import Webhook

pytestmark = pytest.mark.controlplane

DRA = "/apis/resource.k8s.io/v1"


DEVICE = "example.com/gpu"


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


# What makes the node infeasible and returns fields of the VM's pod, the decision's reason, and the scheduler's message.
CHANGES: dict[str, tuple[Callable[[Scenario, str], Object], str, str]] = {
    "a full node": (fill, "NodeFull", "Insufficient devices.kubevirt.io/kvm"),
    "an ephemeral volume": (add_ephemeral_volume, "Unjudged", "find available persistent volumes"),
}
if not build.is_oldest():  # Kubernetes 1.30 has no extended resources of devices, and counts an overhead once
    CHANGES["a device"] = (add_devices, "Unjudged", "cannot allocate all claims")
    CHANGES["an overhead that counts twice"] = (fill_with_overhead, "NodeFull", "Insufficient cpu")


@pytest.mark.parametrize(("prepare", "reason", "message"), CHANGES.values(), ids=CHANGES)
def test_the_vm_runs_elsewhere_and_stays_pending_without_the_guard(
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
