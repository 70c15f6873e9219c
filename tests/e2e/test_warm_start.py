"""A VM whose share-manager runs is started beside it, also the next time, and by whichever scheduler it names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.controlplane.plane import ControlPlane
from tests.support.scenario import CO_SCHEDULED, DECISION, World

pytestmark = pytest.mark.controlplane


@pytest.fixture
def my_scheduler(plane: ControlPlane) -> Iterator[str]:
    """A second kube-scheduler, as the guides of Kubernetes and KubeVirt set it up."""
    yield plane.start_scheduler("my-scheduler", leader_elect=True).name
    plane.processes.pop("my-scheduler").kill()


def test_vms_are_bound_to_the_node_of_their_share_manager_by_the_default_scheduler(world: World) -> None:
    world.add_nodes(20)
    claims = ["disk1", "disk2", "disk3", "disk4"]
    volumes = [world.add_volume(claim) for claim in claims]
    world.wait_bound(*claims)
    for claim in claims:
        world.create_user(claim)
    served_on = [world.served_on(volume, claim) for volume, claim in zip(volumes, claims, strict=True)]
    pods = [world.create(world.vm_pod(f"vm-{claim}", claim)) for claim in claims]
    assert [world.running(pod) for pod in pods] == served_on
    for pod, node, claim in zip(pods, served_on, claims, strict=True):
        assert world.annotations(pod)[CO_SCHEDULED] == node
        assert world.annotations(pod)[DECISION] == f"CoScheduled: pinned to {node}, which serves claim {claim}"


def test_a_second_scheduler_binds_the_vm_beside_its_share_manager_and_its_event_says_so(
    world: World, plane: ControlPlane, my_scheduler: str
) -> None:
    world.add_nodes(20)
    _, node = world.warm_volume()
    pod = world.start_vm("vm1", "disk1", schedulerName=my_scheduler)
    assert world.running(pod) == node
    assert world.bound_by(pod) == my_scheduler
    lease = plane.request("GET", f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{my_scheduler}")
    assert lease["spec"]["holderIdentity"]


def test_a_vm_restarts_beside_the_share_manager_that_another_pod_keeps_running(world: World) -> None:
    world.add_nodes(6)
    world.add_volume()
    world.wait_bound("disk1")
    first = world.start_vm("vm1", "disk1")
    node = world.longhorn.running_on(world.volumes[0])
    world.create_user("disk1")
    world.delete(first)
    assert world.running(world.start_vm("vm1", "disk1")) == node


def test_after_a_stop_the_vm_goes_anywhere_and_the_share_manager_follows(world: World, plane: ControlPlane) -> None:
    world.add_nodes(6)
    volume = world.add_volume()
    world.wait_bound("disk1")
    first = world.start_vm("vm1", "disk1")
    before = world.longhorn.running_on(volume)
    world.delete(first)
    world.longhorn.stopped(volume)
    # Longhorn still names the old owner; it means nothing any more.
    assert (world.longhorn.share_manager(volume) or {})["status"]["ownerID"] == before
    world.change_node(before, {"spec": {"unschedulable": True}})
    plane.wait(lambda: world.decision("disk1").startswith("NoShareManager"), 20, "a decision without the old owner")
    assert "unschedulable" in world.shunned(before)
    second = world.start_vm("vm1", "disk1")
    assert CO_SCHEDULED not in world.annotations(second)
    node = world.running(second)
    assert node != before
    assert world.longhorn.running_on(volume) == node


def test_after_its_node_was_lost_the_share_manager_moves_and_the_next_start_follows(
    world: World, plane: ControlPlane
) -> None:
    world.add_nodes(6)
    volume = world.add_volume()
    world.wait_bound("disk1")
    first = world.start_vm("vm1", "disk1")
    lost = world.longhorn.running_on(volume)
    assert world.running(first) == lost
    # A backup on another node: the volume stays in use while the VM is down.
    world.create_user("disk1", node=next(name for name in world.node_names if name != lost))
    world.make_not_ready(lost)
    moved_to = world.longhorn.running_on(volume, besides=lost)
    world.delete(first)
    plane.wait(lambda: world.node_meant("disk1") == moved_to, 20, "a decision that knows of the move")
    assert world.running(world.start_vm("vm1", "disk1")) == moved_to
