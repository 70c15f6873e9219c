"""Tests of EventRecorder: content, aggregation, errors and shutdown. A slow API server never delays a request."""

import gc
import json
import threading
from uuid import uuid4

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.cluster.stop_event import StopAfterWaits
from tests.support.builders import (
    claim,
    decision_for,
    node,
    share_manager,
    share_manager_pod,
    storage,
    virt_launcher,
    volume,
)
from tests.support.fake_clock import FakeClock
from tests.support.log_capture import capture_logs
from tests.support.memory import traced_memory
from tests.support.webhook_process import create_service_account
from webhook.cluster.client import ClusterClient
from webhook.cluster.credentials import ClusterError
from webhook.cluster.events import (
    MAX_QUEUED,
    WRITE_TIMEOUT,
    WRITES_PER_SECOND,
    EventRecorder,
    Vmi,
    build_event,
)
from webhook.placement import wording
from webhook.placement.guard.feasibility import GUARD_REASONS
from webhook.placement.objects.fields import is_dns_subdomain
from webhook.placement.reasons import ClaimFinding, Decision, Mode, Outcome, Reason

EVENTS = "/api/v1/namespaces/default/events"
UID = "8a409563-c3a8-4ea4-b258-c559ed8a11d5"
SECRET = "not-a-real-passphrase"
FORBIDDEN = 'events is forbidden: User "system:serviceaccount:a:b" cannot create resource "events" in API group ""'


START = 1_785_585_600.25  # 2026-08-01T12:00:00.25Z


class StubApiServer:
    """A stub of the events API.

    `next_errors` are raised by its next responses, None for success. `latency` is the seconds of each.
    """

    def __init__(self, clock, latency=0.0):
        self.stored, self.requests, self.next_errors = [], [], []
        self.clock, self.latency = clock, latency

    def send(self, method, path, body, timeout):
        self.requests.append((method, path, timeout))
        self.clock.now += self.latency
        if self.next_errors and (error := self.next_errors.pop(0)):
            raise error
        self.stored.append(json.loads(json.dumps(body)))
        return {}

    def counts(self):
        return [stored["count"] for stored in self.stored]


class Harness:
    """An EventRecorder with a stub API server and a manual clock."""

    def __init__(self, **server):
        self.clock = FakeClock(START)
        self.server = StubApiServer(self.clock, **server)
        self.recorder = EventRecorder(self.server.send, "webhook-0", self.clock)

    def record(self, message="pinned to node-a", uid=UID, namespace="default", **changed):
        self.recorder.record(Vmi(namespace, "vm1", uid), make_decision(message, **changed))

    def run_steps(self):
        number = 0
        while self.recorder.step():
            number += 1
        return number

    def dropped(self):
        return dict(self.recorder.dropped)


def vm(name="vm1", uid=UID, **rest):
    rest["annotations"] = {"kubevirt.io/domain": name} | rest.get("annotations", {})
    rest["labels"] = {"kubevirt.io/created-by": uid} | rest.get("labels", {})
    return virt_launcher(**rest)


def make_decision(message, reason=Reason.CO_SCHEDULED, **rest):
    return Decision(Outcome.PINNED, reason, message, Mode.REQUIRED, "node-a", recorded=True, **rest)


def event_for(decision, name="vm1"):
    return build_event(Vmi("default", name, UID), decision, "webhook-0", START)


CO_SCHEDULED = decision_for(vm(), *storage())
COLD_START = decision_for(vm(), claim(), volume())


# The VMI that an Event refers to


def test_a_co_scheduled_vm_gets_a_normal_event():
    assert CO_SCHEDULED.reason is Reason.CO_SCHEDULED
    event = event_for(CO_SCHEDULED)
    assert event.pop("metadata").keys() == {"namespace", "name"}
    assert event == {
        "involvedObject": {
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachineInstance",
            "namespace": "default",
            "name": "vm1",
            "uid": UID,
        },
        "type": "Normal",
        "reason": "CoScheduled",
        "message": "pinned to node-a, which serves claim disk1.",
        "source": {"component": "kubevirt-scheduler"},
        "reportingComponent": "kubevirt-scheduler",
        "reportingInstance": "webhook-0",
        "count": 1,
        "firstTimestamp": "2026-08-01T12:00:00Z",
        "lastTimestamp": "2026-08-01T12:00:00Z",
    }


NO_VMIS = {
    "no VMI name": Vmi("default", "", UID),
    "no VMI UID": Vmi("default", "vm1", ""),
    "an invalid name": Vmi("default", "VM 1", UID),
    "a name too long": Vmi("default", "a" * 254, UID),
    "a UID over the label length limit": Vmi("default", "vm1", "a" * 64),
    "a namespace with path traversal": Vmi("a/../../../apis", "vm1", UID),
}


@pytest.mark.parametrize("case", NO_VMIS)
def test_a_vmi_that_cannot_exist_gets_no_event(case):
    harness = Harness()
    harness.recorder.record(NO_VMIS[case], CO_SCHEDULED)
    assert not harness.recorder.step()


# Type, reason and message


def test_a_cordoned_node_gives_a_warning_with_advice():
    event = event_for(decision_for(vm(), *storage(), node(unschedulable=True)))
    assert (event["type"], event["reason"]) == ("Warning", "NodeCordoned")
    sentence, advice = event["message"].split(", so it is preferred instead of required. ")
    assert sentence.startswith("node-a serves claim disk1 but ")
    assert advice == wording.ADVICE[Reason.NODE_CORDONED].text


def test_a_cold_start_gives_a_normal_event_without_advice_unless_another_claim_has_a_problem():
    event = event_for(COLD_START)
    assert (event["type"], event["reason"]) == ("Normal", "ColdStart")
    words = "the VM starts on any node, and the share-manager of claim disk1, which was never created, follows it"
    assert event["message"] == f"{words} if it can run there."
    pod = vm(claims=["disk1", "disk2"])
    event = event_for(decision_for(pod, claim(), claim("disk2", volume="")))
    assert (event["type"], event["reason"]) == ("Normal", "ColdStart")
    assert event["message"].endswith(f"(ClaimNotBound). {wording.ADVICE[Reason.CLAIM_NOT_BOUND]}")
    # In each replacement of a share-manager, its state is `error` for a moment.
    event = event_for(decision_for(vm(), claim(), share_manager("pvc-disk1", state="error")))
    assert (event["type"], "No action" in event["message"]) == ("Normal", False)


def test_an_event_contains_no_other_pod_fields():
    pod = vm(labels={"a": SECRET}, annotations={"b": SECRET}, serviceAccountName=SECRET, tolerations=[{"key": SECRET}])
    pod["spec"]["containers"][0] |= {"image": SECRET, "env": [{"name": "PASSPHRASE", "value": SECRET}]}
    for found in (storage(), [*storage(), node(unschedulable=True)], []):
        assert SECRET not in json.dumps(event_for(decision_for(pod, *found)))


# Size limits

TEXT = st.text(max_size=1500)


@example("half of a character: \ud83d", Reason.NODE_FULL)
@example("ü" * 1500, Reason.CO_SCHEDULED)
@given(TEXT, st.sampled_from([Reason.CO_SCHEDULED, *GUARD_REASONS]))
def test_a_message_has_at_most_1024_bytes_and_retains_its_advice(sentence, reason):
    message = event_for(make_decision(sentence, reason))["message"]
    assert len(message.encode()) <= 1024
    assert reason is Reason.CO_SCHEDULED or message.endswith(f" {wording.ADVICE[reason]}")


DNS_LABEL = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)


@example("a" * 235 + "-" + "b" * 17)
@given(st.lists(DNS_LABEL, min_size=1, max_size=5).map(".".join).filter(is_dns_subdomain))
def test_an_event_name_is_a_valid_subdomain_that_starts_with_the_vmi_name(vmi):
    name = event_for(CO_SCHEDULED, vmi)["metadata"]["name"]
    stem, _, number = name.rpartition(".")
    assert is_dns_subdomain(name)
    assert vmi.startswith(stem)
    assert int(number, 16) >= 0


# The queue


def test_record_only_queues_the_event():
    harness = Harness()
    harness.record()
    assert harness.server.requests == []
    assert harness.recorder.step()
    assert harness.server.requests == [("POST", EVENTS, WRITE_TIMEOUT)]
    assert not harness.recorder.step()


def test_a_full_queue_drops_and_counts_further_events():
    harness = Harness()
    with capture_logs() as lines:
        for number in range(1000):
            harness.record(f"decision {number}")
    assert harness.dropped() == {"full": 1000 - MAX_QUEUED, "failed": 0}
    assert lines == []
    assert harness.run_steps() == MAX_QUEUED


def test_a_flood_of_events_is_written_at_a_limited_rate():
    """Made-up reviews could fill etcd: the API server keeps each Event for an hour."""
    harness, flood = Harness(), 0
    harness.clock.now += 3600  # a quiet hour saves up nothing
    for second in range(1, 11):
        for _ in range(100):
            flood += 1
            harness.record(uid=f"made-up-{flood}")
        harness.run_steps()
        assert len(harness.server.stored) <= MAX_QUEUED + WRITES_PER_SECOND * second
        harness.clock.now += 1
    assert len(harness.server.stored) + len(harness.recorder._queue) + harness.dropped()["full"] == flood


LONG = "x" * 20_000
LARGE_DECISIONS = {
    "message": lambda number: make_decision(f"{number} " * 10_000),
    "claims": lambda number: make_decision(f"{number}", claims=(ClaimFinding(f"{LONG}{number}"),)),
    "reservation": lambda number: decision_for(vm(labels={"label": f"{LONG}{number}"}), *storage(), node()),
}


@pytest.mark.parametrize("large", LARGE_DECISIONS.values(), ids=LARGE_DECISIONS)
def test_a_queued_event_uses_little_memory_even_for_a_large_pod(large):
    """A queued decision once kept the facts of its pod: 110 large pods took 200 MB."""
    harness = Harness()
    with traced_memory(__file__) as used_bytes:
        for number in range(60):
            harness.recorder.record(Vmi("default", "vm1", f"uid-{number}"), large(number))
        gc.collect()
        assert used_bytes() < 60 * 4096


# Repeated decisions


@pytest.mark.parametrize(
    "difference",
    [
        {"message": "pinned to node-b"},
        {"reason": Reason.NODE_FULL},
        {"uid": "another-uid"},
        {"namespace": "mine"},
    ],
    ids=["another message", "another reason", "another VMI", "a UID copied to another namespace"],
)
def test_a_different_message_reason_or_vmi_creates_a_separate_event(difference):
    harness = Harness()
    harness.record()
    harness.record(**difference)
    harness.run_steps()
    assert harness.server.counts() == [1, 1]


# Errors


def test_a_missing_permission_is_logged_once_and_counted_each_time():
    harness = Harness()
    missing, failed = ClusterError(403, FORBIDDEN), ClusterError(503, "no")
    harness.server.next_errors = [missing, missing, None, missing, failed]
    with capture_logs() as lines:
        for _ in range(5):
            harness.record()
            harness.run_steps()
    assert [(line["code"], line["error"]) for line in lines] == [(403, FORBIDDEN), (503, "no")]
    assert harness.dropped() == {"full": 0, "failed": 4}


def test_an_unexpected_error_is_counted_and_logged_and_does_not_stop_later_writes():
    harness = Harness()
    harness.server.next_errors = [RuntimeError(SECRET)]
    with capture_logs() as lines:
        harness.recorder.record(Vmi("default", "vm1", UID), None)
        harness.record("first")
        harness.record("second")
        assert harness.run_steps() == 2
    assert harness.server.counts() == [1]
    assert harness.dropped() == {"full": 0, "failed": 2}
    assert [(line["event"], line["log_level"]) for line in lines] == [("unexpected error, event dropped", "error")] * 2


# The writer thread and its shutdown


def test_a_vm_that_is_reviewed_again_and_again_gets_one_event_a_second_with_their_number():
    harness, stop = Harness(), StopAfterWaits(4)
    write = harness.recorder._send

    def send(*arguments):
        if not stop.is_set():
            harness.record()
        return write(*arguments)

    harness.recorder._send = send
    harness.record()
    harness.record()
    harness.recorder.run(stop)
    assert (sum(stop.waits), harness.server.counts()) == (4.0, [2, 1, 1, 1])  # the last one at the shutdown


def already_stopped():
    """A stop event that is already set."""
    stop = threading.Event()
    stop.set()
    return stop


def test_events_left_after_a_second_of_shutdown_are_dropped_counted_and_logged():
    harness = Harness(latency=0.3)
    harness.server.next_errors = [None, None, None, ClusterError(503, "no")]
    for number in range(10):
        harness.record(f"decision {number}")
    before = harness.clock.now
    with capture_logs() as lines:
        harness.recorder.run(already_stopped())
    assert harness.clock.now - before == pytest.approx(1.2)  # the last write starts within the second
    assert harness.dropped() == {"full": 0, "failed": 7}
    assert lines[1:] == [
        {"event": "events dropped at shutdown", "log_level": "warning", "resource": "events", "number": 6}
    ]


# A real API server


def client_with_verbs(plane, tmp_path, *verbs):
    """A ClusterClient whose ServiceAccount may use only these verbs on events."""
    token = create_service_account(plane, f"events-{uuid4().hex[:8]}", (("", "events", verbs),))
    return ClusterClient.connect(str(plane.write_kubeconfig(tmp_path / "kubeconfig", token)))


@pytest.mark.controlplane
def test_on_a_real_api_server_describe_finds_the_events(plane, tmp_path):
    namespace, uid = plane.create_namespace(f"events-{uuid4().hex[:8]}"), str(uuid4())
    clock = FakeClock(START)
    recorder = EventRecorder(client_with_verbs(plane, tmp_path, "create").send, "webhook-0", clock)
    name = "a" * 240 + ".vm1"
    pod = vm(name, uid, namespace=namespace)
    co_scheduled = decision_for(
        pod, claim(namespace=namespace), volume(namespace=namespace), share_manager_pod(node="node-a")
    )
    for decision in (co_scheduled, replace(co_scheduled, reason=Reason.NODE_FULL, message="ü" * 2000)):
        recorder.record(Vmi(namespace, name, uid), decision)
        recorder.record(Vmi(namespace, name, uid), decision)
        assert recorder.step()
        clock.now += 60
    # `kubectl describe` uses these field selectors.
    about = {"kind": "VirtualMachineInstance", "namespace": namespace, "name": name, "uid": uid}
    selector = ",".join(f"involvedObject.{key}={value}" for key, value in about.items())
    found = json.loads(plane.kubectl("get", "events", "-n", namespace, "--field-selector", selector, "-o", "json"))
    short, long = sorted(found["items"], key=lambda event: event["firstTimestamp"])
    assert (short["reason"], short["count"], short["lastTimestamp"]) == ("CoScheduled", 2, "2026-08-01T12:00:00Z")
    assert (long["reason"], long["type"], long["count"]) == ("NodeFull", "Warning", 2)
    assert len(long["message"].encode()) in (1023, 1024)
    assert dict(recorder.dropped) == {"full": 0, "failed": 0}
