"""The fake virt-controller restarts VMs as the real one was seen to do."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.support.controlplane.api import Object
from tests.support.scenario import HOSTNAME, Scenario
from tests.support.virt_controller import VirtController

pytestmark = pytest.mark.controlplane

BACK_OFF = 0.5  # seconds instead of 10


@pytest.fixture
def scenario(plain_scenario: Scenario) -> Scenario:
    """One node, and no webhook."""
    plain_scenario.add_nodes(1)
    return plain_scenario


@pytest.fixture
def controller(scenario: Scenario) -> Iterator[VirtController]:
    with VirtController(scenario, BACK_OFF) as controller:
        yield controller


def unschedulable_pod(scenario: Scenario) -> Object:
    pod = scenario.vm_pod("vm1")
    pod["spec"]["nodeSelector"][HOSTNAME] = "no-such-node"
    return pod


def delete_pending_pod(scenario: Scenario, controller: VirtController) -> float:
    """Delete the VM's pod as soon as it is there; return the seconds until the next one was created."""
    pod = scenario.plane.wait(lambda: controller.pod("vm1"), 20, "a pod")
    scenario.delete(pod["metadata"]["name"])
    began, starts = time.monotonic(), len(controller.starts("vm1"))
    scenario.plane.wait(lambda: len(controller.starts("vm1")) > starts, 20, "the next pod")
    return controller.starts("vm1")[-1] - began


def test_a_pod_deleted_while_pending_delays_the_next_one_more_each_time(
    scenario: Scenario, controller: VirtController
) -> None:
    controller.add(unschedulable_pod(scenario))
    seconds = [delete_pending_pod(scenario, controller) for _ in range(2)]
    assert seconds[0] == pytest.approx(1.25 * BACK_OFF, abs=0.25 * BACK_OFF + 1)
    assert seconds[1] >= 4 * BACK_OFF
    status = controller.vm("vm1")["status"]
    assert status["startFailure"]["consecutiveFailCount"] == 2
    controller.set_run_strategy("vm1", "Halted")
    scenario.plane.wait(lambda: "startFailure" not in controller.vm("vm1")["status"], 20, "a cleared count")


def test_a_vm_that_has_run_restarts_immediately(scenario: Scenario, controller: VirtController) -> None:
    controller.add(scenario.vm_pod("vm1"))
    first = controller.wait_running("vm1", 20)["metadata"]["name"]
    scenario.delete(first)
    scenario.plane.wait(lambda: len(controller.starts("vm1")) == 2, 20, "the next pod")
    controller.wait_running("vm1", 20)
    assert "startFailure" not in controller.vm("vm1")["status"]


@pytest.mark.parametrize("run_strategy", ["Manual", "Once"])
def test_other_run_strategies_do_not_restart_the_vm(
    scenario: Scenario, controller: VirtController, run_strategy: str
) -> None:
    pod = scenario.create(controller.prepare(unschedulable_pod(scenario), run_strategy))
    scenario.plane.wait(lambda: controller.pod("vm1"), 20, "the pod")
    time.sleep(0.3)
    scenario.delete(pod)
    scenario.plane.wait(lambda: controller.phase("vm1") == "Failed", 20, "the VMI's failure")
    assert not controller.pod("vm1")
