"""The node guard: a VM that can't run on its share-manager's node runs elsewhere. Without it, the VM stays pending."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.controlplane.plane import ControlPlane
from tests.support.scenario import CO_SCHEDULED, DECISION, Scenario
from tests.support.webhook_process import Webhook

pytestmark = pytest.mark.controlplane

Change = Callable[[Scenario, str], object]
TAINT = {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}
# A change to the node, the resulting reason of the decision, and a part of the scheduler's message.
CHANGES: dict[str, tuple[Change, str, str]] = {
    "no cpu left": (lambda scenario, node: scenario.fill(node, cpu="15900m"), "NodeFull", "Insufficient cpu"),
    "no memory left": (lambda scenario, node: scenario.fill(node, memory="63Gi"), "NodeFull", "Insufficient memory"),
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
    "tainted": (
        lambda scenario, node: scenario.change_node(node, {"spec": {"taints": [TAINT]}}),
        "NodeTainted",
        "untolerated taint",
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
    first, second = (scenario.create(scenario.anti_affinity_pod("vm", "disk1")) for _ in range(2))
    nodes = [scenario.wait_running(first), scenario.wait_running(second)]
    assert nodes[0] == node
    assert nodes[1] != node
    assert scenario.annotations(second)[DECISION].startswith("PodAffinity: ")
