"""What is away for minutes on real nodes: the API server, the right time, both nodes of the webhook."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.nodes.test_chart import all_ready, ask, pids, pods, restarts, send
from tests.nodes.test_faults import UNDISTURBED, start_vm_with_its_server
from tests.support.helm_release import Release
from tests.support.measured import Measured
from tests.support.nodes.cluster import Cluster
from tests.support.nodes.guests import START, NodeScenario
from tests.support.scenario import HOSTNAME, POOL

pytestmark = [pytest.mark.nodes, pytest.mark.needs("buildah", "ip", "mkfs", "mmdebstrap", "nft", "nodes")]
AHEAD = 21  # days: a serving certificate is valid for 30, and is renewed when a third is left
AWAY = 120  # seconds


def certificates(release: Release) -> object:
    """Return what the replicas share: their certificate and its key."""
    return release.plane.request("GET", release.secret)["data"]


@contextmanager
def days_ahead(cluster: Cluster, node: str) -> Iterator[None]:
    """Set the clock of a node ahead, and finally back."""
    cluster[node].run(f"date --set '+{AHEAD} days'")
    try:
        yield
    finally:
        cluster[node].run(f"date --set @{time.time():.0f}")


def test_a_wrong_clock_renews_no_certificate_and_an_api_server_that_is_away_stops_no_vm(
    guests: NodeScenario, cluster: Cluster, release: Release, measured: Measured
) -> None:
    """The clock of the VM's node, on which a replica starts, is 21 days ahead. It is right again at the return.

    Then, the controller manager has started, too. One that remembers a lease of the future takes its node for lost.
    """
    plane = guests.plane
    plane.wait(lambda: all_ready(release), 60, "two replicas")
    replica = pods(release)[0]
    node = replica["spec"]["nodeName"]
    pod = start_vm_with_its_server(guests, release, node)
    running, issued, before = pids(cluster, guests.get(pod)), certificates(release), sum(restarts(release))
    with days_ahead(cluster, node):
        send(cluster, replica, "KILL", *pids(cluster, replica)[1:])  # all but the sandbox's
        plane.wait(lambda: sum(restarts(release)) > before, 60, "a replica that starts with the wrong clock")
        plane.wait(lambda: all_ready(release), 60, "two replicas")
        ready = ask(release, replica, "readyz?verbose")
        assert "s ahead of the API server's; synchronize the clocks of both nodes" in ready
        plane.wait(lambda: guests.target_node("disk1") == node, 60, "a decision")
        guests.wait_for_work("vm1")
        wrong = guests.longest_pause("vm1")
        assert certificates(release) == issued
        plane.stop_apiserver()
        time.sleep(AWAY / 2)
    time.sleep(AWAY / 2)
    plane.start_apiserver()
    back = time.monotonic()
    plane.wait(lambda: guests.target_node("disk1") == node, 60, "a decision")
    measured(
        f"node {AHEAD} days ahead: the VM's longest operation took {wrong:.1f} s; API server away for {AWAY} s: a "
        f"decision {time.monotonic() - back:.1f} s after its return, the longest operation took "
        f"{guests.longest_pause('vm1'):.1f} s"
    )
    cluster.wait_ready(cluster.names)
    plane.wait(lambda: all_ready(release), 60, "two replicas")
    guests.wait_for_work("vm1")
    assert pids(cluster, guests.get(pod)) == running
    assert guests.longest_pause("vm1") < UNDISTURBED
    assert certificates(release) == issued
    # A kubelet takes the newest container of a pod by its time, so this pod's would be the one of the future for weeks.
    plane.request("DELETE", f"/api/v1/namespaces/{release.namespace}/pods/{replica['metadata']['name']}")
    plane.wait(lambda: all_ready(release), START, "two replicas")


def test_a_vm_starts_without_both_nodes_of_the_webhook_and_is_decided_after_their_return(
    guests: NodeScenario, cluster: Cluster, release: Release, measured: Measured
) -> None:
    """With `failurePolicy: Ignore`, the default, and with the default timeout."""
    release.upgrade("--reuse-values", "--set=webhook.failurePolicy=Ignore,webhook.timeoutSeconds=3", "--wait")
    guests.plane.wait(lambda: all_ready(release), START, "two replicas")
    lost = {pod["spec"]["nodeName"] for pod in pods(release)}
    (left,) = set(cluster.names) - lost
    guests.add_volume(node=left)
    guests.wait_bound("disk1")
    for name in lost:
        cluster[name].cut_power()
    try:
        began = time.monotonic()
        where = {POOL: guests.namespace, HOSTNAME: left}
        pod = guests.create(guests.vm_pod("vm1", "disk1", work=True, nodeSelector=where))
        created = time.monotonic() - began
        assert "kubevirt-scheduler/decision" not in guests.annotations(pod)
        assert guests.wait_running(pod) == left
        guests.wait_for_work("vm1")
        started = time.monotonic() - began
        guests.plane.wait(lambda: not any(map(cluster.is_ready, lost)), 90, "both nodes NotReady")
    finally:
        cluster.start(*lost)
    back = time.monotonic()
    guests.plane.wait(lambda: guests.decision("disk1"), START, "a decision")
    measured(
        f"both nodes of the webhook lost: a VM's creation took {created:.1f} s, and it worked after {started:.0f} s; a "
        f"decision {time.monotonic() - back:.0f} s after the nodes were Ready again"
    )
    guests.plane.wait(lambda: all_ready(release), START, "two replicas")
    release.upgrade("--reuse-values", "--set=webhook.failurePolicy=Fail,webhook.timeoutSeconds=10", "--wait")
