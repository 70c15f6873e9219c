"""A pin that can't hold is released: a VM that restarts by itself runs elsewhere, any other VM is reported."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support import burst
from tests.support.controlplane.plane import ControlPlane
from tests.support.kubevirt import install_crds
from tests.support.longhorn import Longhorn
from tests.support.measured import Measured
from tests.support.replicas import Replicas
from tests.support.scenario import CO_SCHEDULED, Scenario, reason_of
from tests.support.virt_controller import VirtController
from tests.support.webhook_process import RELEASE_RIGHTS, RIGHTS, create_service_account

pytestmark = pytest.mark.controlplane

RELEASE_AFTER, BACK_OFF = 8, 1.0  # seconds; a lost share-manager must run elsewhere before the release
LIMIT = 90  # seconds until a VM runs, on a slow machine
BURST, ROOM = 30, 12  # VMs that start together, and how many of them their share-managers' node can run
PAIRS = 6
RELEASED, PENDING = "kubevirt_scheduler_released_total", "kubevirt_scheduler_pending_pins"


@pytest.fixture(scope="module")
def replicas(plane: ControlPlane, longhorn: Longhorn) -> Iterator[Replicas]:
    """Two replicas, of which one releases pins. Each new connection of the API server goes to the other one."""
    install_crds(plane)
    token = create_service_account(plane, "releasing", RIGHTS + RELEASE_RIGHTS)
    kubeconfig = plane.write_kubeconfig(plane.folder / "releasing-kubeconfig", token)
    settings = {"longhorn_namespace": longhorn.namespace, "release_after": str(RELEASE_AFTER)}
    with Replicas(plane, "releasing", kubeconfig, 2, settings, lease=True, share_managers=False) as replicas:
        yield replicas


@pytest.fixture
def scenario(plane: ControlPlane, longhorn: Longhorn, replicas: Replicas) -> Iterator[Scenario]:
    scenario = Scenario(plane, longhorn, replicas.first)
    yield scenario
    scenario.close()


@pytest.fixture
def controller(scenario: Scenario) -> Iterator[VirtController]:
    with VirtController(scenario, BACK_OFF) as controller:
        yield controller


def start_pinned(scenario: Scenario, controller: VirtController, claim: str, run_strategy: str = "Always") -> str:
    """Create a VM with the name of its claim, and its pod. Return the node to which the pod is pinned."""
    pod = scenario.create(controller.prepare(scenario.vm_pod(claim, claim), run_strategy))
    assert reason_of(scenario.get(pod)) == "CoScheduled"
    return scenario.annotations(pod)[CO_SCHEDULED]


def warnings(scenario: Scenario, vm: str) -> list[str]:
    """Return the messages of the Warning events about a VMI."""
    query = f"fieldSelector=involvedObject.kind=VirtualMachineInstance,involvedObject.name={vm},type=Warning"
    found = scenario.plane.request("GET", f"/api/v1/namespaces/{scenario.namespace}/events?{query}")["items"]
    return [str(event["message"]) for event in found]


def test_vms_whose_node_is_lost_before_they_are_bound_run_elsewhere_unless_nothing_restarts_them(
    scenario: Scenario, plane: ControlPlane, controller: VirtController, replicas: Replicas, measured: Measured
) -> None:
    dead, cordoned, *others = scenario.add_nodes(5)
    claims = {"on-dead": dead, "manual": dead, "on-cordoned": cordoned}
    volumes = {claim: scenario.add_volume(claim, node=node) for claim, node in claims.items()}
    scenario.wait_bound(*claims)
    for claim in claims:
        scenario.create_consumer(claim, node=others[0])  # a backup keeps the volume attached
    assert {claim: scenario.longhorn.wait_running(volume) for claim, volume in volumes.items()} == claims
    replicas.wait_until_all(
        lambda: {claim: scenario.target_node(claim) for claim in claims} == claims, "decisions for all claims"
    )
    released = replicas.metric(RELEASED)
    with plane.stopped_scheduler():
        assert start_pinned(scenario, controller, "on-dead") == dead
        assert start_pinned(scenario, controller, "manual", "Manual") == dead
        assert start_pinned(scenario, controller, "on-cordoned") == cordoned
        stuck = controller.pod("manual")
        for claim in "on-dead", "manual":
            scenario.allow_all_nodes(claim)
        scenario.make_not_ready(dead)
        scenario.change_node(cordoned, {"spec": {"unschedulable": True}})
    began = time.monotonic()

    moved_to = scenario.longhorn.wait_running(volumes["on-dead"], other_than=dead)
    pods = {vm: controller.wait_running(vm, LIMIT) for vm in ("on-dead", "on-cordoned")}
    measured(f"release: two VMs run elsewhere {time.monotonic() - began:.0f} s after their nodes were lost")
    assert pods["on-dead"]["spec"]["nodeName"] == moved_to
    assert pods["on-cordoned"]["spec"]["nodeName"] not in (dead, cordoned)
    assert {vm: reason_of(pod) for vm, pod in pods.items()} == {"on-dead": "CoScheduled", "on-cordoned": "NodeCordoned"}
    assert replicas.metric(RELEASED) == released + 2

    assert controller.pod("manual")["metadata"]["uid"] == stuck["metadata"]["uid"]
    plane.wait(lambda: any("virtctl stop manual" in each for each in warnings(scenario, "manual")), 30, "the warning")
    plane.wait(lambda: replicas.metric(PENDING) == 1, 30, "a metric that counts the stuck pin")


def test_pairs_of_vms_with_anti_affinity_that_start_together_all_run(
    scenario: Scenario, controller: VirtController, replicas: Replicas, measured: Measured
) -> None:
    """Replicas don't see each other's newest pins, so they may pin both VMs to one node. The release helps."""
    scenario.add_nodes(4)
    claims = [f"disk{number}" for number in range(PAIRS)]
    burst.serve_volumes(scenario, claims)
    replicas.wait_until_all(lambda: bool(scenario.target_node(claims[-1])), "a decision for the last claim")
    released = replicas.metric(RELEASED)
    began = time.monotonic()
    # All VMIs first: a decision on the pod of a VMI that the webhook has not seen yet reserves nothing.
    pairs = [
        [controller.prepare(scenario.anti_affinity_pod(claim, claim, f"{claim}-{each}")) for each in "ab"]
        for claim in claims
    ]
    scenario.wait_known(replicas.all)
    for pair in pairs:
        burst.create(scenario, pair)
    nodes = controller.wait_all_running(LIMIT)
    released = replicas.metric(RELEASED) - released
    measured(f"{len(claims)} pairs: {released:.0f} released, {time.monotonic() - began:.0f} s until all run")
    assert all(nodes[f"{claim}-a"] != nodes[f"{claim}-b"] for claim in claims)


def test_vms_that_start_together_fill_their_node_and_none_is_released_if_one_replica_decides(
    scenario: Scenario, controller: VirtController, replicas: Replicas, measured: Measured
) -> None:
    """The Service of the chart has a session affinity, so one replica gets the calls of an API server."""
    (node,) = scenario.add_nodes(1, "served", kvm=str(ROOM))
    claims = [f"disk{number}" for number in range(6)]
    burst.serve_volumes(scenario, claims)
    scenario.add_nodes(4, "other")
    replicas.route_to_one()
    scenario.plane.wait(lambda: scenario.target_node(claims[-1]) == node, 20, f"a decision for {node}")
    released = replicas.metric(RELEASED)
    names = [f"vm{number}" for number in range(BURST)]
    pods = [controller.prepare(scenario.vm_pod(name, claims[number % 6])) for number, name in enumerate(names)]
    scenario.wait_known(replicas.all)
    began = time.monotonic()
    created = burst.create(scenario, pods)
    nodes = controller.wait_all_running(LIMIT)
    p50, p99 = burst.latencies(created)
    measured(
        f"{BURST} VMs at once: {time.monotonic() - began:.0f} s until all run; created in {p50:.2f} s (p50), "
        f"{p99:.2f} s (p99); {dict(Counter(each.reason for each in created))}"
    )
    assert [each.error for each in created if each.error] == []
    assert all(each.reason for each in created), "the webhook decided on each pod"
    assert (replicas.metric(RELEASED) - released, list(nodes.values()).count(node)) == (0, ROOM)
