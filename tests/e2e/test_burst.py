"""VMs that start at the same time compete for one node: the webhook decides on each before the others are bound."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.controlplane.api import Object
from tests.support.measured import Measured
from tests.support.scenario import DECISION, Scenario

pytestmark = pytest.mark.controlplane

VMS, CAPACITY = 30, 10
PAIRS = 8


def create_concurrently(scenario: Scenario, vms: list[Object]) -> list[str]:
    with ThreadPoolExecutor(len(vms)) as pool:
        return list(pool.map(scenario.create, vms))


@pytest.mark.parametrize("other_nodes", ["empty", "half full"])
def test_30_vms_that_compete_for_a_node_with_capacity_for_10_all_run(
    scenario: Scenario, measured: Measured, other_nodes: str
) -> None:
    scenario.add_nodes(5, kvm=str(CAPACITY))
    _, node = scenario.add_attached_volume()
    if other_nodes == "half full":  # then the scheduler itself scores the share-manager's node highest
        for other in set(scenario.node_names) - {node}:
            scenario.fill(other, cpu="8", memory="32Gi")
    pods = create_concurrently(scenario, [scenario.vm_pod(f"vm{number}", "disk1") for number in range(VMS)])
    nodes = Counter(scenario.wait_running(pod) for pod in pods)
    reasons = Counter(scenario.annotations(pod)[DECISION].partition(":")[0] for pod in pods)
    measured(
        f"burst, other nodes {other_nodes}: {nodes[node]} of {VMS} VMs on their share-manager's node; {dict(reasons)}"
    )
    assert nodes[node] == CAPACITY
    assert reasons == {"CoScheduled": CAPACITY, "NodeFull": VMS - CAPACITY}


def test_pairs_of_vms_with_anti_affinity_that_start_together_all_run(scenario: Scenario) -> None:
    scenario.add_nodes(4)
    claims = [f"disk{number}" for number in range(PAIRS)]
    volumes = [scenario.add_volume(claim) for claim in claims]
    scenario.wait_bound(*claims)
    for claim in claims:
        scenario.create_consumer(claim)
    share_manager_nodes = [
        scenario.wait_share_manager(volume, claim) for volume, claim in zip(volumes, claims, strict=True)
    ]
    pods = create_concurrently(
        scenario, [scenario.anti_affinity_pod(f"vm-{claim}", claim) for claim in claims for _ in range(2)]
    )
    nodes = [scenario.wait_running(pod) for pod in pods]
    for first, second, node in zip(nodes[::2], nodes[1::2], share_manager_nodes, strict=True):
        assert first != second
        assert node in {first, second}
