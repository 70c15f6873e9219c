"""Nothing runs yet: the VM is placed anywhere, Longhorn wakes up, and the share-manager pod follows the VM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.controlplane.plane import ControlPlane
from tests.support.longhorn import Longhorn
from tests.support.measured import Measured
from tests.support.scenario import CO_SCHEDULED, World
from tests.support.webhook_process import Webhook

pytestmark = pytest.mark.controlplane

VMS = 10


def start_all(world: World) -> tuple[list[str], list[str]]:
    """Start VMs whose volumes nothing uses yet; return the nodes of the VMs and those of their share-managers."""
    world.add_nodes(20)
    claims = [f"disk{number}" for number in range(VMS)]
    # Their StorageClass says nothing about nodes, so that nothing but the webhook does.
    volumes = [world.add_volume(claim, isolated=False) for claim in claims]
    world.wait_bound(*claims)
    pods = [world.create(world.vm_pod(f"vm-{claim}", claim)) for claim in claims]
    return [world.running(pod) for pod in pods], [world.longhorn.running_on(volume) for volume in volumes]


def test_at_a_cold_start_each_share_manager_is_bound_to_the_node_of_its_vm(world: World) -> None:
    vms, share_managers = start_all(world)
    assert share_managers == vms
    pod = world.longhorn.pod(world.volumes[0]) or {}
    assert pod["metadata"]["annotations"][CO_SCHEDULED] == vms[0]
    assert "requiredDuringSchedulingIgnoredDuringExecution" not in pod["spec"]["affinity"]["nodeAffinity"]


def test_a_share_manager_follows_its_vm_within_what_its_storage_class_allows(world: World) -> None:
    world.add_nodes(6)
    volume = world.add_volume()
    world.wait_bound("disk1")
    node = world.running(world.start_vm("vm1", "disk1"))
    assert world.longhorn.running_on(volume) == node


@pytest.fixture
def unsteered(plane: ControlPlane, kubeconfig: Path) -> Iterator[World]:
    """A world whose webhook does not steer, with a Longhorn of its own: no other webhook sees its share-managers."""
    longhorn = Longhorn(plane, "longhorn-unsteered")
    longhorn.install()
    longhorn.start()
    settings = {"steering": "false", "longhorn_namespace": longhorn.namespace}
    with Webhook(plane, "unsteered", kubeconfig, settings) as webhook:
        world = World(plane, longhorn, webhook.register())
        yield world
        world.close()
    longhorn.stop()


def test_without_steering_they_meet_by_chance_only(unsteered: World, measured: Measured) -> None:
    vms, share_managers = start_all(unsteered)
    met = sum(vm == share_manager for vm, share_manager in zip(vms, share_managers, strict=True))
    measured(f"without steering {met} of {VMS} VMs met their share-manager on 20 nodes")
    pods = [unsteered.longhorn.pod(volume) or {} for volume in unsteered.volumes]
    assert not any("affinity" in pod["spec"] for pod in pods)
