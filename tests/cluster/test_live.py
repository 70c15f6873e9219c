"""Decisions on a live cluster: what a cache missed is read, what was pinned takes its room, and nobody waits long."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from time import monotonic, sleep
from typing import Any

import pytest
from kubernetes.client import Configuration
from structlog.testing import capture_logs

from tests.support.builders import (
    Object,
    claim,
    hotplug_pod,
    node,
    patched,
    pod,
    request,
    settings,
    share_manager,
    share_manager_pod,
    storage,
    virt_launcher,
    volume,
)
from tests.support.fake_api_server import CUT, ApiServer, body, dribble, forbidden, refusal, silence, status, stream
from tests.support.threads import threads
from webhook.cluster.client import ClusterClient
from webhook.cluster.live import READ_TIMEOUT, READING, READS_AT_ONCE, RESERVATION, Live, LiveReader, Overlay
from webhook.cluster.objects import read_pod
from webhook.cluster.reflector import Reflector
from webhook.cluster.store import Store
from webhook.placement.catalog import Claim, ShareManager, Volume
from webhook.placement.decision import Decision, Mode, Outcome, Reason
from webhook.placement.injector import Injection
from webhook.placement.settings import Action

CLAIMS, VOLUMES, MANAGERS = "persistentvolumeclaims", "persistentvolumes", "sharemanagers"
ROOM_FOR_TEN = {"cpu": "10", "pods": "110"}
IN_TIME = 20.0  # seconds, many times what anything here takes


class Clock:
    """Seconds that pass when a test says so."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        yield server


class Patient(ClusterClient):
    """Waits for an answer while a busy machine makes it; where none comes, a test says so and takes a Cluster."""

    def get(self, path: str, timeout: float = IN_TIME) -> bytes | None:
        return super().get(path, max(timeout, IN_TIME))


@pytest.fixture
def live(server: ApiServer, clock: Clock) -> Live:
    return made(server, clock, Patient)


def made(
    server: ApiServer, clock: Any = monotonic, speaking: type[ClusterClient] = ClusterClient, **chosen: Any
) -> Live:
    cluster = speaking(lambda: Configuration(host=server.url), silence=IN_TIME)
    return Live(cluster, settings(**chosen), clock)


def reflector(live: Live, plural: str) -> Reflector:
    return next(found for found in live.reflectors if found.kind.plural == plural)


def follow(live: Live, server: ApiServer, plural: str, *lines: bytes) -> None:
    """List one kind again, and take these events."""
    stop = threading.Event()
    server.script("watch", plural, stream(*lines, then=stop.set))
    found = reflector(live, plural)
    clock, found._clock = found._clock, iter(range(0, 10_000, 60)).__next__  # each watch lasts a minute
    found.follow(stop)
    found._clock = clock


def know(live: Live, server: ApiServer) -> None:
    """List all kinds once."""
    for each in live.reflectors:
        follow(live, server, each.kind.plural)


def vm(number: int = 1, **rest: Any) -> Object:
    labels = {"kubevirt.io/created-by": f"uid-of-vmi-{number}"} | rest.pop("labels", {})
    return virt_launcher(labels=labels, **rest)


def decision(live: Live, pod: Object, **rest: Any) -> Decision:
    return live.inject(request(pod, **rest)).decision


def shown(pod: Object, injection: Injection, name: str) -> Object:
    """The pod as the API server stores it."""
    stored: Object = patched(deepcopy(pod), injection)
    stored["metadata"] |= {"name": name, "uid": f"uid-{name}"}
    return stored


# What the caches missed


def test_what_the_caches_know_is_not_read(server: ApiServer, live: Live) -> None:
    server.put(*storage(), node())
    know(live, server)
    server.asked.clear()
    assert decision(live, vm()).node == "node-a"
    assert server.asked == []
    assert set(live.reader.results.values()) == {0}


def test_a_claim_created_a_moment_ago_is_found_with_its_volume_and_its_share_manager(
    server: ApiServer, live: Live
) -> None:
    know(live, server)
    server.put(claim(), volume(), share_manager(owner="node-a"))
    decided = decision(live, vm())
    assert (decided.outcome, decided.node) == (Outcome.PINNED, "node-a")
    assert [(asked.verb, asked.plural) for asked in server.asked[-4:]] == [
        ("get", CLAIMS),
        ("get", VOLUMES),
        ("get", MANAGERS),  # by the name of the PV, which most often is the volume's
        ("get", MANAGERS),
    ]
    assert live.reader.results == {"found": 3, "absent": 1, "failed": 0, "skipped": 0}


def test_what_was_read_is_not_kept_for_the_next_decision(server: ApiServer, live: Live) -> None:
    """The watch will bring it, and knows when it changes."""
    know(live, server)
    server.put(claim(), volume(), share_manager(owner="node-a"))
    decision(live, vm())
    assert len(live.store.claims) == len(live.store.volumes) == 0


def test_a_volume_whose_share_manager_pod_comes_up_is_read_to_find_its_vm(server: ApiServer, live: Live) -> None:
    server.put(node(), virt_launcher("vm1", node="node-a"))
    know(live, server)
    server.put(volume(name="vol-disk1"))
    decided = decision(live, share_manager_pod(), namespace="longhorn-system")
    assert (decided.reason, decided.node) == (Reason.CO_SCHEDULED, "node-a")


def test_each_thing_is_read_once_however_often_it_is_asked_for(server: ApiServer, live: Live) -> None:
    know(live, server)
    server.asked.clear()
    assert decision(live, vm(claims=["disk1", "disk2"])).reason is Reason.NO_SHARE_MANAGER
    assert Counter(asked.path for asked in server.asked) == {
        f"/api/v1/namespaces/default/persistentvolumeclaims/{name}": 1 for name in ("disk1", "disk2")
    }
    assert live.reader.results["absent"] == 2


def test_what_is_absent_is_asked_for_again_by_the_next_decision_and_no_sooner(server: ApiServer, live: Live) -> None:
    know(live, server)
    for times in (1, 2):
        decision(live, vm())
        assert server.count("get", CLAIMS) == times


def test_a_long_chain_of_misses_ends(server: ApiServer, live: Live) -> None:
    know(live, server)
    server.script("get", CLAIMS, body(claim(volume="pvc-other")))
    server.script("get", VOLUMES, body(volume(name="pvc-other", handle="vol-third")))
    assert decision(live, vm()).claims[0].reason is Reason.NO_SHARE_MANAGER
    assert [asked.path.rpartition("/")[2] for asked in server.asked if asked.plural == MANAGERS][-2:] == [
        "pvc-other",
        "vol-third",
    ]


@pytest.mark.parametrize("name", ["..", "", "a/b", "a b", "UPPER", "x" * 254, "%2e%2e", "?limit=1"])
def test_a_name_that_nothing_can_have_is_not_asked_for(server: ApiServer, live: Live, name: str) -> None:
    know(live, server)
    server.asked.clear()
    assert decision(live, vm(claims=[name or " "])).reason is Reason.NO_SHARE_MANAGER
    assert live.reader.read((Volume, ("", name))) is None
    assert server.asked == []


def test_a_name_of_253_characters_is_asked_for(server: ApiServer, live: Live) -> None:
    name = ".".join(["x" * 62] * 4)[:253]
    server.put(claim(name))
    assert live.reader.read((Claim, ("default", name)))


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(refusal(status(500, "etcd")), id="refused"),
        pytest.param(body(b"garbage"), id="garbage"),
        pytest.param(body(b'{"metadata":{"name":"\xff"}}'), id="invalid UTF-8"),
        pytest.param(body(b'{"metadata":{"labels":' + b"[" * 50_000), id="too deep"),
        pytest.param(body({"metadata": []}), id="strange types"),
        pytest.param(lambda connection: connection.end(cut=True), id="broken off"),
    ],
)
def test_a_read_that_fails_is_counted_and_nothing_more(server: ApiServer, live: Live, answer: Any) -> None:
    know(live, server)
    server.script("get", CLAIMS, answer)
    decided = decision(live, vm())
    assert (decided.reason, decided.claims[0].reason) == (Reason.NO_SHARE_MANAGER, Reason.CLAIM_NOT_FOUND)
    assert live.reader.results["failed"] == 1
    assert live.reader.problem


def test_a_right_to_read_that_is_missing_is_named_once(server: ApiServer, live: Live) -> None:
    server.forbidden.add(("get", CLAIMS))
    with capture_logs() as logs:
        for _ in range(3):
            live.reader.read((Claim, ("default", "disk1")))
    sentence = forbidden("get", CLAIMS)["message"]
    assert live.reader.problem == sentence
    assert logs == [{"event": "a live read failed", "log_level": "warning", "error": sentence}]
    server.forbidden.clear()
    live.reader.read((Claim, ("default", "disk1")))
    assert live.reader.problem == ""


@pytest.mark.parametrize("answer", [silence, dribble])
def test_a_silent_api_server_costs_a_decision_no_more_than_it_may(server: ApiServer, answer: Any) -> None:
    def took() -> float:
        live = made(server)
        server.script("get", CLAIMS, *[answer] * 9)
        started = monotonic()
        decided = decision(live, vm(claims=[f"disk{number}" for number in range(9)]))
        assert decided.reason is Reason.NO_SHARE_MANAGER
        assert live.reader.results["skipped"] >= 6
        assert live.reader.results["failed"] + live.reader.results["skipped"] == 9
        return monotonic() - started

    # Tried again where it took longer: a machine that stalls can only add to it.
    assert any(READ_TIMEOUT <= took() < READING + READ_TIMEOUT for _ in range(5))


def test_no_more_than_four_are_read_at_once(server: ApiServer, live: Live) -> None:
    together, go_on = threading.Barrier(READS_AT_ONCE + 1), threading.Event()

    def wait(connection: Any) -> None:
        together.wait(20)
        go_on.wait(20)
        connection.answer(200, claim())

    server.script("get", CLAIMS, *[wait] * READS_AT_ONCE)
    miss = (Claim, ("default", "disk1"))
    with ThreadPoolExecutor() as pool:
        reading = [pool.submit(live.reader.read, miss) for _ in range(READS_AT_ONCE)]
        together.wait(20)
        assert live.reader.read(miss) is None
        go_on.set()
        assert all(found.result() for found in reading)
    assert live.reader.results == {"found": READS_AT_ONCE, "absent": 0, "failed": 0, "skipped": 1}


def test_no_lock_is_held_while_something_is_read(server: ApiServer, live: Live) -> None:
    server.put(*storage("disk2"), node())
    know(live, server)
    meanwhile: list[Decision] = []

    def decide_another(connection: Any) -> None:
        meanwhile.append(decision(live, vm(2, claims=["disk2"])))
        connection.answer(200, claim())

    server.script("get", CLAIMS, decide_another)
    decision(live, vm())
    assert [decided.node for decided in meanwhile] == ["node-a"]


def test_a_relist_during_a_read_is_seen(server: ApiServer, live: Live) -> None:
    know(live, server)

    def relist(connection: Any) -> None:
        server.put(*storage(), node())
        know(live, server)
        connection.answer(404, status(404, "not found"))

    server.script("get", CLAIMS, relist)
    assert decision(live, vm()).node == "node-a"


def test_an_overlay_prefers_what_the_store_knows() -> None:
    overlay = Overlay(Store())
    assert overlay.claim("default", "disk1") is None
    assert overlay.share_manager("longhorn-system", "vol-disk1") is None
    overlay.claim("default", "disk1")
    assert list(overlay.missed) == [
        (Claim, ("default", "disk1")),
        (ShareManager, ("longhorn-system", "vol-disk1")),
    ]
    read, watched = (Claim("default", "disk1", name, shared=True, persistent_state=False) for name in "ab")
    overlay.fill({(Claim, ("default", "disk1")): read}.get)
    assert (overlay.claim("default", "disk1"), overlay.missed) == (read, {})
    overlay.refresh(Store([watched]))
    assert overlay.claim("default", "disk1") == watched


# Reservations


def burst(live: Live, numbers: range, **rest: Any) -> Counter[Reason]:
    return Counter(decision(live, vm(number, requests={"cpu": "1"}), **rest).reason for number in numbers)


@pytest.fixture
def small(server: ApiServer, live: Live) -> Live:
    """A cluster whose storage is on a node with room for ten VMs."""
    server.put(*storage(), node(allocatable=ROOM_FOR_TEN))
    know(live, server)
    return live


def test_a_burst_of_thirty_for_a_node_with_room_for_ten_pins_ten(small: Live) -> None:
    assert burst(small, range(30)) == {Reason.CO_SCHEDULED: 10, Reason.NODE_FULL: 20}


def test_threads_that_decide_together_do_not_pin_too_many(small: Live) -> None:
    with ThreadPoolExecutor(8) as pool:
        decided = list(pool.map(lambda number: decision(small, vm(number, requests={"cpu": "1"})), range(200)))
    assert Counter(each.reason for each in decided) == {Reason.CO_SCHEDULED: 10, Reason.NODE_FULL: 190}


def test_threads_that_decide_while_the_pods_appear_do_not_pin_too_many(small: Live) -> None:
    """Each pinned pod is counted once: as reserved, or as seen by the watch."""
    pods = reflector(small, "pods")

    def start(number: int) -> Reason:
        created = vm(number, requests={"cpu": "1"})
        injection = small.inject(request(created))
        stored = shown(created, injection, f"vm-{number}")
        pods._take("ADDED", json.dumps(stored).encode())
        return injection.decision.reason

    with ThreadPoolExecutor(8) as pool:
        assert Counter(pool.map(start, range(100))) == {Reason.CO_SCHEDULED: 10, Reason.NODE_FULL: 90}
    assert len(small.store.reservations) == 0


def test_vms_that_repel_each_other_are_not_pinned_together_in_a_burst(small: Live) -> None:
    term = {"labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": "kubernetes.io/hostname"}
    repelling = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    reasons = [decision(small, vm(number, labels={"app": "db"}, affinity=repelling)).reason for number in range(2)]
    assert reasons == [Reason.CO_SCHEDULED, Reason.POD_AFFINITY]


def test_a_dry_run_reserves_nothing(small: Live) -> None:
    assert burst(small, range(30), dryRun=True) == {Reason.CO_SCHEDULED: 30}
    assert len(small.store.reservations) == 0


@pytest.mark.parametrize(
    "chosen", [{"action": Action.OBSERVE}, {"affinity_mode": Mode.PREFERRED}, {"node_guard": False}]
)
def test_what_is_not_pinned_with_the_guard_reserves_nothing(server: ApiServer, chosen: Object) -> None:
    live = made(server, **chosen)
    server.put(*storage(), node(allocatable=ROOM_FOR_TEN))
    know(live, server)
    assert burst(live, range(30)) == {Reason.CO_SCHEDULED: 30}
    assert len(live.store.reservations) == 0


def test_a_reservation_ends_when_the_pod_shows_up(server: ApiServer, small: Live) -> None:
    created = vm(requests={"cpu": "4"})
    injection = small.inject(request(created))
    assert small.store.requested("node-a", ("", ""))["cpu"] == 4000
    server.put(shown(created, injection, "virt-launcher-vm1-abcde"))
    follow(small, server, "pods")
    assert len(small.store.reservations) == 0
    assert small.store.requested("node-a", ("", ""))["cpu"] == 4000


def test_a_reservation_ends_with_an_event_too(server: ApiServer, small: Live) -> None:
    created = vm(requests={"cpu": "4"})
    stored = shown(created, small.inject(request(created)), "virt-launcher-vm1-abcde")
    follow(small, server, "pods", json.dumps({"type": "ADDED", "object": stored}).encode())
    assert len(small.store.reservations) == 0
    assert small.store.requested("node-a", ("", ""))["cpu"] == 4000


def test_a_node_that_is_full_of_pods_on_their_way_is_contested_until_they_are_bound(small: Live, clock: Clock) -> None:
    assert burst(small, range(10))[Reason.CO_SCHEDULED] == 10
    refused = small.inject(request(vm(11, requests={"cpu": "1"})))
    assert refused.decision.reason is Reason.NODE_FULL
    assert small.contested(refused)
    assert not small.contested(small.inject(request(pod())))  # no VM of ours
    small.store.put(read_pod(pod("bound", node="node-a", requests={"cpu": "10"})))
    clock.now += RESERVATION
    full = small.inject(request(vm(12, requests={"cpu": "1"})))
    assert full.decision.reason is Reason.NODE_FULL
    assert not small.contested(full)


def test_a_reservation_ends_after_ten_seconds(small: Live, clock: Clock) -> None:
    assert burst(small, range(10)) == {Reason.CO_SCHEDULED: 10}
    clock.now += RESERVATION - 0.1
    assert burst(small, range(10, 11)) == {Reason.NODE_FULL: 1}
    clock.now += 0.1
    assert burst(small, range(20, 21)) == {Reason.CO_SCHEDULED: 1}
    assert len(small.store.reservations) == 1


def test_a_reservation_survives_a_relist_that_does_not_know_the_pod_yet(server: ApiServer, small: Live) -> None:
    burst(small, range(10))
    server.put(pod("another", "kube-system", node="node-b"))
    follow(small, server, "pods")
    assert burst(small, range(10, 11)) == {Reason.NODE_FULL: 1}


def test_a_pod_that_was_refused_after_us_and_comes_again_is_not_in_its_own_way(small: Live) -> None:
    whole_node = vm(requests={"cpu": "10"})
    assert [decision(small, whole_node).reason for _ in range(3)] == [Reason.CO_SCHEDULED] * 3
    assert decision(small, vm(2, requests={"cpu": "1"})).reason is Reason.NODE_FULL


def test_a_dry_run_and_a_migration_leave_the_reservation_of_their_vm(small: Live) -> None:
    whole_node = vm(requests={"cpu": "10"})
    decision(small, whole_node)
    decision(small, whole_node, dryRun=True)
    decision(small, vm(labels={"kubevirt.io/migrationJobUID": "uid-of-migration"}))
    assert decision(small, vm(2, requests={"cpu": "1"})).reason is Reason.NODE_FULL


def test_pods_that_name_no_vmi_are_told_apart_by_their_requests(small: Live) -> None:
    pods = [request(virt_launcher(requests={"cpu": "1"}), uid=f"request-{number}") for number in range(30)]
    reasons = Counter(small.inject(each).decision.reason for each in pods)
    assert reasons == {Reason.CO_SCHEDULED: 10, Reason.NODE_FULL: 20}


def test_what_is_read_live_is_reserved_as_well(server: ApiServer, live: Live) -> None:
    server.put(node(allocatable=ROOM_FOR_TEN))
    know(live, server)
    server.put(claim(), volume(), share_manager())
    assert burst(live, range(12)) == {Reason.CO_SCHEDULED: 10, Reason.NODE_FULL: 2}


def test_a_request_of_any_shape_is_answered(live: Live) -> None:
    for strange in ({}, {"object": 5}, {"object": {"metadata": {"labels": {"kubevirt.io/created-by": []}}}}):
        assert live.inject(strange).decision.outcome is Outcome.UNCHANGED


# All together


def test_it_is_synced_when_each_kind_was_listed(server: ApiServer, live: Live) -> None:
    for each in live.reflectors:
        assert not live.synced()
        follow(live, server, each.kind.plural)
    assert live.synced()


def until(holds: Any) -> None:
    last = monotonic() + IN_TIME
    while not holds():
        assert monotonic() < last, "in vain"
        sleep(0.005)


def test_it_follows_a_cluster_in_threads_through_a_loss(server: ApiServer) -> None:
    """The one test with real threads and a real clock: what is right before the API server is lost is right after."""
    server.put(*storage(), node(), hotplug_pod(virt_launcher("vm0")))
    live, stop, before = made(server), threading.Event(), threads()
    live.start(stop)
    until(live.synced)
    assert decision(live, vm(1)).node == "node-a"
    until(lambda: server.watching == 5)
    moved = share_manager_pod("vol-disk1", node="node-b")
    server.put(node("node-b"), moved)
    until(lambda: decision(live, vm(2), dryRun=True).node == "node-b")
    server.end_watches(CUT)
    server.compact()
    server.put(share_manager_pod("vol-disk1", node="node-a"))
    until(lambda: decision(live, vm(3), dryRun=True).node == "node-a")
    until(lambda: server.watching == 5)
    assert sum(each.health.watch_errors for each in live.reflectors) >= 5
    stop.set()
    server.end_watches()
    until(lambda: threads() <= before)


def test_a_reader_of_another_namespace_of_longhorn_reads_there(server: ApiServer) -> None:
    server.put(share_manager(namespace="storage"))
    reader = LiveReader(ClusterClient(lambda: Configuration(host=server.url)), "storage")
    assert reader.read((ShareManager, ("storage", "vol-disk1")))
