"""What fails on real nodes: power, network, programs. VMs do I/O meanwhile."""

from __future__ import annotations

import re
import time

import pytest

from tests.nodes.test_chart import all_ready, ask, logs, pids, pods, token_of
from tests.support.controlplane.api import Object
from tests.support.helm_release import Release
from tests.support.measured import Measured
from tests.support.nodes.cluster import Cluster
from tests.support.nodes.guests import START, NodeScenario
from tests.support.scenario import HOSTNAME, POOL
from tests.support.virt_controller import VirtController

pytestmark = [pytest.mark.nodes, pytest.mark.needs("buildah", "ip", "mkfs", "mmdebstrap", "nft", "nodes")]
OUT_OF_SERVICE = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
AGE = re.compile(r'^kubevirt_scheduler_cache_age_seconds\{resource="(\w+)"\} (\S+)', re.MULTILINE)
CHANGED = "pods", "persistentvolumeclaims", "persistentvolumes", "storageclasses", "sharemanagers"
# What an operation may take on a busy machine if nothing but the machine delays it: 5 s were seen at a load of 30.
UNDISTURBED = 15.0


def start_vm_with_its_server(guests: NodeScenario, release: Release, node: str) -> str:
    """Start a VM that does I/O, from cold, on this node. Return its pod."""
    volume = guests.add_volume()
    guests.wait_bound("disk1")
    where = {POOL: guests.namespace, HOSTNAME: node}
    pod = guests.create(guests.vm_pod("vm1", "disk1", work=True, nodeSelector=where))
    ran, served = guests.wait_running(pod), guests.longhorn.wait_running(volume)
    assert (ran, served) == (node, node), reviews_of(release, volume)
    guests.wait_for_work("vm1")
    return pod


def reviews_of(release: Release, volume: str) -> str:
    """Return what the replicas logged of a share-manager's reviews."""
    every = logs(release)
    found = [line for line in every.splitlines() if volume in line]
    return "\n".join(found) or f"no line about {volume}:\n{every}"


def set_taints(guests: NodeScenario, node: str, *taints: Object) -> None:
    guests.change_node(node, {"spec": {"taints": list(taints) or None}})


def test_after_a_power_cut_the_vm_starts_beside_its_new_share_manager(
    guests: NodeScenario, cluster: Cluster, release: Release, measured: Measured
) -> None:
    plane, longhorn = guests.plane, guests.longhorn
    with VirtController(guests) as controller:
        volume = guests.add_volume()
        guests.wait_bound("disk1")
        vm = controller.add(guests.vm_pod("vm1", "disk1", work=True))
        pod = controller.wait_running(vm, START)
        lost = pod["spec"]["nodeName"]
        assert longhorn.wait_running(volume) == lost
        guests.wait_for_work(vm)
        began = time.monotonic()
        cluster[lost].cut_power()
        try:
            plane.wait(lambda: not cluster.is_ready(lost), 90, f"{lost} NotReady")
            not_ready = time.monotonic() - began
            longhorn.wait_running(volume, other_than=lost)
            served = time.monotonic() - began
            assert controller.pod(vm)["spec"]["nodeName"] == lost  # it waits until the node is declared out of service
            guests.change_node(lost, {"spec": {"taints": [OUT_OF_SERVICE]}})
            declared = time.monotonic() - began
            plane.wait(lambda: controller.pod(vm).get("spec", {}).get("nodeName", lost) != lost, 60, "another pod")
            after = controller.wait_running(vm, START)
            running = time.monotonic() - began
            # Without the old pod, Longhorn may stop the share-manager before the next pod is created. Then it follows.
            node = after["spec"]["nodeName"]
            plane.wait(lambda: longhorn.wait_running(volume, other_than=lost) == node, 60, f"the server on {node}")
            guests.wait_for_work(vm)
        finally:
            set_taints(guests, lost)
            cluster.start(lost)
        measured(
            f"power cut: node NotReady after {not_ready:.0f} s, share-manager elsewhere after {served:.0f} s; declared "
            f"out of service after {declared:.0f} s, VM beside its share-manager after {running:.0f} s"
        )
        plane.wait(lambda: all_ready(release), START, "two replicas")
        assert controller.pod(vm)["spec"]["nodeName"] == node


def test_killed_programs_leave_a_working_pinned_vm_alone_and_the_kubelet_renews_the_token(
    guests: NodeScenario, cluster: Cluster, release: Release, measured: Measured
) -> None:
    """A kubelet that starts checks the required node affinity of the pods that run (canAdmitPod in kubelet.go)."""
    plane = guests.plane
    _, storage = guests.add_attached_volume()
    plane.wait(lambda: guests.target_node("disk1") == storage, 30, "a decision")
    pod = guests.create(guests.vm_pod("vm1", "disk1", work=True))
    assert guests.wait_running(pod) == storage
    assert guests.annotations(pod)["kubevirt-scheduler/decision"].startswith("CoScheduled")
    guests.wait_for_work("vm1")
    running = pids(cluster, guests.get(pod))
    tokens = {replica["metadata"]["name"]: token_of(cluster, replica) for replica in pods(release)}
    cluster[storage].run("kill_program kubelet; kill_program containerd; start containerd; start kubelet")
    for name in set(cluster.names) - {storage}:
        cluster[name].run("kill_program kubelet; start kubelet")
    cluster.wait_ready(cluster.names)
    guests.wait_for_work("vm1")
    after = guests.get(pod)
    assert (after["status"]["phase"], pids(cluster, after)) == ("Running", running)
    # A kubelet that has started asks for another token, as it does for one that expires.
    for replica in pods(release):
        before = tokens[replica["metadata"]["name"]]
        plane.wait(lambda pod=replica, before=before: token_of(cluster, pod) != before, 120, "another token")  # type: ignore[misc]
    plane.wait(lambda: guests.target_node("disk1") == storage, 20, "a decision")
    pause = guests.longest_pause("vm1")
    measured(f"kubelet and containerd restarted: the longest operation of the VM beside its server took {pause:.2f} s")
    assert pause < UNDISTURBED


def wait_current(guests: NodeScenario, release: Release, pod: str) -> dict[str, float]:
    """Change an object of each of these kinds, and wait until each replica has seen that. Return the seconds by node.

    After a loss of the network, TCP sends again only after up to as many seconds as the loss took, on each watch apart.
    After 20 s of silence a watch ends, and the next list has a back-off of its own.
    """
    plane, changed = guests.plane, time.monotonic()
    plane.request("PATCH", f"{guests.pods}/{pod}", {"metadata": {"labels": {"changed": "true"}}})
    guests.add_volume("disk3", node=guests.cluster.names[0])
    guests.wait_bound("disk3")
    seen = dict[str, float]()

    def are_current() -> bool:
        replicas = pods(release)
        for replica in replicas:
            elapsed = time.monotonic() - changed
            ages = dict(AGE.findall(ask(release, replica, "metrics")))
            if all(float(ages[kind]) < elapsed for kind in CHANGED):
                seen.setdefault(replica["spec"]["nodeName"], round(elapsed, 1))
        return len(seen) == len(replicas)

    plane.wait(are_current, 60, "replicas whose caches are current")
    return seen


def test_a_lost_network_pauses_only_the_vm_that_is_apart_from_its_server(
    guests: NodeScenario, cluster: Cluster, release: Release, measured: Measured
) -> None:
    """For 25 s, so that the node stays Ready: Longhorn would replace the share-manager of a node that isn't.

    One of the webhook's replicas runs on that node, too.
    """
    node = pods(release)[0]["spec"]["nodeName"]
    other = next(name for name in cluster.names if name != node)
    guests.add_volume("disk2", node=node)
    guests.wait_bound("disk2")
    apart = guests.create(guests.vm_pod("vm2", "disk2", work=True, opt_in=None, nodeName=other))
    beside = start_vm_with_its_server(guests, release, node)
    assert guests.wait_running(apart) == other
    guests.wait_for_work("vm2")
    cluster[node].cut_network()
    try:
        time.sleep(25)
    finally:
        cluster[node].restore_network()
    cluster.wait_ready(cluster.names)
    for vm in "vm1", "vm2":
        guests.wait_for_work(vm)
    pauses = guests.longest_pause("vm1"), guests.longest_pause("vm2")
    measured("25 s without a network: longest operation {:.2f} s beside the server, {:.2f} s apart".format(*pauses))
    seen = wait_current(guests, release, beside)
    measured(f"network of {node} back: changes seen after {seen} s")
    assert pauses[0] < UNDISTURBED < 20 < pauses[1]
