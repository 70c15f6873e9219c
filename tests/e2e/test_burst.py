"""VMs that start at the same moment compete for one node: each is decided on before the others are bound."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.controlplane.api import Object
from tests.support.measured import Measured
from tests.support.scenario import DECISION, World

pytestmark = pytest.mark.controlplane

VMS, ROOM = 30, 10
PAIRS = 8


def start_at_once(world: World, vms: list[Object]) -> list[str]:
    with ThreadPoolExecutor(len(vms)) as pool:
        return list(pool.map(world.create, vms))


@pytest.mark.parametrize("others", ["as empty as it", "half full"])
def test_of_30_vms_for_a_node_with_room_for_10_none_stays_pending(
    world: World, measured: Measured, others: str
) -> None:
    world.add_nodes(5, kvm=str(ROOM))
    _, node = world.warm_volume()
    if others == "half full":  # then the scheduler itself likes the share-manager's node best
        for other in set(world.node_names) - {node}:
            world.fill(other, cpu="8", memory="32Gi")
    pods = start_at_once(world, [world.vm_pod(f"vm{number}", "disk1") for number in range(VMS)])
    nodes = Counter(world.running(pod) for pod in pods)
    reasons = Counter(world.annotations(pod)[DECISION].partition(":")[0] for pod in pods)
    measured(f"burst, others {others}: {nodes[node]} of {VMS} VMs beside their share-manager; {dict(reasons)}")
    assert nodes[node] == ROOM
    assert reasons == {"CoScheduled": ROOM, "NodeFull": VMS - ROOM}


def test_of_pairs_that_repel_each_other_and_start_at_once_none_stays_pending(world: World) -> None:
    world.add_nodes(4)
    claims = [f"disk{number}" for number in range(PAIRS)]
    volumes = [world.add_volume(claim) for claim in claims]
    world.wait_bound(*claims)
    for claim in claims:
        world.create_user(claim)
    served_on = [world.served_on(volume, claim) for volume, claim in zip(volumes, claims, strict=True)]
    pods = start_at_once(world, [world.repelling_vm(f"vm-{claim}", claim) for claim in claims for _ in range(2)])
    nodes = [world.running(pod) for pod in pods]
    for one, other, node in zip(nodes[::2], nodes[1::2], served_on, strict=True):
        assert one != other
        assert node in {one, other}
