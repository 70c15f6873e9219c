"""Migration from the custom Go scheduler to the webhook and back: only chart values change, no VM is edited.

A kube-scheduler with the Go scheduler's name, but without its plugin, stands in for it: these tests don't check where
it places a VM.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import kubevirt
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.process import Process
from tests.support.helm_chart import NAME, Object
from tests.support.helm_release import LONG_TIMEOUT, Release, Replicas
from tests.support.longhorn import Longhorn
from tests.support.scenario import DECISION, Scenario
from webhook.placement.settings import OPT_IN_ANNOTATIONS

pytestmark = pytest.mark.controlplane

# A VM of the custom scheduler has the scheduler's annotation key and its name.
TEMPLATE: Object = {
    "metadata": {"annotations": {OPT_IN_ANNOTATIONS[1]: "true"}},
    "spec": {"schedulerName": NAME, "volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "disk1"}}]},
}
MAPPED = f"--set=settings.schedulerNames.{NAME}="


@pytest.fixture
def scenario(plane: ControlPlane, longhorn: Longhorn) -> Iterator[Scenario]:
    """Eight nodes, and a VM as it was before the webhook was installed."""
    scenario = kubevirt.scenario_with_vm(plane, longhorn, 8, TEMPLATE)
    yield scenario
    plane.request("DELETE", kubevirt.vm_path(scenario, "vm1"))
    scenario.close()


@pytest.fixture
def old_scheduler(plane: ControlPlane) -> Iterator[Process]:
    yield plane.start_scheduler(NAME, leader_elect=False)
    plane.processes.pop(NAME).kill()


def has_decision(scenario: Scenario) -> bool:
    """Return whether a pod of this VM would get a decision based on the share-manager."""
    pod = scenario.dry_run(kubevirt.launcher_pod(scenario, "vm1"))
    return "CoScheduled" in pod["metadata"]["annotations"].get(DECISION, "")


@pytest.mark.usefixtures("old_scheduler")
def test_one_upgrade_moves_vms_to_the_webhook_and_another_moves_them_back(
    plane: ControlPlane, scenario: Scenario
) -> None:
    _, node = scenario.add_attached_volume()
    release = Release(plane, "chart-vms")
    before = plane.request("GET", kubevirt.vm_path(scenario, "vm1"))
    pod = kubevirt.restart_vm(scenario, "vm1")
    scenario.wait_running(pod)
    assert scenario.scheduler_of(pod) == NAME
    # Move to the webhook and the default scheduler.
    release.install(MAPPED + "default-scheduler", "--set=replicas=1", LONG_TIMEOUT)
    with Replicas(release) as replicas:
        plane.wait(lambda: has_decision(scenario), 20, "a decision based on the share-manager")
        pod = kubevirt.restart_vm(scenario, "vm1")
        assert scenario.wait_running(pod) == node
        assert (scenario.get(pod)["spec"]["schedulerName"], scenario.scheduler_of(pod)) == ("default-scheduler",) * 2
        target = scenario.dry_run(kubevirt.launcher_pod(scenario, "vm1", review="migration-target"))
        assert target["spec"]["schedulerName"] == "default-scheduler"
        # Move back.
        release.upgrade("--reuse-values", MAPPED + NAME)
        replicas.reconcile()
        plane.wait(
            lambda: scenario.dry_run(kubevirt.launcher_pod(scenario, "vm1"))["spec"]["schedulerName"] == NAME,
            20,
            "the old scheduler name",
        )
        pod = kubevirt.restart_vm(scenario, "vm1")
        scenario.wait_running(pod)
        assert (scenario.get(pod)["spec"]["schedulerName"], scenario.scheduler_of(pod)) == (NAME,) * 2
    assert plane.request("GET", kubevirt.vm_path(scenario, "vm1")) == before
    release.uninstall()
