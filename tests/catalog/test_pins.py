"""Tests of what counts as a pin: which unbound pods take free capacity from the node of their pin."""

from contextlib import nullcontext
from itertools import permutations
from typing import Any

import pytest

from tests.support.builders import (
    Object,
    apply_injection,
    fact_of,
    node,
    pinned_vm_pod,
    review,
    settings,
    storage,
    virt_launcher,
    vmi,
)
from tests.support.fake_clock import FakeClock
from webhook.catalog import reservations
from webhook.catalog.reservations import RESERVATION_SECONDS
from webhook.cluster.client import ClusterClient
from webhook.cluster.credentials import Api
from webhook.cluster.live_catalog import Live
from webhook.placement.guard.pins import MAX_AGE, MAX_PODS
from webhook.placement.injector import Injection
from webhook.placement.objects.facts import Node, Pod, VirtualMachineInstance
from webhook.placement.reasons import Outcome, Reason

NODE_A = node(allocatable={"cpu": "10", "memory": "64Gi", "pods": "110"})


class Replica:
    """A replica in a cluster with ten CPUs on node-a, which serves the storage. VMI `vm0` exists."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.live = Live(ClusterClient(Api("http://127.0.0.1:1")), settings(), self.clock)
        self.store = self.live.store
        self.show(*storage(), NODE_A, vmi("vm0"))

    def show(self, *items: Object) -> None:
        for item in items:
            self.store.put(fact_of(item))

    def delete(self, item: Object) -> None:
        kind = Pod if item["kind"] == "Pod" else VirtualMachineInstance
        self.store.apply(kind, ("default", item["metadata"]["name"]), None)

    def relist(self, kind: type[Any]) -> None:
        self.store.replace(kind, list(self.store.table(kind).values()), nullcontext())

    def inject(self, name: str = "new", cpu: str = "1", *, known: bool = True, **rest: Any) -> Injection:
        """Decide on the pod of a VM."""
        if known:
            self.show(vmi(name))
        pod = virt_launcher(labels={"kubevirt.io/created-by": f"uid-of-{name}"}, requests={"cpu": cpu}, **rest)
        return self.live.inject(review(pod))

    def cpus(self) -> int:
        """Return how many CPUs of node-a are taken."""
        return self.store.requested("node-a", ("", "")).get("cpu", 0) // 1000


@pytest.fixture
def replica() -> Replica:
    return Replica()


def pin(vm: str = "vm0", cpu: str = "4", suffix: str = "abcde", **rest: Any) -> Object:
    return pinned_vm_pod(f"virt-launcher-{vm}-{suffix}", vm=vm, requests={"cpu": cpu}, unschedulable=False, **rest)


def test_the_pod_of_a_vmi_counts_until_it_is_five_minutes_old_whatever_its_user_changes(replica: Replica) -> None:
    replica.show(pin())
    replica.clock.now += MAX_AGE - 1
    replica.show(pin(annotations={"kubevirt-scheduler/decision": "removed"}), pin(labels={"changed": "true"}))
    assert replica.cpus() == 4
    replica.clock.now += 1
    assert replica.cpus() == 0
    nominated = pin()
    nominated["status"]["nominatedNodeName"] = "node-a"
    replica.show(nominated)
    assert replica.cpus() == 4


@pytest.mark.parametrize(
    "fake",
    [
        pytest.param(pin(cpu="1M"), id="requests more than the node has"),
        pytest.param(pin(cpu="4", schedulingGates=[{"name": "never"}]), id="has a scheduling gate"),
        pytest.param(pin(cpu="4") | {"metadata": pin()["metadata"] | {"ownerReferences": []}}, id="has no VMI"),
        pytest.param(pin(namespace="other"), id="names the VMI of another namespace"),
    ],
)
def test_a_copied_pin_takes_no_capacity(replica: Replica, fake: Object) -> None:
    replica.show(fake)
    assert replica.cpus() == 0
    assert replica.inject(cpu="10").decision.reason is Reason.CO_SCHEDULED


def test_a_pod_counts_while_its_vmi_exists(replica: Replica) -> None:
    replica.show(pin("late"))
    assert replica.cpus() == 0
    replica.show(vmi("late"))
    assert replica.cpus() == 4
    replica.delete(vmi("late"))
    assert replica.cpus() == 0
    replica.delete(vmi("vm0"))
    replica.show(pin("late", cpu="5"))
    assert replica.cpus() == 5  # without any VMI, as in a snapshot that has none, each counts as known


@pytest.mark.parametrize("own", [True, False], ids=["this replica's pin", "another replica's pin"])
def test_a_pin_counts_exactly_once_in_whatever_order_the_watches_show_it(own: bool) -> None:
    for order in permutations(["pod", "VMI", "relist of pods", "relist of VMIs", "binding"]):
        replica = Replica()
        if own:
            replica.inject("vm1", "4")
            replica.delete(vmi("vm1"))  # its watch starts again, from an older state
        for number, each in enumerate(order, 1):
            shown = {*order[:number]}
            if each.startswith("relist"):
                replica.relist(Pod if each == "relist of pods" else VirtualMachineInstance)
            else:
                bound = {"nodeName": "node-a"} if "binding" in shown else {}
                replica.show(vmi("vm1") if each == "VMI" else pin("vm1", **bound))
            counts = own or "binding" in shown or shown >= {"pod", "VMI"}
            assert replica.cpus() == (4 if counts else 0), order[:number]
            replica.clock.now += 0.9


def test_pins_of_pods_that_are_gone_take_no_memory_in_a_replica_that_gets_no_reviews(replica: Replica) -> None:
    """With session affinity, one replica gets all reviews. The others would remember each VM that ever started."""
    for number in range(50):
        replica.show(vmi(f"vm{number}"), pin(f"vm{number}"))
        replica.delete(pin(f"vm{number}"))
        replica.delete(vmi(f"vm{number}"))
    replica.clock.now += MAX_AGE
    pins = replica.store.pins
    assert list(pins.unbound()) == []
    assert [len(kept) for kept in (pins._seen, pins._changed, pins._expiring)] == [0, 0, 0]


def test_of_the_pods_of_one_vmi_only_the_largest_counts(replica: Replica) -> None:
    replica.show(*(pin(cpu=cpu, suffix=f"copy-{cpu}") for cpu in ("2", "3", "11")))
    assert replica.cpus() == 3
    replica.delete(pin(suffix="copy-3"))
    assert replica.cpus() == 2
    replica.show(*(pin(cpu="1", suffix=f"more-{number}") for number in range(MAX_PODS)), pin(cpu="9", suffix="late"))
    assert replica.cpus() == 2


def test_a_pin_counts_again_when_its_node_grows(replica: Replica) -> None:
    replica.show(pin(cpu="20"))
    assert replica.cpus() == 0
    replica.show(node(allocatable={"cpu": "40", "pods": "110"}))
    assert replica.cpus() == 20


def test_a_relist_keeps_the_age_of_a_pod(replica: Replica) -> None:
    replica.show(pin())
    replica.clock.now += MAX_AGE - 1
    for kind in (Pod, Node, VirtualMachineInstance):
        replica.relist(kind)
    assert replica.cpus() == 4
    replica.clock.now += 1
    assert replica.cpus() == 0
    replica.relist(Pod)
    assert replica.cpus() == 0


# Reservations


def test_a_pod_that_a_quota_rejects_again_and_again_reserves_once(replica: Replica) -> None:
    for _ in range(2):
        assert replica.inject("refused", "6").decision.outcome is Outcome.PINNED
        assert replica.cpus() == 6
        replica.clock.now += RESERVATION_SECONDS / 2
    for _ in range(3):
        assert replica.inject("refused", "6").decision.outcome is Outcome.PINNED
        assert replica.cpus() == 0


def test_a_vmi_reserves_again_after_the_caches_showed_its_pod(replica: Replica) -> None:
    injection = replica.inject("vm1", "6")
    shown = apply_injection(pin("vm1", cpu="6", nodeName="node-b"), Injection(injection.decision))
    replica.show(shown)
    assert replica.cpus() == 0
    replica.inject("vm1", "6")
    assert replica.cpus() == 6


def test_an_unknown_vmi_reserves_nothing_and_its_review_is_repeated(replica: Replica) -> None:
    injection = replica.inject("unknown", known=False)
    created = virt_launcher(labels={"kubevirt.io/created-by": "uid-of-unknown"})
    assert injection.unseen
    assert not replica.live.inject(review(created, dryRun=True)).unseen
    assert replica.cpus() == 0
    replica.show(vmi("unknown"))
    assert not replica.live.inject(review(created)).unseen


def test_a_vm_that_prefers_a_node_without_space_for_it_reserves_nothing(replica: Replica) -> None:
    preferred = {"kubevirt-scheduler/co-schedule-mode": "preferred"}
    assert replica.inject("large", "11", annotations=preferred).decision.outcome is Outcome.PREFERRED
    assert replica.cpus() == 0
    assert replica.inject("small", "9", annotations=preferred).decision.outcome is Outcome.PREFERRED
    assert replica.cpus() == 9


def test_the_vms_that_have_reserved_are_forgotten_over_the_limit(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reservations, "MAX_REMEMBERED", 2)
    for name in ("first", "second", "third"):
        replica.inject(name, "6")
        replica.clock.now += RESERVATION_SECONDS
    replica.inject("second", "6")
    assert replica.cpus() == 0
    replica.inject("first", "6")
    assert replica.cpus() == 6
