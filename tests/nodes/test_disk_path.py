"""Whose disk traffic stays on its node: each start with the webhook and without, measured on the nodes' links.

The VM's node is the busiest one, so without the webhook, the scheduler prefers another node for what can run anywhere.
"""

from __future__ import annotations

import time

import pytest

from tests.support.measured import Measured
from tests.support.nodes.emulation import emulated, numbers, prepare
from tests.support.nodes.guests import NodeScenario
from tests.support.scenario import HOSTNAME, POOL

pytestmark = [pytest.mark.nodes, pytest.mark.needs("buildah", "ip", "mkfs", "mmdebstrap", "nft", "nodes")]
OPT_IN = pytest.mark.parametrize("opt_in", ["true", None], ids=["with", "without"])
BOOT = 120  # seconds, which plane.wait multiplies: a kernel without KVM
NEARLY_NOTHING, NEARLY_ALL = 0.05, 0.9  # of the bytes that a guest reads or writes


def make_busy(guests: NodeScenario, node: str) -> None:
    """Give a node a load which leaves enough for a VM."""
    guests.fill(node, cpu="500m")


def check_traffic(guests: NodeScenario, pod: str, stays: bool, measured: Measured, start: str) -> None:
    """Measure the disk of a VM, and compare the bytes on its node's link with those that it read and wrote."""
    node = guests.get(pod)["spec"]["nodeName"]
    for result in guests.measure(pod, "disk1"):
        measured(f"{start}, {'together' if stays else 'apart'} on {node}: {result}")
        # Beside few small operations, the kubelet's own requests count.
        if result.size == "1 MiB":
            crossing = result.crossing(node)
            assert crossing < NEARLY_NOTHING if stays else crossing > NEARLY_ALL


@OPT_IN
def test_a_cold_start_and_a_restart_keep_the_traffic_on_the_node_with_the_webhook_only(
    guests: NodeScenario, measured: Measured, opt_in: str | None
) -> None:
    """The VM's node is given, as by a node selector. Its share-manager, which follows, can run anywhere."""
    busy = guests.cluster.names[1]
    make_busy(guests, busy)
    volume = guests.add_volume()
    guests.wait_bound("disk1")
    where = {POOL: guests.namespace, HOSTNAME: busy}
    for start in "cold start", "restart":
        pod = guests.create(guests.vm_pod("vm1", "disk1", opt_in=opt_in, nodeSelector=where))
        assert guests.wait_running(pod) == busy
        assert (guests.longhorn.wait_running(volume) == busy) is (opt_in == "true")
        check_traffic(guests, pod, opt_in == "true", measured, start)
        if start == "cold start":
            guests.plane.request("DELETE", f"{guests.pods}/{pod}")
            guests.plane.wait(lambda pod=pod: not guests.plane.find(f"{guests.pods}/{pod}"), 60, "the end of the VM")  # type: ignore[misc]


@OPT_IN
def test_a_warm_start_keeps_the_traffic_on_the_node_with_the_webhook_only(
    guests: NodeScenario, measured: Measured, opt_in: str | None
) -> None:
    """The share-manager runs already, on the busiest node. The VM can run anywhere."""
    busy = guests.cluster.names[2]
    _, storage = guests.add_attached_volume(node=busy)
    make_busy(guests, busy)
    if opt_in:
        guests.plane.wait(lambda: guests.target_node("disk1") == storage, 30, "a decision")
    pod = guests.create(guests.vm_pod("vm1", "disk1", opt_in=opt_in))
    assert (guests.wait_running(pod) == storage) is (opt_in == "true")
    check_traffic(guests, pod, opt_in == "true", measured, "warm start")


def test_a_qemu_guest_finds_its_data_after_a_restart_on_another_node(guests: NodeScenario, measured: Measured) -> None:
    prepare()
    volume = guests.add_volume()
    guests.wait_bound("disk1")
    last = 0
    for node in guests.cluster.names[:2]:
        began = time.monotonic()
        pod = guests.create(emulated(guests, guests.vm_pod("vm1", "disk1"), "disk1", node))
        assert guests.wait_running(pod) == guests.longhorn.wait_running(volume) == node
        guests.plane.wait(lambda node=node: len(numbers(guests, node)[1]) > 2, BOOT, "writes of the guest")  # type: ignore[misc]
        measured(f"QEMU on {node}: the guest wrote after {time.monotonic() - began:.0f} s")
        if not last:
            guests.plane.request("DELETE", f"{guests.pods}/{pod}")
            guests.plane.wait(lambda: not guests.longhorn.pod(volume), 60, "the end of the VM and of its server")
        (found,), written = numbers(guests, node)
        assert found in (last, last + 1)  # QEMU may have ended between a write and its report
        assert all(one == other for one, other in written)
        last = written[-1][0]
