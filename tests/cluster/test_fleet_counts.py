"""The fleet is counted from the caches in small batches."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.builders import (
    OPT_IN,
    Object,
    catalog,
    node,
    storage,
    virt_launcher,
)
from tests.support.fake_clock import FakeClock
from tests.support.fleet import LATER, inventory, longhorn_volume, replica, vm, vm_pod, vmi
from webhook.catalog.inventory import facts_of, machines
from webhook.catalog.store import Store
from webhook.cluster.client import ClusterClient
from webhook.cluster.credentials import Api
from webhook.cluster.fleet_counts import COUNT_SECONDS, FleetCounter
from webhook.cluster.live_catalog import Live
from webhook.fleet.machine import State
from webhook.fleet.states import assess
from webhook.placement.objects.facts import Pod
from webhook.placement.settings import Action, Settings

SETTINGS = Settings()
TARGET = {"kubevirt.io/migrationJobUID": "job"}


class StillCaches:
    """Caches that don't change. `queries` counts how often the lock was held."""

    def __init__(self, *manifests: Object) -> None:
        self.store = inventory(*manifests).store
        self.is_synced, self.queries = True, 0

    def synced(self) -> bool:
        return self.is_synced

    def query(self, question: Callable[[Store], Any]) -> Any:
        self.queries += 1
        return question(self.store)

    def catalog(self) -> Store:
        return self.store


FLEET = [
    *storage(),
    node("node-a"),
    vm_pod("together"),
    vm("apart"),
    vm_pod("apart", "node-b"),
    vm("off", opt_in=False),
]
PREFERENCE = {"name": "near-storage"}


def test_the_fleet_is_counted_by_state_opt_in_and_node() -> None:
    made_up = vm_pod("lost", "a-node-that-a-user-made-up")
    counts = FleetCounter(StillCaches(*FLEET, node("node-b"), made_up), SETTINGS, FakeClock()).counts()
    assert counts
    assert counts.vms == {(State.TOGETHER, True): 1, (State.APART, True): 2, (State.STOPPED, False): 1}
    assert counts.by_node == {("node-a", State.TOGETHER): 1, ("node-b", State.APART): 1}


def test_vms_are_counted_by_the_place_of_their_data() -> None:
    second = [*storage("disk2"), vm_pod("remote", claims=["disk2"])]
    data = [longhorn_volume(), longhorn_volume("vol-disk2"), replica("node-a"), replica("node-b", "vol-disk2")]
    counts = FleetCounter(StillCaches(*FLEET, *second, *data), SETTINGS, FakeClock()).counts()
    assert counts
    assert counts.by_data == {True: 2, False: 1}  # "together" and "apart" share a disk


def test_pods_that_a_tenant_makes_up_add_no_vm() -> None:
    made_up = [vm_pod("made-up"), vm_pod("another-name", suffix="made-up")]
    made_up[1]["metadata"]["labels"] |= {"kubevirt.io/created-by": "uid-of-together"}
    real = [*FLEET, vmi("together"), vmi("apart"), node("node-b")]
    counts = [FleetCounter(StillCaches(*each), SETTINGS, FakeClock()).counts() for each in (real, [*real, *made_up])]
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("own", "of_the_pod", "opted_in"), [({}, "true", True), ({OPT_IN: "false"}, "true", False), ({}, None, False)]
)
def test_a_preference_can_opt_a_running_vm_in(own: Object, of_the_pod: str | None, opted_in: bool) -> None:
    inheriting = vm("vm1", opt_in=False, annotations=own)
    inheriting["spec"]["preference"] = PREFERENCE
    manifests = [*storage(), node("node-a"), inheriting, vm_pod("vm1", opt_in=of_the_pod)]
    counts = FleetCounter(StillCaches(*manifests), SETTINGS, FakeClock()).counts()
    assert counts
    assert counts.vms == {(State.TOGETHER, opted_in): 1}
    found = inventory(*manifests)
    (status,) = (assess(machine, found.store, SETTINGS) for machine in found.machines(SETTINGS))
    assert status.opted_in is opted_in


def test_the_pods_that_mount_a_claim_are_copied_once_for_a_count() -> None:
    """500 pods of a user that mount 120 claims kept the probes waiting for 41 s, so that the replica was restarted."""
    live = Live(ClusterClient(Api("http://127.0.0.1:1")), SETTINGS)
    claims = [f"disk{number}" for number in range(5)]
    for number in range(20):
        live.store.put(*catalog(virt_launcher(f"vm{number}", claims=claims)).pods.values())
    asked: Counter[str] = Counter()
    mounting_pods = live.store.mounting_pods

    def count_queries(namespace: str, claim: str) -> Iterator[Pod]:
        asked[claim] += 1
        return mounting_pods(namespace, claim)

    live.store.mounting_pods = count_queries
    assessed = [
        assess(machine, view, SETTINGS) for view in [live.catalog()] for machine in machines(facts_of(live.store))
    ]
    assert (len(assessed), asked) == (20, dict.fromkeys(claims, 1))


def test_a_slow_count_does_not_delay_the_probes() -> None:
    """The probes' thread renders the metrics. Until a count ends, it reports the count before."""
    caches, clock, ends = StillCaches(*FLEET), FakeClock(), threading.Event()
    counter = FleetCounter(caches, SETTINGS, clock)
    first, catalog = counter.counts(), caches.catalog
    caches.catalog = lambda: ends.wait() and catalog()
    clock.now += COUNT_SECONDS - 1
    assert counter.counts() is first
    assert not counter._thread.is_alive()  # the count is used again for some seconds
    clock.now += 1
    assert counter.counts() is first
    clock.now += COUNT_SECONDS
    assert counter.counts() is first
    ends.set()
    counter._thread.join()
    clock.now -= COUNT_SECONDS
    assert counter.counts() is not first


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_failed_count_leaves_no_old_number() -> None:
    caches, clock = StillCaches(*FLEET), FakeClock()
    counter = FleetCounter(caches, SETTINGS, clock)
    assert counter.counts()
    caches.catalog = lambda: 1 / 0
    clock.now += COUNT_SECONDS
    assert counter.counts() is None


def test_nothing_is_counted_before_the_caches_are_synced() -> None:
    caches = StillCaches(*FLEET)
    caches.is_synced = False
    assert FleetCounter(caches, SETTINGS, FakeClock()).counts() is None
    assert caches.queries == 0


UNCOUNTED_PODS: dict[str, list[Object]] = {
    "decided": [vmi(), vm_pod(decided="NodeFull")],
    "created more than an hour ago": [vmi(), vm_pod(created="2026-08-01T11:59:59Z")],
    "not opted in": [vmi(), vm_pod(opt_in=None)],
    "without a claim": [vmi(), vm_pod(claims=())],
    "of no VMI, as a tenant can create it": [vm_pod()],
    "a migration target": [vmi(), vm_pod(labels=TARGET)],
    "a provisioning pod": [vmi(), vm_pod(annotations={"kubevirt.io/ephemeral-provisioning": "true"})],
    "finished": [vmi(), vm_pod(phase="Failed")],
}


def undecided(*manifests: Object, **changes: Any) -> int:
    """Count the pods without a decision at 13:00."""
    counter = FleetCounter(StillCaches(*manifests), Settings(**changes), FakeClock(), lambda: 1785589200.0)
    counts = counter.counts()
    assert counts
    return counts.undecided


def test_recent_pods_of_opted_in_vms_without_a_decision_are_counted() -> None:
    assert undecided(vmi(), vm_pod(), vmi("b"), vm_pod("b", created=LATER)) == 2
    assert undecided(vmi(), vm_pod(), action=Action.OBSERVE) == 0


@pytest.mark.parametrize("manifests", UNCOUNTED_PODS.values(), ids=UNCOUNTED_PODS)
def test_other_pods_do_not_count_as_undecided(manifests: list[Object]) -> None:
    assert undecided(*manifests) == 0
