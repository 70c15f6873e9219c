"""Tests of the release: which pinned pods are deleted, under which preconditions, and what is reported instead."""

from collections import Counter
from typing import Any, ClassVar

import pytest

from tests.cluster.live_caches import follow, reflector, sync_caches
from tests.support.builders import Object, node, pinned_vm_pod, pod_fact, settings, storage, virtual_machine, vmi
from tests.support.fake_api_server import ApiServer, Responder, body, error_response, event, forbidden, status
from tests.support.fake_clock import FakeClock
from tests.support.log_capture import capture_logs
from webhook.catalog.releases import RELEASE_SECONDS
from webhook.cluster.client import ClusterClient
from webhook.cluster.credentials import Api
from webhook.cluster.events import Vmi, build_event
from webhook.cluster.fleet_counts import FleetCounter
from webhook.cluster.live_catalog import Live
from webhook.cluster.releaser import MAX_PODS_PER_PASS, REPORT_INTERVAL, Releaser
from webhook.placement import wording
from webhook.placement.reasons import Reason
from webhook.placement.settings import Settings

HOUR = RELEASE_SECONDS
CORDONED = [*storage(), node(unschedulable=True)]


class Harness:
    """A releaser of a leader, with a fake API server and a clock that a test advances."""

    def __init__(self, server: ApiServer, *items: Object, **overrides: Any) -> None:
        self.server, self.clock, self.leading = server, FakeClock(), True
        self.events: list[Object] = []
        cluster = ClusterClient(Api(server.url))
        self.live = Live(cluster, settings(**overrides), self.clock)
        self.releaser = Releaser(
            cluster, self.live, settings(**overrides), lambda: self.leading, self._record, self.clock
        )
        server.put(*items)
        sync_caches(self.live, server)

    def _record(self, vmi: Vmi, decision: Any) -> None:
        assert vmi.is_valid()
        self.events.append(build_event(vmi, decision, "webhook-0", 0))

    def watch(self, *changes: tuple[str, Object]) -> None:
        """Apply these events of the watch for pods."""
        follow(self.live, self.server, "pods", *(event(kind, item) for kind, item in changes))

    def step(self, after: float = 31) -> None:
        """Run a pass that sees the stuck pods, and another pass some seconds later."""
        self.releaser.step()
        self.clock.now += after
        for each in self.live.reflectors:
            if each.health.last_contact is not None:
                each.health.last_contact = self.clock.now
        self.releaser.step()

    @property
    def deleted(self) -> list[str]:
        return [sent.path.rpartition("/")[2] for sent in self.server.requests if sent.verb == "delete"]

    @property
    def messages(self) -> list[str]:
        return [found["message"] for found in self.events]


def other_vm(number: int, **rest: Any) -> Object:
    return pinned_vm_pod(f"virt-launcher-vm{number}-abcde", vm=f"vm{number}", **rest)


def test_a_stuck_pod_is_deleted_with_its_uid_and_resource_version_and_counts_once(server: ApiServer) -> None:
    harness = Harness(server, *CORDONED, pinned_vm_pod(), virtual_machine())
    server.script("delete", "pods", body(b"no JSON"))  # the deleted pod, which nobody reads
    version = str(int(server.version) - 1)  # the VM was stored after the pod
    with capture_logs() as lines:
        harness.step()
    sent = server.last("delete", "pods")
    assert sent.path == "/api/v1/namespaces/default/pods/virt-launcher-vm1-abcde"
    assert sent.body["preconditions"] == {
        "uid": "uid-virt-launcher-vm1-abcde",
        "resourceVersion": version,
    }
    assert lines == [
        {
            "event": "released",
            "log_level": "info",
            "namespace": "default",
            "vm": "vm1",
            "pod": "virt-launcher-vm1-abcde",
            "node": "node-a",
            "reason": "NodeCordoned",
        }
    ]
    assert harness.releaser.released == {Reason.NODE_CORDONED: 1}
    assert harness.releaser.pending == {}
    [written] = harness.events
    assert (written["type"], written["reason"]) == ("Warning", "NodeCordoned")
    assert written["involvedObject"]["name"] == "vm1"
    assert "was pinned to node-a, but node-a is cordoned; the webhook deleted the Pending pod" in written["message"]
    harness.watch(("MODIFIED", pinned_vm_pod()), ("DELETED", pinned_vm_pod()))
    assert harness.live.store.released_nodes("default", "vm1") == ["node-a"]


def test_a_large_pod_is_read_without_its_large_fields(server: ApiServer) -> None:
    """1.5 MB of tolerations took the interpreter from the reviews for 20 ms."""
    harness = Harness(server, pinned_vm_pod(tolerations=[{"key": "x" * 300}] * 1000))
    (cached,) = harness.live.store.pods.values()
    found = harness.releaser._read(cached)
    assert found
    assert (found.pod.undecoded, found.spec.tolerations, bool(found.affinity)) == (True, (), True)


class WatchedSettings(Settings):
    """Settings that count how often they are read while a decision would have to wait (True), and otherwise."""

    live: ClassVar[Live]
    reads: ClassVar[Counter[bool]] = Counter()

    def __getattribute__(self, name: str) -> Any:
        if name == "longhorn_namespace":
            self.reads[self.live._lock.locked()] += 1
        return super().__getattribute__(name)


def test_no_decision_waits_while_the_release_or_the_metrics_evaluate_pods(server: ApiServer) -> None:
    """A stuck pod of a tenant may need all comparisons that a review may make, and 20 were evaluated in a row."""
    harness = Harness(server, *CORDONED, pinned_vm_pod(), virtual_machine())
    WatchedSettings.live, watched = harness.live, WatchedSettings()
    harness.releaser._settings = watched
    counts = FleetCounter(harness.live, watched, harness.clock).counts()
    assert counts
    assert (counts.vms.total(), WatchedSettings.reads) == (1, {False: 1})
    harness.step()
    assert (len(harness.deleted), WatchedSettings.reads) == (1, {False: 2})


def test_a_pass_without_waiting_pods_sends_no_request(server: ApiServer) -> None:
    harness = Harness(server, *CORDONED, BOUND, virtual_machine())
    server.requests.clear()
    harness.step(after=10 * HOUR)
    assert server.requests == []


def test_a_pinned_pod_that_no_scheduler_evaluates_is_counted_and_kept(server: ApiServer) -> None:
    harness = Harness(server, *CORDONED, pinned_vm_pod(unschedulable=False), virtual_machine())
    harness.step(after=29)
    assert harness.releaser.pending == {}
    harness.step(after=1)
    assert harness.releaser.pending == {Reason.NOT_SCHEDULED: 1}
    assert (harness.deleted, harness.events) == ([], [])
    harness.watch(("MODIFIED", BOUND))
    harness.releaser.step()
    assert harness.releaser.pending == {}


def test_a_replica_that_does_not_lead_deletes_and_reports_nothing(server: ApiServer) -> None:
    harness = Harness(server, *CORDONED, pinned_vm_pod(), virtual_machine())
    harness.leading = False
    harness.step()
    assert (harness.deleted, harness.events, harness.releaser.pending) == ([], [], {})
    harness.leading = True  # a new leader knows how long the pod has been stuck
    harness.releaser.step()
    assert len(harness.deleted) == 1


def test_leadership_is_checked_right_before_the_deletion(server: ApiServer) -> None:
    harness = Harness(server, *CORDONED, pinned_vm_pod(), virtual_machine())

    def lose_leadership(connection: Any) -> None:
        harness.leading = False
        item = pinned_vm_pod()
        item["metadata"]["resourceVersion"] = "1"
        connection.answer(200, {"metadata": {"resourceVersion": "1"}, "items": [item]})

    server.script("list", "pods", lose_leadership)
    harness.step()
    assert server.count("list", "pods") == 2
    assert (harness.deleted, harness.releaser.pending) == ([], {})


def test_a_pod_that_was_bound_since_it_was_read_is_not_deleted(server: ApiServer) -> None:
    harness = Harness(server, *CORDONED, pinned_vm_pod(), virtual_machine())
    stale = pinned_vm_pod()
    stale["metadata"]["resourceVersion"] = "1"
    server.script("list", "pods", lambda connection: connection.answer(200, {"metadata": {}, "items": [stale]}))
    with capture_logs() as lines:
        harness.step()
    assert harness.deleted == ["virt-launcher-vm1-abcde"]  # the API server answered with 409
    assert list(harness.live.store.pins.unbound())
    assert (harness.releaser.released, harness.releaser.pending, harness.events, lines) == ({}, {}, [], [])


def changed(**metadata: Any) -> Object:
    item = pinned_vm_pod()
    item["metadata"] |= metadata
    return item


BOUND = pinned_vm_pod()
BOUND["spec"]["nodeName"] = "node-a"


@pytest.mark.parametrize(
    "now",
    [
        None,
        BOUND,
        pinned_vm_pod(unschedulable=False),
        changed(uid="uid-of-another-pod"),
        changed(deletionTimestamp="2026-08-01T12:00:00Z"),
        changed(annotations={}),
    ],
    ids=["gone", "bound", "schedulable", "another pod of that name", "terminating", "no longer pinned"],
)
def test_a_pod_that_has_changed_since_the_cache_saw_it_is_not_deleted(server: ApiServer, now: Object | None) -> None:
    harness = Harness(server, *CORDONED, pinned_vm_pod(), virtual_machine())
    server.put(now) if now else server.delete(pinned_vm_pod())
    harness.step()
    assert (harness.deleted, harness.events, harness.releaser.pending) == ([], [], {})


def test_the_pods_of_a_full_node_are_released_newest_first_until_the_others_fit(server: ApiServer) -> None:
    stuck = [other_vm(n, requests={"cpu": "1"}, created=f"2026-08-01T12:00:0{n}Z") for n in range(5)]
    vms = [virtual_machine(f"vm{number}") for number in range(5)]
    harness = Harness(server, *storage(), node(allocatable={"cpu": "3", "pods": "9"}), *stuck, *vms)
    harness.step()
    assert harness.deleted == ["virt-launcher-vm4-abcde", "virt-launcher-vm3-abcde"]


def test_a_pass_examines_a_limited_number_of_pods_and_the_next_pass_continues(server: ApiServer) -> None:
    number = MAX_PODS_PER_PASS + 5
    stuck = [other_vm(n) for n in range(number)]
    vms = [virtual_machine(f"vm{n}", strategy="Manual") for n in range(number)]
    harness = Harness(server, *CORDONED, *stuck, *vms)
    harness.step()
    assert len(harness.events) == MAX_PODS_PER_PASS
    harness.releaser.step()
    assert len(harness.events) == harness.releaser.pending[Reason.NODE_CORDONED] == number


def test_a_namespace_full_of_stuck_pods_delays_no_other_namespace(server: ApiServer) -> None:
    fakes = [
        other_vm(n, namespace="noisy", created="2026-08-02T12:00:00Z") for n in range(100, 100 + 2 * MAX_PODS_PER_PASS)
    ]
    harness = Harness(server, *CORDONED, pinned_vm_pod(), *fakes, virtual_machine())
    harness.step()
    assert harness.deleted == ["virt-launcher-vm1-abcde"]


def test_copied_pins_delay_no_pod_of_their_own_namespace(server: ApiServer) -> None:
    """With 20 of them in each pass, a real pod once waited for 56 of 60 passes."""
    harness = Harness(server, *CORDONED, vmi("vm1"), pinned_vm_pod(), virtual_machine())
    for number in range(100, 100 + 2 * MAX_PODS_PER_PASS):
        harness.live.store.put(pod_fact(other_vm(number, created="2026-08-02T12:00:00Z")))
    harness.step()
    assert harness.deleted == ["virt-launcher-vm1-abcde"]
    assert sum(harness.releaser.pending.values()) == 0


def replicas(number: int) -> list[Object]:
    vmis = [vmi(f"set-{each}", owner_kind="VirtualMachineInstanceReplicaSet") for each in range(number)]
    for each in vmis:
        each["metadata"]["ownerReferences"][0] |= {"name": "set", "uid": "uid-of-the-set"}
    return vmis


def replica_pod(number: int) -> Object:
    return pinned_vm_pod(f"virt-launcher-set-{number}-abcde", vm=f"set-{number}")


def test_the_pods_of_a_replica_set_are_released_but_of_their_successors_only_two_an_hour(server: ApiServer) -> None:
    """KubeVirt replaces each VMI by one of another name. Once, only two of three pods that waited were released."""
    waiting = [replica_pod(number) for number in range(6)]
    harness = Harness(server, *CORDONED, *replicas(9), *waiting)
    harness.step()
    assert len(harness.deleted) == 6
    for number in (6, 7, 8):
        server.put(replica_pod(number))
        harness.watch(("ADDED", replica_pod(number)))
        harness.step()
        assert harness.live.store.released_nodes("default", "set-8")[0] == "node-a"
    assert harness.deleted[6:] == ["virt-launcher-set-6-abcde", "virt-launcher-set-7-abcde"]
    assert "its replica set lost 2 pinned pods within an hour" in harness.messages[-1]


def test_pods_of_a_replica_set_that_waited_do_not_displace_the_successors_that_count(server: ApiServer) -> None:
    waiting, successors = [replica_pod(number) for number in range(6)], [replica_pod(6), replica_pod(7)]
    harness = Harness(server, *CORDONED, *replicas(9), *waiting)
    harness.clock.now += 1
    first, *others, last = waiting
    added, deleted = ([(kind, each) for each in pods] for kind, pods in (("ADDED", successors), ("DELETED", others)))
    harness.watch(("DELETED", first), *added, *(("DELETED", each) for each in successors), *deleted)
    server.delete(first, *others)
    server.put(replica_pod(8))
    follow(harness.live, server, "pods")
    harness.step()
    assert harness.deleted == [last["metadata"]["name"]]
    assert harness.releaser.pending == {Reason.NODE_CORDONED: 1}


# Pods that are kept


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        ("Manual", "the VM's run strategy does not restart it"),
        ("", "the webhook found no VirtualMachine of this name"),
    ],
)
def test_a_pod_that_must_not_be_deleted_is_reported_with_what_to_do(server: ApiServer, strategy: str, why: str) -> None:
    vms = [virtual_machine(strategy=strategy)] if strategy else []
    harness = Harness(server, *CORDONED, pinned_vm_pod(), *vms)
    harness.step()
    assert harness.deleted == []
    assert harness.releaser.pending == {Reason.NODE_CORDONED: 1}
    [written] = harness.events
    assert (written["type"], written["reason"]) == ("Warning", "NodeCordoned")
    assert (
        f"pinned to node-a, but node-a is cordoned; the webhook does not delete this Pending pod, because {why}"
        in (written["message"])
    )
    assert wording.restart_advice("default", "vm1", strategy) in written["message"]
    harness.step(after=REPORT_INTERVAL - 1)
    assert len(harness.events) == 1
    harness.step(after=1)
    assert len(harness.events) == 2


def test_a_vm_is_released_at_most_twice_within_an_hour_from_all_nodes_together(server: ApiServer) -> None:
    nodes = [node(name, unschedulable=True) for name in ("node-a", "node-b", "node-c")]
    harness = Harness(server, *storage(), *nodes, virtual_machine())
    for number, name in enumerate(("node-a", "node-b", "node-c")):
        server.put(pinned_vm_pod(f"virt-launcher-vm1-{number}", name))
        follow(harness.live, server, "pods")
        harness.step()
    assert harness.deleted == ["virt-launcher-vm1-0", "virt-launcher-vm1-1"]
    assert "because the VM lost 2 pinned pods within an hour" in harness.messages[-1]
    harness.step(after=HOUR)
    assert harness.deleted[2:] == ["virt-launcher-vm1-2"]


@pytest.mark.parametrize(
    "answer",
    [error_response(forbidden("delete", "pods")), error_response(status(422, "denied by a policy"))],
    ids=["no right", "a policy"],
)
def test_a_forbidden_deletion_is_logged_once_and_the_pod_is_reported(server: ApiServer, answer: Responder) -> None:
    harness = Harness(server, *CORDONED, pinned_vm_pod(), virtual_machine())
    server.script("delete", "pods", answer, answer)
    with capture_logs() as lines:
        harness.step()
        harness.step(after=REPORT_INTERVAL - 1)
        assert len(harness.deleted) == 1
        harness.step(after=1)
    assert len(harness.deleted) == 2
    assert [line["event"] for line in lines] == ["release failed"]
    assert harness.releaser.pending == {Reason.NODE_CORDONED: 1}
    assert "because the webhook has no right to delete pods; stop the VM, and start it" in harness.messages[0]


def test_a_failed_deletion_is_tried_again_in_the_next_pass(server: ApiServer) -> None:
    harness = Harness(server, *CORDONED, pinned_vm_pod(), virtual_machine())
    server.script("delete", "pods", error_response(status(500, "no leader")))
    harness.step()
    assert (harness.releaser.released, harness.releaser.pending) == ({}, {Reason.NODE_CORDONED: 1})
    harness.releaser.step()
    assert harness.releaser.released == {Reason.NODE_CORDONED: 1}


def test_a_pod_that_can_not_be_read_does_not_affect_the_others(server: ApiServer) -> None:
    vms = [virtual_machine(f"vm{number}") for number in (1, 2, 3)]
    harness = Harness(server, *CORDONED, *[other_vm(number) for number in (1, 2, 3)], *vms)
    malformed = {"metadata": {}, "items": [other_vm(2, requests={"cpu": "1 core"})]}
    server.script("list", "pods", error_response(status(500, "no leader")), body(malformed))
    with capture_logs() as lines:
        harness.step()
    assert len(harness.deleted) == 1
    harness.releaser.step()
    assert len(harness.deleted) == 3
    assert [line["event"] for line in lines] == ["release failed", "unexpected error", "released"]


def test_no_pod_is_reported_before_the_vms_are_listed_unless_the_right_is_missing(server: ApiServer) -> None:
    harness = Harness(server, *CORDONED, pinned_vm_pod())
    health = reflector(harness.live, "virtualmachines").health
    health.last_contact = None
    harness.step()
    assert (harness.deleted, harness.events) == ([], [])
    health.code = 403
    harness.step()
    assert "because the webhook found no VirtualMachine of this name" in harness.messages[0]


# What each replica remembers


def softens(harness: Harness, node: str = "node-a") -> bool:
    return harness.live.query(lambda store: node in store.released_nodes("default", "vm1"))


def test_an_unschedulable_pod_that_goes_away_is_remembered_with_its_node_for_an_hour(server: ApiServer) -> None:
    harness = Harness(server, *CORDONED, pinned_vm_pod(), virtual_machine(uid="first"))
    harness.watch(("DELETED", pinned_vm_pod()))
    assert (softens(harness), softens(harness, "node-b")) == (True, False)
    harness.clock.now += HOUR - 1
    assert softens(harness)
    harness.clock.now += 1
    assert not softens(harness)
    second = pinned_vm_pod("virt-launcher-vm1-fghij")
    harness.watch(("ADDED", second), ("DELETED", second))
    assert softens(harness)
    server.put(virtual_machine(uid="second"))  # a VM that is created again inherits no memory
    follow(harness.live, server, "virtualmachines")
    assert harness.live.store.released_nodes("default", "vm1") == []


def test_a_pod_that_the_scheduler_never_refused_or_that_was_not_seen_to_go_is_not_remembered(server: ApiServer) -> None:
    unseen = pinned_vm_pod(unschedulable=False)
    harness = Harness(server, *CORDONED, unseen)
    harness.watch(("DELETED", unseen), ("ADDED", pinned_vm_pod()))
    assert not softens(harness)
    server.delete(unseen)
    follow(harness.live, server, "pods")  # the watch was broken, so the list lacks the pod
    assert harness.live.store.pods.find("default", "virt-launcher-vm1-abcde") is None
    assert not softens(harness)
