"""Migration from the custom Go scheduler to the webhook and back: only chart values change, no VM is edited.

A kube-scheduler with the Go scheduler's name, but without its plugin, stands in for it: these tests don't check where
it places a VM. The chart's own scheduler runs with the chart's configuration and rights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import yaml

from tests.support import kubevirt
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.process import Process, running
from tests.support.helm_chart import NAME, SECONDARY, Object
from tests.support.helm_release import LONG_TIMEOUT, Release, Replicas, scheduler_process
from tests.support.longhorn import Longhorn
from tests.support.paths import SECONDARY_CHART
from tests.support.scenario import DECISION, Scenario
from tests.support.webhook_process import REGISTRATIONS
from webhook.placement.settings import OPT_IN_ANNOTATIONS

pytestmark = pytest.mark.controlplane

# A VM of the custom scheduler has the scheduler's annotation key and its name.
TEMPLATE: Object = {
    "metadata": {"annotations": {OPT_IN_ANNOTATIONS[1]: "true"}},
    "spec": {"schedulerName": NAME, "volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "disk1"}}]},
}
MAPPED = f"--set=settings.schedulerNames.{NAME}="


@pytest.fixture
def release(plane: ControlPlane) -> Iterator[Release]:
    release = Release(plane, "chart-vms")
    yield release
    release.uninstall("--ignore-not-found")


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


@contextmanager
def running_replicas(release: Release) -> Iterator[Replicas]:
    with Replicas(release) as replicas:
        release.plane.wait(release.has_ca_bundle, 20, "the caBundle of both webhooks")
        yield replicas


@pytest.mark.usefixtures("old_scheduler")
def test_one_upgrade_moves_vms_to_the_webhook_and_another_moves_them_back(
    plane: ControlPlane, scenario: Scenario, release: Release
) -> None:
    _, node = scenario.add_attached_volume()
    before = plane.request("GET", kubevirt.vm_path(scenario, "vm1"))
    pod = kubevirt.restart_vm(scenario, "vm1")
    scenario.wait_running(pod)
    assert scenario.scheduler_of(pod) == NAME
    # Move to the webhook and the default scheduler.
    release.install(MAPPED + "default-scheduler", "--set=replicas=1", LONG_TIMEOUT)
    with running_replicas(release) as replicas:
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


def test_the_secondary_scheduler_places_its_vms_on_the_share_manager_node(
    plane: ControlPlane, scenario: Scenario, release: Release
) -> None:
    _, node = scenario.add_attached_volume()
    release.install("--set=replicas=1", LONG_TIMEOUT)
    release.helm("install", SECONDARY, str(SECONDARY_CHART), f"--set=name={NAME}")
    secondary = list(yaml.safe_load_all(release.helm("get", "manifest", SECONDARY)))
    assert release.configuration == f"{REGISTRATIONS}/chart-vms-{NAME}"
    token = plane.service_account_token(release.namespace, SECONDARY)
    credentials = plane.write_kubeconfig(plane.folder / "chart-vms-scheduler-kubeconfig", token)
    second = scheduler_process(plane, secondary, credentials)
    with running_replicas(release):
        plane.wait(lambda: has_decision(scenario), 20, "a decision based on the share-manager")
        pod = kubevirt.restart_vm(scenario, "vm1")
        # Only a scheduler with that name schedules the pod.
        assert "nodeName" not in scenario.get(pod)["spec"]
        with running(second):
            assert scenario.wait_running(pod, 30) == node
            assert (scenario.get(pod)["spec"]["schedulerName"], scenario.scheduler_of(pod)) == (NAME,) * 2
    release.helm("uninstall", SECONDARY)
