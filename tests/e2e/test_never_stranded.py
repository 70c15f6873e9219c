"""A VM is pinned only where it can run. What other webhooks, the scheduler or Longhorn do later must not strand it."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.e2e.second_webhook import SecondWebhook
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.scenario import CO_SCHEDULED, DECISION, HOSTNAME, Scenario

pytestmark = pytest.mark.controlplane

ZONE = "test/zone"
SIDECAR = {"name": "sidecar", "image": "none", "resources": {"requests": {"cpu": "10"}}}


def reason(scenario: Scenario, pod: str) -> str:
    return scenario.annotations(pod)[DECISION].partition(":")[0]


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        pytest.param(
            {"op": "add", "path": "/spec/nodeSelector/test~1zone", "value": "b"}, "NodeMismatch", id="a nodeSelector"
        ),
        pytest.param({"op": "add", "path": "/spec/containers/-", "value": SIDECAR}, "NodeFull", id="a sidecar"),
    ],
)
def test_a_vm_that_another_webhook_changed_after_its_pin_runs_elsewhere(
    scenario: Scenario, patch: Object, expected: str
) -> None:
    (node,) = scenario.add_nodes(1, "a", {ZONE: "a"}, cpu="8")
    scenario.add_attached_volume()
    scenario.add_nodes(2, "b", {ZONE: "b"})
    before = scenario.create(scenario.vm_pod("before", "disk1"))
    assert scenario.wait_running(before) == node
    with SecondWebhook(scenario, [patch]):
        pod = scenario.create(scenario.vm_pod("vm1", "disk1"))
    assert reason(scenario, pod) == expected
    assert scenario.wait_running(pod) != node


def test_a_vm_with_a_scheduling_gate_runs_elsewhere_if_the_node_fills_up_meanwhile(
    scenario: Scenario, plane: ControlPlane
) -> None:
    (node,) = scenario.add_nodes(1, "small", kvm="1")
    scenario.add_attached_volume()
    scenario.add_nodes(2)
    gated = scenario.create(scenario.vm_pod("vm1", "disk1", schedulingGates=[{"name": "quota.kubevirt.io/gate"}]))
    assert reason(scenario, gated) == "Unjudged"
    assert scenario.wait_running(scenario.create(scenario.vm_pod("vm2", "disk1"))) == node
    plane.request("PATCH", f"{scenario.pods}/{gated}", [{"op": "remove", "path": "/spec/schedulingGates"}])
    assert scenario.wait_running(gated) != node


def test_a_vm_that_prefers_the_node_takes_no_place_of_a_pinned_vm(scenario: Scenario, plane: ControlPlane) -> None:
    (node,) = scenario.add_nodes(1, "small", kvm="2")
    scenario.add_attached_volume()
    scenario.add_nodes(2)
    preferring, *others = (scenario.vm_pod(name, "disk1") for name in ("vm1", "vm2", "vm3"))
    preferring["metadata"]["annotations"]["kubevirt-scheduler/co-schedule-mode"] = "preferred"
    pods = scenario.known(preferring, *others)
    with plane.stopped_scheduler():
        first, second, third = map(scenario.create, pods)
    assert [reason(scenario, pod) for pod in (first, second, third)] == ["CoScheduled", "CoScheduled", "NodeFull"]
    nodes = [scenario.wait_running(pod) for pod in (first, second, third)]
    assert nodes[:2] == [node, node]
    assert nodes[2] != node


def test_a_vm_gets_the_capacity_that_an_infeasible_resize_asks_for(scenario: Scenario, plane: ControlPlane) -> None:
    (node,) = scenario.add_nodes(1, "small", cpu="8")
    scenario.add_attached_volume()
    scenario.add_nodes(2)
    scenario.fill(node, cpu="5")
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}}
    spec = {"containers": [{"name": "main", "image": "none", "resources": resources}], "nodeName": node}
    pod = scenario.create({"metadata": {"generateName": "resized-"}, "spec": spec})
    scenario.wait_running(pod)
    allocated = {"allocatedResources": resources["requests"], "resources": resources}
    statuses = [each | allocated for each in scenario.get(pod)["status"]["containerStatuses"]]
    report = {"op": "add", "path": "/status/containerStatuses", "value": statuses}
    plane.request("PATCH", f"{scenario.pods}/{pod}/status", [report])
    resize = {"op": "replace", "path": "/spec/containers/0/resources/requests/cpu", "value": "7"}
    plane.request("PATCH", f"{scenario.pods}/{pod}/resize", [resize])
    plane.wait(lambda: scenario.decision("disk1").startswith("NodeFull"), 20, "the resize to count")
    # What a kubelet reports if the resize can never fit on its node.
    condition = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
    plane.request(
        "PATCH", f"{scenario.pods}/{pod}/status", [{"op": "add", "path": "/status/conditions/-", "value": condition}]
    )
    plane.wait(lambda: scenario.decision("disk1").startswith("CoScheduled"), 20, "the resize not to count")
    assert scenario.wait_running(scenario.create(scenario.vm_pod("vm1", "disk1"))) == node


def test_a_second_vm_on_a_disk_whose_share_manager_starts_runs_beside_the_first(
    scenario: Scenario, plane: ControlPlane
) -> None:
    scenario.add_nodes(8)
    volume = scenario.add_volume()
    scenario.wait_bound("disk1")
    with ExitStack() as stack:
        with scenario.longhorn.paused():
            node = scenario.wait_running(scenario.create(scenario.vm_pod("vm1", "disk1")))
            stack.enter_context(plane.stopped_scheduler())
        # Now the share-manager pod is created, but not bound.
        plane.wait(lambda: scenario.longhorn.pod(volume), 20, "the share-manager pod")
        interim = (scenario.longhorn.share_manager(volume) or {})["status"]["ownerID"]
        plane.wait(lambda: scenario.decision("disk1").startswith("ShareManagerStarting"), 20, "that decision")
        second = scenario.create(scenario.vm_pod("vm2", "disk1"))
    assert interim != node
    assert reason(scenario, second) == "ShareManagerStarting"
    assert scenario.annotations(second)[CO_SCHEDULED] == node
    assert scenario.longhorn.wait_running(volume) == node
    assert scenario.wait_running(second) == node


def test_in_a_drain_the_share_manager_follows_the_migration_target(scenario: Scenario, plane: ControlPlane) -> None:
    nodes = scenario.add_nodes(8)
    volume = scenario.add_volume()
    scenario.wait_bound("disk1")
    source = scenario.wait_running(scenario.start_vm("vm1", "disk1"))
    assert scenario.longhorn.wait_running(volume) == source
    scenario.change_node(source, {"spec": {"unschedulable": True}})
    target = scenario.vm_pod("vm1", "disk1", review="migration-target")
    target["spec"]["nodeSelector"][HOSTNAME] = next(name for name in nodes if name != source)
    destination = scenario.wait_running(scenario.create(target))
    path = f"/api/v1/namespaces/{scenario.longhorn.namespace}/pods/share-manager-{volume}"
    plane.wait(lambda: cordon_is_known(scenario, source), 20, "a decision that knows of the cordon")
    plane.request("DELETE", path)
    assert scenario.longhorn.wait_running(volume, other_than=source) == destination


def cordon_is_known(scenario: Scenario, node: str) -> bool:
    return scenario.decision("disk1").startswith("NodeCordoned") and bool(scenario.wait_rejected(node))
