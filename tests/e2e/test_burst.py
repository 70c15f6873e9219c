"""VMs that start at the same time compete for one node: the webhook decides on each before the others are bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import burst
from tests.support.controlplane.plane import ControlPlane
from tests.support.measured import Measured
from tests.support.replicas import Replicas
from tests.support.scenario import Scenario

pytestmark = pytest.mark.controlplane

BURST, ROOM, VOLUMES = 30, 12, 6
LIMIT = 90  # seconds until all VMs of a burst run
# How many VMs run on the node of their share-managers at least, if calls reach any replica: a replica that gets all of
# them pins the fifth only if there is space for 15. benchmarks/burst.py measures how many there are.
LEAST = 4
# The number of replicas, and how their Service routes calls.
SERVICES: dict[str, tuple[int, Callable[[Replicas], None]]] = {
    "three replicas": (3, Replicas.route_per_connection),
    "two replicas with session affinity": (2, Replicas.route_to_one),
}


@pytest.mark.parametrize(("count", "route"), SERVICES.values(), ids=SERVICES)
def test_30_vms_that_start_together_all_run_whichever_replica_decides(
    plane: ControlPlane,
    scenario: Scenario,
    kubeconfig: Path,
    measured: Measured,
    *,
    count: int,
    route: Callable[[Replicas], None],
) -> None:
    (node,) = scenario.add_nodes(1, "served", kvm=str(ROOM))
    claims = [f"disk{number}" for number in range(VOLUMES)]
    burst.serve_volumes(scenario, claims)
    scenario.add_nodes(4, "other")
    session_affinity = route is Replicas.route_to_one
    settings = {"longhorn_namespace": scenario.longhorn.namespace, "session_affinity": str(session_affinity).lower()}
    with Replicas(plane, f"burst-{count}", kubeconfig, count, settings, share_managers=False) as replicas:
        scenario.use_webhook(replicas.first)
        replicas.wait_until_all(lambda: scenario.target_node(claims[-1]) == node, f"a decision for {node}")
        route(replicas)
        pods = [scenario.vm_pod(f"vm{number}", claims[number % VOLUMES]) for number in range(BURST)]
        pods = scenario.known(*pods, replicas=replicas.all)
        created = burst.create(scenario, pods)
        found = burst.outcome(scenario, created, LIMIT)
    p50, p99 = burst.latencies(created)
    reasons = Counter(each.reason for each in created)
    measured(
        f"{BURST} VMs at once, {count} replicas: {found.nodes[node]} of {ROOM} on their share-manager's "
        f"node, {len(found.pending)} Pending; created in {p50:.2f} s (p50), {p99:.2f} s (p99); {dict(reasons)}"
    )
    assert [each.error for each in created if each.error] == []
    assert all(each.reason for each in created), "the webhook decided on each pod"
    assert found.pending == []
    assert (ROOM if session_affinity else LEAST) <= found.nodes[node] <= ROOM
