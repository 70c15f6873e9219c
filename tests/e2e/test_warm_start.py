"""Warm start: a VM goes to the node of its running share-manager, also after a restart and with another scheduler."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.controlplane.plane import ControlPlane
from tests.support.scenario import CO_SCHEDULED, DECISION, Scenario

pytestmark = pytest.mark.controlplane

LONGEST_NAME = "disk." + "a" * 248  # 253 characters


@pytest.fixture
def my_scheduler(plane: ControlPlane) -> Iterator[str]:
    """The name of a second kube-scheduler, set up as in the guides of Kubernetes and KubeVirt."""
    yield plane.start_scheduler("my-scheduler", leader_elect=True).name
    plane.processes.pop("my-scheduler").kill()


def test_the_default_and_a_second_scheduler_bind_vms_to_the_nodes_of_their_share_managers(
    scenario: Scenario, plane: ControlPlane, my_scheduler: str
) -> None:
    """Also with the longest names, names with dots, and nodes whose label `hostname` names another node."""
    names = [scenario.add_node(f"{scenario.namespace}.rack-{number}.example.com") for number in range(6)]
    scenario.wait_ready(names)
    for name, hostname in zip(names, [*names[1:], names[0]], strict=True):
        scenario.change_node(name, {"metadata": {"labels": {"kubernetes.io/hostname": hostname}}})
    claims = ["disk1", "disk2", "disk3", LONGEST_NAME]
    # A label holds the volume's name, so the name has at most 63 characters.
    longest = {LONGEST_NAME: f"vol-{scenario.namespace}-".ljust(63, "x")}
    volumes = [scenario.add_volume(claim, longest.get(claim, "")) for claim in claims]
    scenario.wait_bound(*claims)
    for claim in claims:
        scenario.create_consumer(claim)
    nodes = [scenario.wait_share_manager(volume, claim) for volume, claim in zip(volumes, claims, strict=True)]
    schedulers = ["default-scheduler", my_scheduler] * 2
    vms = [
        scenario.vm_pod(f"vm{number}", claim, schedulerName=name)
        for number, (claim, name) in enumerate(zip(claims, schedulers, strict=True))
    ]
    pods = [scenario.create(vm) for vm in vms]
    assert [scenario.wait_running(pod) for pod in pods] == nodes
    for pod, node, claim in zip(pods, nodes, claims, strict=True):
        assert scenario.annotations(pod)[CO_SCHEDULED] == node
        assert scenario.annotations(pod)[DECISION] == f"CoScheduled: pinned to {node}, which serves claim {claim}"
    assert [scenario.scheduler_of(pod) for pod in pods] == schedulers
    lease = plane.request("GET", f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{my_scheduler}")
    assert lease["spec"]["holderIdentity"]


def test_after_the_share_manager_stopped_the_vm_goes_anywhere_and_the_share_manager_follows(
    scenario: Scenario, plane: ControlPlane
) -> None:
    scenario.add_nodes(6)
    volume = scenario.add_volume()
    scenario.wait_bound("disk1")
    first = scenario.start_vm("vm1", "disk1")
    before = scenario.longhorn.wait_running(volume)
    scenario.delete(first)
    scenario.longhorn.wait_stopped(volume)
    # The ShareManager still names the old owner, which is no longer valid.
    assert (scenario.longhorn.share_manager(volume) or {})["status"]["ownerID"] == before
    scenario.change_node(before, {"spec": {"unschedulable": True}})
    plane.wait(lambda: scenario.decision("disk1").startswith("ColdStart"), 20, "a decision that ignores the old owner")
    assert "unschedulable" in scenario.wait_rejected(before)
    second = scenario.start_vm("vm1", "disk1")
    assert CO_SCHEDULED not in scenario.annotations(second)
    node = scenario.wait_running(second)
    assert node != before
    assert scenario.longhorn.wait_running(volume) == node


def test_a_vm_follows_a_share_manager_that_moved_after_a_node_loss(scenario: Scenario, plane: ControlPlane) -> None:
    scenario.add_nodes(6)
    volume = scenario.add_volume()
    scenario.wait_bound("disk1")
    first = scenario.start_vm("vm1", "disk1")
    lost = scenario.longhorn.wait_running(volume)
    assert scenario.wait_running(first) == lost
    # A backup on another node keeps the volume attached while the VM is down.
    scenario.create_consumer("disk1", node=next(name for name in scenario.node_names if name != lost))
    scenario.make_not_ready(lost)
    moved_to = scenario.longhorn.wait_running(volume, other_than=lost)
    scenario.delete(first)
    plane.wait(lambda: scenario.target_node("disk1") == moved_to, 20, f"a decision for {moved_to}")
    assert scenario.wait_running(scenario.start_vm("vm1", "disk1")) == moved_to
