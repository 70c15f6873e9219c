"""VMs that start at the same time compete for one node: the webhook decides on each before the others are bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count as counter
from pathlib import Path

import pytest

from tests.support import burst
from tests.support.controlplane.plane import ControlPlane
from tests.support.longhorn import Longhorn
from tests.support.measured import Measured
from tests.support.replicas import Replicas
from tests.support.scenario import Scenario

pytestmark = pytest.mark.controlplane

BURST, ROOM, VOLUMES = 50, 20, 10
NUMBERS = counter(1)
LIMIT = 90  # seconds until all VMs of a burst run
# How many VMs run on the node of their share-managers at least, if calls reach any replica. The bound allows for a busy
# machine; benchmarks/burst.py measures how many there are.
LEAST = 12
# The number of replicas, how their Service routes calls, and the number of clients that create the VMs.
SERVICES: dict[str, tuple[int, Callable[[Replicas], None], int]] = {
    "three replicas, at once": (3, Replicas.route_per_connection, BURST),
    "two replicas with session affinity, at once": (2, Replicas.route_to_one, BURST),
}


@pytest.fixture
def start_replicas(
    plane: ControlPlane, longhorn: Longhorn, kubeconfig: Path
) -> Iterator[Callable[[int, bool], Replicas]]:
    """A function that starts this many replicas, which expect session affinity or not."""
    with ExitStack() as stack:

        def start(count: int, session_affinity: bool) -> Replicas:
            name = f"burst-{next(NUMBERS)}"
            settings = {"longhorn_namespace": longhorn.namespace, "session_affinity": str(session_affinity).lower()}
            return stack.enter_context(Replicas(plane, name, kubeconfig, count, settings, share_managers=False))

        yield start


@pytest.mark.parametrize(("count", "route", "clients"), SERVICES.values(), ids=SERVICES)
def test_50_vms_that_start_together_all_run_whichever_replica_decides(
    scenario: Scenario,
    measured: Measured,
    start_replicas: Callable[[int, bool], Replicas],
    *,
    count: int,
    route: Callable[[Replicas], None],
    clients: int,
) -> None:
    (node,) = scenario.add_nodes(1, "served", kvm=str(ROOM))
    claims = [f"disk{number}" for number in range(VOLUMES)]
    burst.serve_volumes(scenario, claims)
    scenario.add_nodes(4, "other")
    session_affinity = route is Replicas.route_to_one
    replicas = start_replicas(count, session_affinity)
    scenario.use_webhook(replicas.first)
    replicas.wait_until_all(lambda: scenario.target_node(claims[-1]) == node, f"a decision for {node}")
    route(replicas)
    pods = scenario.known(*(scenario.vm_pod(f"vm{number}", claims[number % VOLUMES]) for number in range(BURST)))
    created = burst.create(scenario, pods, clients)
    found = burst.outcome(scenario, created, LIMIT)
    p50, p99 = burst.latencies(created)
    reasons = Counter(each.reason for each in created)
    measured(
        f"{BURST} VMs by {clients} clients, {count} replicas: {found.nodes[node]} of {ROOM} on their share-manager's "
        f"node, {len(found.pending)} Pending; created in {p50:.2f} s (p50), {p99:.2f} s (p99); {dict(reasons)}"
    )
    assert [each.error for each in created if each.error] == []
    assert all(each.reason for each in created), "the webhook decided on each pod"
    assert found.pending == []
    assert (ROOM if session_affinity else LEAST) <= found.nodes[node] <= ROOM
