"""A share-manager's node that can't take the VM: the VM runs elsewhere, and it is the node guard that saves it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.controlplane.plane import ControlPlane
from tests.support.scenario import CO_SCHEDULED, DECISION, World
from tests.support.webhook_process import Webhook

pytestmark = pytest.mark.controlplane

Spoil = Callable[[World, str], object]
TAINT = {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}
# How the node is spoilt, why the VM can't go there, and how the scheduler says so.
SPOILT: dict[str, tuple[Spoil, str, str]] = {
    "no cpu left": (lambda world, node: world.fill(node, cpu="15900m"), "NodeFull", "Insufficient cpu"),
    "no memory left": (lambda world, node: world.fill(node, memory="63Gi"), "NodeFull", "Insufficient memory"),
    "no room for one more pod": (lambda world, node: world.fill(node, count=8), "NodeFull", "Too many pods"),
    "no kvm left": (lambda world, node: world.fill(node, kvm="5"), "NodeFull", "Insufficient devices.kubevirt.io/kvm"),
    "cordoned": (
        lambda world, node: world.change_node(node, {"spec": {"unschedulable": True}}),
        "NodeCordoned",
        "unschedulable",
    ),
    "tainted": (
        lambda world, node: world.change_node(node, {"spec": {"taints": [TAINT]}}),
        "NodeTainted",
        "untolerated taint",
    ),
    "not ready": (lambda world, node: world.make_not_ready(node), "NodeNotReady", "untolerated taint"),
    # What virt-controller does when virt-handler falls silent.
    "deselected": (
        lambda world, node: world.change_node(node, {"metadata": {"labels": {"kubevirt.io/schedulable": "false"}}}),
        "NodeMismatch",
        "node affinity/selector",
    ),
}


@pytest.mark.parametrize(("spoil", "reason", "complaint"), SPOILT.values(), ids=SPOILT)
def test_the_vm_runs_elsewhere_and_without_the_guard_it_stays_pending(
    world: World, plane: ControlPlane, guardless: Webhook, *, spoil: Spoil, reason: str, complaint: str
) -> None:
    world.add_nodes(3, pods="8", kvm="5")
    _, node = world.warm_volume()
    # Longhorn would take a share-manager away from a node that is not ready, in time.
    with world.longhorn.asleep():
        spoil(world, node)
        plane.wait(lambda: world.decision("disk1").startswith(f"{reason}: "), 20, f"a decision that says {reason}")
        assert complaint in world.shunned(node)
        saved = world.start_vm("vm1", "disk1")
        assert world.running(saved) != node
        assert world.annotations(saved)[DECISION].startswith(f"{reason}: ")

        world.serve(guardless)
        pod = world.create(world.vm_pod("vm2", "disk1"))
        assert world.annotations(pod)[CO_SCHEDULED] == node
        assert complaint in world.unschedulable(pod)


def test_two_vms_that_share_a_disk_and_repel_each_other_run_on_two_nodes(world: World) -> None:
    world.add_nodes(3)
    _, node = world.warm_volume()
    # One right after the other: the second decision is made before the first VM has a node.
    one, other = (world.create(world.repelling_vm("vm", "disk1")) for _ in range(2))
    nodes = [world.running(one), world.running(other)]
    assert nodes[0] == node
    assert nodes[1] != node
    assert world.annotations(other)[DECISION].startswith("PodAffinity: ")
