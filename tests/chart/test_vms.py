"""From the custom Go scheduler to the webhook and back: by the values alone, and no VM is touched.

The old scheduler is played by a kube-scheduler of its name, without the plugin: where it puts a VM is no matter here.
The chart's own one runs with the chart's configuration and rights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support import kubevirt
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.process import Process, running
from tests.support.helm_chart import NAME, Object
from tests.support.helm_release import PATIENT, Release, Replicas, scheduler
from tests.support.longhorn import Longhorn
from tests.support.scenario import DECISION, World
from tests.support.webhook_process import REGISTRATIONS
from webhook.placement.settings import OPT_IN_ANNOTATIONS

pytestmark = pytest.mark.controlplane

# As the VMs of the custom scheduler are: with the key that it looked for, and its name.
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
def world(plane: ControlPlane, longhorn: Longhorn) -> Iterator[World]:
    """Eight nodes, a share-manager on one of them, and a VM that is as it was before there was a webhook."""
    world = kubevirt.a_vm(plane, longhorn, 8, TEMPLATE)
    yield world
    plane.request("DELETE", kubevirt.path(world, "vm1"))
    world.close()


@pytest.fixture
def old_scheduler(plane: ControlPlane) -> Iterator[Process]:
    yield plane.start_scheduler(NAME, leader_elect=False)
    plane.processes.pop(NAME).kill()


def decided(world: World) -> bool:
    """Whether a pod of this VM would get a decision that knows of the share-manager."""
    pod = world.tried(kubevirt.pod_of(world, "vm1"))
    return "CoScheduled" in pod["metadata"]["annotations"].get(DECISION, "")


@contextmanager
def run(release: Release) -> Iterator[Replicas]:
    with Replicas(release) as replicas:
        release.plane.wait(release.is_called, 20, "the caBundle of both webhooks")
        yield replicas


@pytest.mark.usefixtures("old_scheduler")
def test_vms_move_from_the_go_scheduler_to_the_webhook_and_back_in_one_upgrade_each(
    plane: ControlPlane, world: World, release: Release
) -> None:
    _, node = world.warm_volume()
    before = plane.request("GET", kubevirt.path(world, "vm1"))
    pod = kubevirt.restart(world, "vm1")
    world.running(pod)
    assert world.bound_by(pod) == NAME
    # To the webhook, and to the default scheduler.
    release.install(MAPPED + "default-scheduler", "--set=replicas=1", PATIENT)
    with run(release) as replicas:
        plane.wait(lambda: decided(world), 20, "a decision that knows of the share-manager")
        pod = kubevirt.restart(world, "vm1")
        assert world.running(pod) == node
        assert (world.get(pod)["spec"]["schedulerName"], world.bound_by(pod)) == ("default-scheduler",) * 2
        target = world.tried(kubevirt.pod_of(world, "vm1", review="migration-target"))
        assert target["spec"]["schedulerName"] == "default-scheduler"
        # And back.
        release.upgrade("--reuse-values", MAPPED + NAME)
        replicas.reconcile()
        plane.wait(lambda: world.tried(kubevirt.pod_of(world, "vm1"))["spec"]["schedulerName"] == NAME, 20, "its name")
        pod = kubevirt.restart(world, "vm1")
        world.running(pod)
        assert (world.get(pod)["spec"]["schedulerName"], world.bound_by(pod)) == (NAME,) * 2
    assert plane.request("GET", kubevirt.path(world, "vm1")) == before


def test_vms_that_name_the_chart_s_scheduler_are_placed_on_their_share_manager_s_node_by_it(
    plane: ControlPlane, world: World, release: Release
) -> None:
    _, node = world.warm_volume()
    release.install("--set=scheduler.enabled=true", "--set=replicas=1", PATIENT)
    assert release.configuration == f"{REGISTRATIONS}/chart-vms-{NAME}"
    token = plane.service_account_token(release.namespace, f"{release.fullname}-kube-scheduler")
    credentials = plane.write_kubeconfig(plane.folder / "chart-vms-scheduler-kubeconfig", token)
    second = scheduler(plane, release.objects(), credentials)
    with run(release):
        plane.wait(lambda: decided(world), 20, "a decision that knows of the share-manager")
        pod = kubevirt.restart(world, "vm1")
        # Nobody but a scheduler of that name looks at it.
        assert "nodeName" not in world.get(pod)["spec"]
        with running(second):
            assert world.running(pod, 30) == node
            assert (world.get(pod)["spec"]["schedulerName"], world.bound_by(pod)) == (NAME,) * 2
