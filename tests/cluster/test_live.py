"""Tests of decisions on a live cluster: objects that the caches lack, and reservations of pinned pods."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from time import monotonic
from typing import Any

import pytest

from tests.cluster.live_caches import follow, reflector, sync_caches
from tests.support.builders import (
    HOSTNAME,
    Object,
    apply_injection,
    claim,
    node,
    pod,
    pod_anti_affinity,
    pod_fact,
    pod_term,
    review,
    settings,
    share_manager,
    storage,
    virt_launcher,
    volume,
)
from tests.support.fake_api_server import (
    ApiServer,
    event,
)
from tests.support.fake_clock import FakeClock
from webhook.catalog import reservations
from webhook.catalog.reservations import RESERVATION_SECONDS
from webhook.cluster.client import ClusterClient
from webhook.cluster.credentials import Api
from webhook.cluster.live_catalog import STALE_SECONDS, Live
from webhook.placement.eligibility import MODE_ANNOTATION
from webhook.placement.injector import Injection
from webhook.placement.reasons import Decision, Outcome, Reason
from webhook.placement.settings import Action

CLAIMS, VOLUMES, MANAGERS = "persistentvolumeclaims", "persistentvolumes", "sharemanagers"
VMIS = "virtualmachineinstances"
CAPACITY_FOR_TEN = {"cpu": "10", "pods": "110"}
LONG_TIMEOUT = 20.0  # seconds; many times what any step here needs


@pytest.fixture
def live(server: ApiServer, clock: FakeClock) -> Live:
    return make_live(server, clock)


def make_live(server: ApiServer, clock: Any = monotonic, **options: Any) -> Live:
    cluster = ClusterClient(Api(server.url), silence=LONG_TIMEOUT)
    return Live(cluster, settings(**options), clock)


def vm(number: int = 1, **rest: Any) -> Object:
    labels = {"kubevirt.io/created-by": f"uid-of-vmi-{number}"} | rest.pop("labels", {})
    return virt_launcher(labels=labels, **rest)


def decision(live: Live, pod: Object, **rest: Any) -> Decision:
    return live.inject(review(pod, **rest)).decision


def stored_pod(pod: Object, injection: Injection, name: str) -> Object:
    """The pod as the API server stores it."""
    stored: Object = apply_injection(deepcopy(pod), injection)
    stored["metadata"] |= {"name": name, "uid": f"uid-{name}"}
    return stored


# Objects that the caches lack


def lacks(live: Live, pod: Object) -> bool:
    return live.inject(review(pod)).unseen


def test_a_decision_asks_the_api_server_nothing(server: ApiServer, live: Live) -> None:
    server.put(*storage(), node())
    sync_caches(live, server)
    server.requests.clear()
    assert decision(live, vm()).node == "node-a"
    assert decision(live, vm(claims=["no-such-claim"])).claims[0].reason is Reason.CLAIM_NOT_FOUND
    assert server.requests == []


def test_a_claim_or_volume_is_lacking_until_the_watch_shows_it(server: ApiServer, live: Live) -> None:
    server.put(share_manager(owner="node-a"), node())
    sync_caches(live, server)
    assert lacks(live, vm())
    follow(live, server, CLAIMS, event("ADDED", claim()))
    assert lacks(live, vm())
    follow(live, server, VOLUMES, event("ADDED", volume()))
    assert not lacks(live, vm())
    assert decision(live, vm()).node == "node-a"


def test_a_volume_without_a_share_manager_lacks_nothing(server: ApiServer, live: Live) -> None:
    """Longhorn creates the ShareManager with the volume: each first start would wait for nothing."""
    server.put(claim(), volume(), node())
    sync_caches(live, server)
    assert not lacks(live, vm())
    assert not lacks(live, virt_launcher(claims=[]))


# Reservations


def burst(live: Live, numbers: range, **rest: Any) -> Counter[Reason]:
    return Counter(decision(live, vm(number, requests={"cpu": "1"}), **rest).reason for number in numbers)


@pytest.fixture
def small_live(server: ApiServer, live: Live) -> Live:
    """A synced Live; its storage is on a node with free capacity for ten VMs."""
    server.put(*storage(), node(allocatable=CAPACITY_FOR_TEN))
    sync_caches(live, server)
    return live


def test_a_pinned_vm_repels_the_next_one_before_the_cache_shows_its_pod(small_live: Live) -> None:
    apart = pod_anti_affinity(pod_term({"app": "db"}, HOSTNAME))
    reasons = [decision(small_live, vm(number, labels={"app": "db"}, affinity=apart)).reason for number in range(2)]
    assert reasons == [Reason.CO_SCHEDULED, Reason.POD_AFFINITY]


def test_concurrent_decisions_and_pod_events_pin_only_the_ten_vms_that_fit(small_live: Live) -> None:
    """Each pinned pod counts once: as a reservation or as a pod from the watch."""
    pods = reflector(small_live, "pods")

    def start(number: int) -> Reason:
        created = vm(number, requests={"cpu": "1"})
        injection = small_live.inject(review(created))
        stored = stored_pod(created, injection, f"vm-{number}")
        pods._apply("ADDED", json.dumps(stored).encode())
        return injection.decision.reason

    with ThreadPoolExecutor(8) as pool:
        assert Counter(pool.map(start, range(100))) == {Reason.CO_SCHEDULED: 10, Reason.NODE_FULL: 90}
    assert len(small_live.store.reservations) == 0


@pytest.mark.parametrize(
    ("options", "sent"), [({}, {"dryRun": True}), ({"action": Action.OBSERVE}, {}), ({"node_guard": False}, {})]
)
def test_dry_runs_observe_mode_and_a_disabled_guard_reserve_nothing(
    server: ApiServer, options: Object, sent: Object
) -> None:
    live = make_live(server, **options)
    server.put(*storage(), node(allocatable=CAPACITY_FOR_TEN))
    sync_caches(live, server)
    assert burst(live, range(30), **sent) == {Reason.CO_SCHEDULED: 30}
    assert len(live.store.reservations) == 0


def test_a_vm_that_prefers_the_node_leaves_a_pinned_vm_its_place(small_live: Live) -> None:
    """Without a reservation, the scheduler bound the preferring VM first, and one pinned VM stayed Pending."""
    preferring = vm(99, requests={"cpu": "1"}, annotations={MODE_ANNOTATION: "preferred"})
    injection = small_live.inject(review(preferring))
    assert injection.decision.outcome is Outcome.PREFERRED
    assert burst(small_live, range(10)) == {Reason.CO_SCHEDULED: 9, Reason.NODE_FULL: 1}
    pods, stored = reflector(small_live, "pods"), stored_pod(preferring, injection, "vm-99")
    pods._apply("ADDED", json.dumps(stored).encode())
    assert burst(small_live, [10]) == {Reason.NODE_FULL: 1}
    stored["spec"]["nodeName"] = "node-b"  # the scheduler has chosen another node
    pods._apply("MODIFIED", json.dumps(stored).encode())
    assert burst(small_live, [10, 11]) == {Reason.CO_SCHEDULED: 1, Reason.NODE_FULL: 1}


def test_a_vm_that_only_prefers_the_node_counts_as_no_pin(small_live: Live) -> None:
    preferring = vm(99, requests={"cpu": "10"}, annotations={MODE_ANNOTATION: "preferred"})
    assert decision(small_live, preferring).outcome is Outcome.PREFERRED
    found = decision(small_live, vm(1, requests={"cpu": "1"}))
    assert (found.outcome, found.reason) == (Outcome.PREFERRED, Reason.NODE_FULL)  # no other node is preferred


def test_a_full_node_is_preferred_only_after_its_pinned_pods_are_bound(small_live: Live, clock: FakeClock) -> None:
    assert burst(small_live, range(10))[Reason.CO_SCHEDULED] == 10
    refused = decision(small_live, vm(11, requests={"cpu": "1"}))
    assert (refused.outcome, refused.reason) == (Outcome.UNCHANGED, Reason.NODE_FULL)
    small_live.store.put(pod_fact(pod("bound", node="node-a", requests={"cpu": "10"})))
    clock.now += RESERVATION_SECONDS
    full = decision(small_live, vm(12, requests={"cpu": "1"}))
    assert (full.outcome, full.reason) == (Outcome.PREFERRED, Reason.NODE_FULL)


def test_a_cache_that_hears_nothing_for_five_minutes_is_stale(server: ApiServer) -> None:
    clock = FakeClock()
    live = make_live(server, clock)
    server.put(*storage(), node())
    sync_caches(live, server)
    clock.now += STALE_SECONDS
    assert decision(live, vm()).reason is Reason.CO_SCHEDULED
    clock.now += 1
    assert decision(live, vm(2)).reason is Reason.CACHE_STALE
    kinds = [CLAIMS, VOLUMES, MANAGERS, "nodes", "pods", VMIS]
    for number, plural in enumerate(kinds, 3):
        softened = decision(live, vm(number))
        assert (softened.outcome, softened.reason) == (Outcome.PREFERRED, Reason.CACHE_STALE)
        assert f"no update of {' and '.join(kinds[number - 3 :])} for 5 minutes" in softened.message
        follow(live, server, plural)
    assert decision(live, vm(9)).reason is Reason.CO_SCHEDULED


def test_a_reservation_expires_after_ten_seconds(small_live: Live, clock: FakeClock) -> None:
    assert burst(small_live, range(10)) == {Reason.CO_SCHEDULED: 10}
    clock.now += RESERVATION_SECONDS - 0.1
    assert burst(small_live, range(10, 11)) == {Reason.NODE_FULL: 1}
    clock.now += 0.1
    assert burst(small_live, range(20, 21)) == {Reason.CO_SCHEDULED: 1}
    assert len(small_live.store.reservations) == 1


LARGE_PODS = {
    "labels": {"labels": {f"label-{number}": "" for number in range(400)}},
    "annotations": {"annotations": {f"annotation-{number}": "true" for number in range(400)}},
    "a long label": {"labels": {"label": "x" * 40_000}},
    "anti-affinity": {"affinity": pod_anti_affinity(*(pod_term({"app": "db"}) for _ in range(40)))},
}


@pytest.mark.parametrize("large", LARGE_PODS.values(), ids=LARGE_PODS)
def test_a_pod_of_an_unusual_size_is_reserved_without_its_details(small_live: Live, large: Object) -> None:
    """For 10 s, each such pod would stay in memory: 100 pods took 400 MB."""
    found = decision(small_live, vm(1, requests={"cpu": "1"}, **large))
    assert (found.outcome, found.reason) == (Outcome.PREFERRED, Reason.UNJUDGED)
    (reserved,) = small_live.store.reservations.values()
    assert (reserved.vmi_uid, reserved.requests["cpu"]) == ("uid-of-vmi-1", 1000)
    assert len(repr(reserved)) < 1000


def test_the_oldest_reservation_over_the_limit_ends(small_live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservations, "MAX_RESERVATIONS", 3)
    for number in (0, 1, 2, 0, 3):  # a retry of 0 keeps its time
        assert decision(small_live, vm(number)).outcome is Outcome.PINNED
    assert {key[1] for key in small_live.store.reservations} == {f"uid-of-vmi-{number}" for number in (1, 2, 3)}


def test_the_resources_of_expired_reservations_are_forgotten(small_live: Live, clock: FakeClock) -> None:
    prefers = {"annotations": {MODE_ANNOTATION: "preferred"}}
    decision(small_live, vm(1, requests={"example.com/made-up": "1"}, **prefers))
    clock.now += RESERVATION_SECONDS / 2
    decision(small_live, vm(2, requests={"cpu": "1"}))
    clock.now += RESERVATION_SECONDS / 2
    decision(small_live, vm(3, requests={"cpu": "1"}))
    in_use = {"pods": 3, "cpu": 2000}  # with the share-manager
    assert dict(small_live.store.requested("node-a", ("", ""))) == in_use


def test_a_retry_is_not_blocked_by_its_own_reservation_which_no_dry_run_or_migration_ends(small_live: Live) -> None:
    whole_node = vm(requests={"cpu": "10"})
    assert [decision(small_live, whole_node).reason for _ in range(3)] == [Reason.CO_SCHEDULED] * 3
    decision(small_live, whole_node, dryRun=True)
    decision(small_live, vm(labels={"kubevirt.io/migrationJobUID": "uid-of-migration"}))
    assert decision(small_live, vm(2, requests={"cpu": "1"})).reason is Reason.NODE_FULL


@pytest.mark.parametrize(
    ("sidecar", "reason", "reserved"), [("5", Reason.ALREADY_INJECTED, 9000), ("7", Reason.NODE_FULL, 0)]
)
def test_a_pod_that_another_webhook_enlarged_updates_its_reservation_or_loses_it(
    small_live: Live, sidecar: str, reason: Reason, reserved: int
) -> None:
    created = vm(requests={"cpu": "4"})
    pinned = apply_injection(deepcopy(created), small_live.inject(review(created)))
    pinned["spec"]["containers"].append({"name": "sidecar", "resources": {"requests": {"cpu": sidecar}}})
    assert decision(small_live, pinned, dryRun=True).reason is reason
    assert small_live.store.requested("node-a", ("", ""))["cpu"] == 4000
    assert decision(small_live, pinned).reason is reason
    assert small_live.store.requested("node-a", ("", "")).get("cpu", 0) == reserved


def test_pods_without_a_vmi_uid_are_reserved_by_request_uid(small_live: Live) -> None:
    pods = [review(virt_launcher(requests={"cpu": "1"}), uid=f"request-{number}") for number in range(30)]
    reasons = Counter(small_live.inject(each).decision.reason for each in pods)
    assert reasons == {Reason.CO_SCHEDULED: 10, Reason.NODE_FULL: 20}
