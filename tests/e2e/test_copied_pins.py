"""What a user of a namespace writes on pods of his own doesn't move another tenant's VM from its storage."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.support.controlplane.api import ApiError, Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.kubevirt import install_crds
from tests.support.longhorn import Longhorn
from tests.support.measured import Measured
from tests.support.replicas import Replicas
from tests.support.scenario import CO_SCHEDULED, DECISION, Scenario
from tests.support.webhook_process import RIGHTS, create_service_account

pytestmark = pytest.mark.controlplane

GATE = [{"name": "example.com/never"}]


@pytest.fixture(scope="module")
def replicas(plane: ControlPlane, longhorn: Longhorn) -> Iterator[Replicas]:
    """Two replicas that each keep a reserve for the other one once that has pinned a VM."""
    install_crds(plane)
    token = create_service_account(plane, "copied", RIGHTS)
    kubeconfig = plane.write_kubeconfig(plane.folder / "copied-kubeconfig", token)
    settings = {"longhorn_namespace": longhorn.namespace, "session_affinity": "true"}
    with Replicas(plane, "copied", kubeconfig, 2, settings, share_managers=False) as replicas:
        replicas.route_to_one()
        yield replicas


@pytest.fixture
def scenario(plane: ControlPlane, longhorn: Longhorn, replicas: Replicas) -> Iterator[Scenario]:
    """A node that serves `disk1` and has space for two VMs, and another node. A VM of the victim runs."""
    scenario = Scenario(plane, longhorn, replicas.first)
    scenario.add_nodes(1, "small", kvm="3")
    scenario.add_attached_volume()
    scenario.add_nodes(1)
    scenario.start_vm("victim", "disk1")
    yield scenario
    scenario.close()


def copied_pin(scenario: Scenario, node: str, **spec: object) -> Object:
    """Return a pod that carries everything that the webhook writes on a pinned pod, for a VMI that doesn't exist."""
    pod = scenario.vm_pod("copy", opt_in=None, schedulerName="none", **spec)
    uid = pod["metadata"]["labels"]["kubevirt.io/created-by"] = "00000000-0000-0000-0000-000000000000"
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    preferred = [{"weight": 100, "preference": {"matchFields": [field]}}]
    pod["metadata"]["annotations"] |= {CO_SCHEDULED: node, DECISION: f"CoScheduled: pinned to {node}"}
    owner = {"apiVersion": "example.com/v1", "kind": "VirtualMachineInstance", "name": "copy", "uid": uid}
    pod["metadata"]["ownerReferences"] = [owner | {"controller": True}]
    pod["spec"]["affinity"] = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": required,
            "preferredDuringSchedulingIgnoredDuringExecution": preferred,
        }
    }
    return pod


def with_requests(pod: Object, **resources: str) -> Object:
    named = {key.replace("kvm", "devices.kubevirt.io/kvm"): value for key, value in resources.items()}
    pod["spec"]["containers"][0]["resources"] = {"requests": named, "limits": named}
    return pod


def create_as_tenant(scenario: Scenario, pod: Object) -> str:
    return str(scenario.plane.request("POST", scenario.pods, pod, user="")["metadata"]["name"])


@pytest.mark.parametrize(
    ("cpus", "spec"), [("1M", {"schedulingGates": GATE}), ("1M", {}), ("12", {"schedulingGates": GATE})], ids=str
)
def test_a_copied_pin_takes_no_capacity_from_a_vm(scenario: Scenario, cpus: str, spec: Object) -> None:
    node = scenario.target_node("disk1")
    fake = create_as_tenant(scenario, with_requests(copied_pin(scenario, node, **spec), cpu=cpus))
    assert scenario.get(fake)["spec"]["schedulerName"] == "none"
    scenario.wait_running(scenario.create_consumer("disk1"))  # by then, the webhook's watch has shown the fake pod
    vm = scenario.create(scenario.vm_pod("vm1", "disk1"))
    assert scenario.annotations(vm)[DECISION].startswith("CoScheduled")
    assert scenario.wait_running(vm) == node


def test_a_copied_pin_that_exists_for_half_a_second_switches_no_reserve_on(
    scenario: Scenario, plane: ControlPlane
) -> None:
    """With the reserve, the VM that takes the last place would need the node to have space for two."""
    node, began = scenario.target_node("disk1"), time.monotonic()
    fake = create_as_tenant(scenario, with_requests(copied_pin(scenario, node), cpu="1"))
    plane.wait(lambda: time.monotonic() - began > 0.5, 2, "half a second")
    scenario.delete(fake)
    for number in range(2):
        vm = scenario.create(scenario.vm_pod(f"vm{number}", "disk1"))
        assert scenario.annotations(vm)[DECISION].startswith("CoScheduled"), number
        assert scenario.wait_running(vm) == node


def test_a_pod_that_a_quota_rejects_again_and_again_reserves_for_ten_seconds(
    scenario: Scenario, plane: ControlPlane, measured: Measured
) -> None:
    critical = {"scopeName": "PriorityClass", "operator": "In", "values": ["system-node-critical"]}
    quota = {"hard": {"pods": "0"}, "scopeSelector": {"matchExpressions": [critical]}}
    path = f"/api/v1/namespaces/{scenario.namespace}/resourcequotas"
    plane.request("POST", path, {"metadata": {"name": "none"}, "spec": quota})
    plane.wait(lambda: plane.request("GET", f"{path}/none").get("status"), 20, "the quota")
    pod = scenario.vm_pod("rejected", "disk1", priorityClassName="system-node-critical", priority=None)
    rejected = scenario.owned(with_requests(pod, kvm="2"))
    began = time.monotonic()

    def reason_after_rejection() -> str:
        with pytest.raises(ApiError, match="exceeded quota"):
            plane.request("POST", scenario.pods, rejected)
        return scenario.decision("disk1").partition(":")[0]

    assert reason_after_rejection() == "NodeFull"
    plane.wait(lambda: reason_after_rejection() == "CoScheduled", 20, "the end of the reservation")
    measured(f"copied pins: a pod that a quota rejects again and again reserves for {time.monotonic() - began:.0f} s")
