"""A pin that can't hold is released: a VM that restarts by itself runs elsewhere, any other VM is reported."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from tests.support import burst
from tests.support.builders import pin
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.programs import DISREGARD_STATUS
from tests.support.kubevirt import install_crds
from tests.support.longhorn import Longhorn
from tests.support.measured import Measured
from tests.support.replicas import Replicas
from tests.support.scenario import CO_SCHEDULED, DECISION, Scenario
from tests.support.virt_controller import VirtController
from tests.support.webhook_process import RELEASE_RIGHTS, RIGHTS, create_service_account
from webhook.cluster.releaser import PASS_INTERVAL

pytestmark = pytest.mark.controlplane

RELEASE_AFTER, BACK_OFF = 8, 1.0  # seconds; a lost share-manager must run elsewhere before the release
LIMIT = 90  # seconds until a VM runs, on a slow machine
STUCK, PASSES = 8, 20  # stuck pods a second, and the passes until one of another tenant is released
PREEMPTION = RELEASE_AFTER + 2 * PASS_INTERVAL  # seconds for which the victim of a preemption terminates
BURST, ROOM = 30, 12  # VMs that start together, and how many of them their share-managers' node can run
PAIRS, GAPS = 4, (0.0, 0.010, 0.030)  # pairs for each gap, and the gaps in seconds
CALLS = {False: "any replica gets each call", True: "one replica gets all calls"}  # by the session affinity
RELEASED, PENDING = "kubevirt_scheduler_released_total", "kubevirt_scheduler_pending_pins"


@pytest.fixture(scope="module")
def replicas(plane: ControlPlane, longhorn: Longhorn) -> Iterator[Replicas]:
    """Two replicas, of which one releases pins. Each call goes to a random one."""
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
def rival(plane: ControlPlane, longhorn: Longhorn, scenario: Scenario) -> Iterator[Scenario]:
    """Another tenant, for whose pods no webhook is called."""
    with closing(Scenario(plane, longhorn, None, f"rival-of-{scenario.namespace}")) as rival:
        yield rival


@pytest.fixture
def controller(scenario: Scenario) -> Iterator[VirtController]:
    with VirtController(scenario, BACK_OFF) as controller:
        yield controller


def start_pinned(scenario: Scenario, controller: VirtController, claim: str, run_strategy: str = "Always") -> str:
    """Create a VM with the name of its claim, and its pod. Return the node to which the pod is pinned."""
    pod = scenario.create(controller.prepare(scenario.vm_pod(claim, claim), run_strategy))
    assert reason(scenario.get(pod)) == "CoScheduled"
    return scenario.annotations(pod)[CO_SCHEDULED]


def reason(pod: Object) -> str:
    return str(pod["metadata"]["annotations"][DECISION]).partition(":")[0]


def warnings(scenario: Scenario, vm: str) -> list[str]:
    """Return the messages of the Warning events about a VMI."""
    query = f"fieldSelector=involvedObject.kind=VirtualMachineInstance,involvedObject.name={vm},type=Warning"
    found = scenario.plane.request("GET", f"/api/v1/namespaces/{scenario.namespace}/events?{query}")["items"]
    return [str(event["message"]) for event in found]


def test_vms_that_failed_to_start_twice_run_elsewhere(
    scenario: Scenario, controller: VirtController, replicas: Replicas
) -> None:
    """The preference for the share-manager's node drew such a VM back there 6 times of 6, with 5 free nodes."""
    scenario.add_nodes(6)
    _, node = scenario.add_attached_volume()
    names = [f"vm{number}" for number in range(6)]
    pods = {name: controller.prepare(scenario.vm_pod(name, "disk1")) for name in names}
    for name in names:
        status = {"status": {"startFailure": {"consecutiveFailCount": 2}}}
        scenario.plane.request(
            "PATCH", f"/apis/kubevirt.io/v1/namespaces/{scenario.namespace}/virtualmachines/{name}/status", status
        )
    replicas.wait_until_all(
        lambda: {reason(scenario.dry_run(pods[name])) for name in names} == {"StartFailed"}, "decisions"
    )
    nodes = [scenario.wait_running(scenario.create(pods[name])) for name in names]
    assert node not in nodes


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
    replicas.route_per_call()
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
    assert {vm: reason(pod) for vm, pod in pods.items()} == {"on-dead": "CoScheduled", "on-cordoned": "NodeCordoned"}
    assert replicas.metric(RELEASED) == released + 2

    assert controller.pod("manual")["metadata"]["uid"] == stuck["metadata"]["uid"]
    plane.wait(lambda: any("virtctl stop manual" in each for each in warnings(scenario, "manual")), 30, "the warning")
    plane.wait(lambda: replicas.metric(PENDING) == 1, 30, "a metric that counts the stuck pin")


def test_a_vm_that_preempts_a_pod_on_its_node_waits_until_that_pod_has_ended(
    scenario: Scenario, plane: ControlPlane, controller: VirtController, replicas: Replicas, measured: Measured
) -> None:
    (node,) = scenario.add_nodes(1, "small", kvm="2")
    scenario.add_attached_volume()
    scenario.add_nodes(2)
    replicas.wait_until_all(lambda: scenario.target_node("disk1") == node, "a decision for disk1")
    replicas.route_per_call()
    released = replicas.metric(RELEASED)
    priority: Object = {"priorityClassName": "system-node-critical", "priority": None}
    with plane.stopped_scheduler():
        pod = scenario.create(controller.prepare(scenario.vm_pod("vm1", "disk1", **priority)))
        victim = scenario.create(slow_to_end(node))
    began = time.monotonic()
    plane.wait(lambda: scenario.get(pod)["status"].get("nominatedNodeName") == node, 20, "the nomination")
    plane.wait(lambda: "deletionTimestamp" in scenario.get(victim)["metadata"], 20, "the end of the victim")
    plane.wait(lambda: time.monotonic() - began > PREEMPTION, PREEMPTION + 1, "the grace period")
    scenario.delete(victim)
    assert controller.wait_running("vm1", LIMIT)["metadata"]["name"] == pod
    measured(f"release: a VM runs {time.monotonic() - began:.0f} s after it began to preempt another pod")
    assert scenario.get(pod)["spec"]["nodeName"] == node
    assert replicas.metric(RELEASED) == released


def slow_to_end(node: str) -> Object:
    """Return a pod that holds both kvm devices of a node. Nothing plays its kubelet, so once deleted, it terminates."""
    resources = {"limits": {"devices.kubevirt.io/kvm": "2"}}
    container = {"name": "main", "image": "none", "resources": resources}
    spec = {"containers": [container], "nodeName": node, "terminationGracePeriodSeconds": 300}
    return {"metadata": {"generateName": "victim-", "annotations": {DISREGARD_STATUS: "true"}}, "spec": spec}


def test_pairs_of_vms_with_anti_affinity_that_start_together_all_run(
    scenario: Scenario,
    controller: VirtController,
    replicas: Replicas,
    measured: Measured,
) -> None:
    scenario.add_nodes(4)
    claims = [f"disk{number}" for number in range(PAIRS * len(GAPS))]
    burst.serve_volumes(scenario, claims)
    replicas.wait_until_all(lambda: bool(scenario.target_node(claims[-1])), "a decision for the last claim")
    replicas.route_per_call()
    released = replicas.metric(RELEASED)
    began = time.monotonic()
    # All VMIs first: a decision on the pod of a VMI that the webhook has not seen yet reserves nothing.
    pairs = [
        [controller.prepare(scenario.anti_affinity_pod(claim, claim, f"{claim}-{each}")) for each in "ab"]
        for claim in claims
    ]
    scenario.wait_known(replicas.all)
    for number, pair in enumerate(pairs):
        burst.create(scenario, pair, delays=(0.0, GAPS[number % len(GAPS)]))
    nodes = controller.wait_all_running(LIMIT)
    released = replicas.metric(RELEASED) - released
    measured(f"{len(claims)} pairs: {released:.0f} released, {time.monotonic() - began:.0f} s until all run")
    assert all(nodes[f"{claim}-a"] != nodes[f"{claim}-b"] for claim in claims)


@pytest.mark.parametrize("session_affinity", [False, True], ids=["any replica", "session affinity"])
def test_vms_that_start_together_all_run_whichever_replica_decides(
    scenario: Scenario,
    controller: VirtController,
    replicas: Replicas,
    measured: Measured,
    session_affinity: bool,
) -> None:
    """Replicas don't see each other's newest pins, so they may pin more VMs to a node than fit. The release helps."""
    (node,) = scenario.add_nodes(1, "served", kvm=str(ROOM))
    claims = [f"disk{number}" for number in range(6)]
    burst.serve_volumes(scenario, claims)
    scenario.add_nodes(4, "other")
    replicas.wait_until_all(lambda: scenario.target_node(claims[-1]) == node, f"a decision for {node}")
    if session_affinity:
        replicas.route_to_one()
    else:
        replicas.route_per_connection()
    released = replicas.metric(RELEASED)
    names = [f"vm{number}" for number in range(BURST)]
    pods = [controller.prepare(scenario.vm_pod(name, claims[number % 6])) for number, name in enumerate(names)]
    scenario.wait_known(replicas.all)
    began = time.monotonic()
    created = burst.create(scenario, pods)
    nodes = controller.wait_all_running(LIMIT)
    released = replicas.metric(RELEASED) - released
    p50, p99 = burst.latencies(created)
    calls = CALLS[session_affinity]
    measured(
        f"{BURST} VMs at once, {calls}: {list(nodes.values()).count(node)} of {ROOM} on their share-manager's node, "
        f"{released:.0f} released, {time.monotonic() - began:.0f} s until all run; created in {p50:.2f} s (p50), "
        f"{p99:.2f} s (p99); {dict(Counter(each.reason for each in created))}"
    )
    assert [each.error for each in created if each.error] == []
    assert all(each.reason for each in created), "the webhook decided on each pod"
    if session_affinity:
        assert (released, list(nodes.values()).count(node)) == (0, ROOM)


def replica_of(scenario: Scenario, replica_set: Object) -> Object:
    """Create a VMI as the controller of its VirtualMachineInstanceReplicaSet does, and return its pod."""
    owner = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceReplicaSet", "controller": True}
    owner |= {key: replica_set["metadata"][key] for key in ("name", "uid")}
    return scenario.owned(scenario.vm_pod("pool", "disk1"), owner)


@contextmanager
def stuck_pods(rival: Scenario, node: str) -> Iterator[list[str]]:
    """Create pinned pods that no node can run until the block ends, each of a VMI of its own. Yield their names."""
    names, stop = list[str](), threading.Event()

    def work() -> None:
        while not stop.wait(1 / STUCK):
            pod = pin(rival.owned(rival.vm_pod("stuck", opt_in=None)), node)
            names.append(rival.plane.request("POST", rival.pods, pod, user="")["metadata"]["name"])

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield names
    finally:
        stop.set()
        thread.join()


def test_the_stuck_vms_of_a_replica_set_are_released_while_another_tenant_creates_stuck_pods(
    scenario: Scenario, rival: Scenario, plane: ControlPlane, replicas: Replicas, measured: Measured
) -> None:
    """In 60 passes, the webhook once examined only the newest of the other tenant's pods.

    And of three stuck VMs of one replica set, the third stayed Pending for an hour.
    """
    other, node = scenario.add_nodes(2)
    scenario.add_attached_volume("disk1", node=node)
    replicas.route_to_one()
    sets = f"/apis/kubevirt.io/v1/namespaces/{scenario.namespace}/virtualmachineinstancereplicasets"
    kind = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceReplicaSet"}
    replica_set = plane.request("POST", sets, kind | {"metadata": {"name": "pool"}, "spec": {}})
    with stuck_pods(rival, other) as created:
        with plane.stopped_scheduler():
            vms = {scenario.create(replica_of(scenario, replica_set)) for _ in range(3)}
            assert {reason(scenario.get(vm)) for vm in vms} == {"CoScheduled"}
            scenario.change_node(node, {"spec": {"unschedulable": True}})
        for vm in vms:
            scenario.wait_unschedulable(vm)
        began = time.monotonic()
        limit = RELEASE_AFTER + PASSES * PASS_INTERVAL
        plane.wait(lambda: vms.isdisjoint(pods(scenario)), limit, f"the releases within {PASSES} passes")
        seconds = time.monotonic() - began
        scenario.change_node(node, {"spec": {"unschedulable": None}})
        successor = replica_of(scenario, replica_set)

        def is_remembered() -> bool:  # once the webhook's watches have shown the end of the pod and the new VMI
            return reason(scenario.dry_run(successor)) == "Released"

        plane.wait(is_remembered, 20, "the decision Released")
        scenario.wait_running(scenario.create(successor))
    measured(f"tenants: beside {len(created)} stuck pods, three VMs are released after {seconds:.0f} s")


def pods(scenario: Scenario) -> list[str]:
    return [each["metadata"]["name"] for each in scenario.plane.request("GET", scenario.pods)["items"]]
