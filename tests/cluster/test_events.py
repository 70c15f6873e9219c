"""Events: the VM's owner is told what was decided and why, and whatever the API server does, nobody waits for it."""

import gc
import json
import threading
from dataclasses import replace
from uuid import uuid4

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tests.support.builders import (
    claim,
    decided,
    hotplug_pod,
    node,
    request,
    share_manager_pod,
    storage,
    virt_launcher,
    volume,
)
from tests.support.memory import traced
from tests.support.paths import REVIEWS
from tests.support.webhook_process import grant
from webhook.cluster.client import ClusterClient, ClusterError
from webhook.cluster.events import (
    DEADLINE,
    FAREWELL,
    PAUSE,
    QUEUED,
    REMEMBERED,
    RETRY_WAIT,
    WINDOW,
    EventRecorder,
    event_on,
    subject_of,
)
from webhook.placement import wording
from webhook.placement.decision import CLAIM_REASONS, GUARD_REASONS, ClaimFinding, Decision, Mode, Outcome, Reason
from webhook.placement.settings import is_subdomain

EVENTS = "/api/v1/namespaces/default/events"
UID = "8a409563-c3a8-4ea4-b258-c559ed8a11d5"
SECRET = "not-a-real-passphrase"
NO_ANSWER = 0
FORBIDDEN = 'events is forbidden: User "system:serviceaccount:a:b" cannot create resource "events" in API group ""'


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self):
        self.now = 1_785_585_600.25  # 2026-08-01T12:00:00.25Z

    def __call__(self):
        return self.now


class ApiServer:
    """What an API server does with events. `fails` are the codes of its next answers, `takes` the seconds of each."""

    def __init__(self, clock=None, takes=0.0):
        self.stored = {}
        self.asked = []
        self.fails = []
        self.deaf = False
        self.clock, self.reservation = clock, takes
        self.breaks = False
        self.reached = threading.Event()

    def send(self, method, path, body, timeout):
        self.asked.append((method, path, timeout))
        if self.reservation:
            self.clock.now += self.reservation
        if self.breaks:
            self.breaks = False
            raise RuntimeError(SECRET)
        code = self.fails.pop(0) if self.fails else None
        if code is None or (code == NO_ANSWER and not self.deaf):
            self._store(method, path, json.loads(json.dumps(body)))
        if code is not None:
            raise ClusterError(code, FORBIDDEN if code == 403 else "no")
        self.reached.set()
        return {}

    def _store(self, method, path, body):
        path = path if method == "PATCH" else f"{path}/{body['metadata']['name']}"
        if (path in self.stored) is not (method == "PATCH"):
            raise ClusterError(404 if method == "PATCH" else 409, "no")
        self.stored[path] = self.stored.get(path, {}) | body

    def methods(self):
        return [method for method, _, _ in self.asked]

    def counts(self):
        return [event["count"] for event in self.stored.values()]


class Owner:
    """One VM, what is decided on its pods, and the events that tell of it."""

    def __init__(self, **server):
        self.clock = Clock()
        self.server = ApiServer(self.clock, **server)
        self.events = EventRecorder(self.server.send, "webhook-0", self.clock)

    def record(self, message="pinned to node-a", uid=UID, **changed):
        self.events.record(asked(vm(uid=uid)), said(message, **changed))

    def steps(self):
        number = 0
        while self.events.step():
            number += 1
        return number

    def dropped(self):
        return dict(self.events.dropped)


def vm(name="vm1", uid=UID, **rest):
    rest["annotations"] = {"kubevirt.io/domain": name} | rest.get("annotations", {})
    rest["labels"] = {"kubevirt.io/created-by": uid} | rest.get("labels", {})
    return virt_launcher(**rest)


def asked(pod, **rest):
    return request(pod, pod["metadata"]["namespace"], **rest)


def said(message, reason=Reason.CO_SCHEDULED, **rest):
    return Decision(Outcome.PINNED, reason, message, Mode.REQUIRED, "node-a", recorded=True, **rest)


def event(decision, pod=None, instance="webhook-0", at=1_785_585_600.25, **rest):
    subject = subject_of(asked(pod or vm(), **rest), decision)
    return subject and event_on(subject, decision, instance, at)


CO_SCHEDULED = decided(vm(), *storage())
COLD_START = decided(vm(), claim(), volume())


# Who is told


def test_the_owner_of_a_vm_beside_its_storage_is_told_so():
    assert CO_SCHEDULED.reason is Reason.CO_SCHEDULED
    made = event(CO_SCHEDULED)
    assert made.pop("metadata").keys() == {"namespace", "name"}
    assert made == {
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


def test_the_pods_that_kubevirt_renders_name_their_vmi():
    review = json.loads((REVIEWS / "vm-start.json").read_bytes())
    made = event_on(subject_of(review["request"], CO_SCHEDULED), CO_SCHEDULED, "webhook-0", 0.0)
    assert (made["involvedObject"]["name"], made["involvedObject"]["uid"]) == ("vm1", UID)


def test_the_event_is_in_the_namespace_of_the_request_which_the_pod_itself_may_not_name():
    pod = vm(namespace="prod")
    del pod["metadata"]["namespace"]
    made = event_on(subject_of(request(pod, "prod"), CO_SCHEDULED), CO_SCHEDULED, "webhook-0", 0.0)
    assert made["metadata"]["namespace"] == made["involvedObject"]["namespace"] == "prod"


NOBODY = {
    "a dry run": asked(vm(), dryRun=True),
    "no name": asked(virt_launcher(labels={"kubevirt.io/created-by": UID})),
    "no uid": asked(virt_launcher(annotations={"kubevirt.io/domain": "vm1"})),
    "a name that is none": asked(vm("VM 1")),
    "a name too long": asked(vm("a" * 254)),
    "a name of another type": asked(vm(["vm1"])),
    "a uid longer than a label may be": asked(vm(uid="a" * 64)),
    "a uid of another type": asked(vm(uid=7)),
    "a namespace that leads elsewhere": asked(vm()) | {"namespace": "a/../../../apis"},
    "no pod": {"object": None},
    "nothing": {},
}


@pytest.mark.parametrize("case", NOBODY)
def test_nobody_is_told_about(case):
    assert subject_of(NOBODY[case], CO_SCHEDULED) is None


@pytest.mark.parametrize(
    "pod",
    [
        vm(opt_in=None),
        vm(labels={"kubevirt.io/migrationJobUID": "1"}),
        vm(claims=()),
        hotplug_pod(virt_launcher("vm1")),
    ],
    ids=["not opted in", "a migration target", "no claims", "a hotplug pod"],
)
def test_a_pod_that_is_none_of_ours_makes_no_event(pod):
    assert event(decided(pod, *storage()), pod) is None


def test_a_share_manager_pod_makes_no_event_though_its_decision_is_recorded():
    consumer = virt_launcher("vm1", node="node-a")
    pod = share_manager_pod()
    decision = decided(pod, claim(), volume(), consumer)
    assert decision.recorded
    assert event(decision, pod) is None


# What they are told


def test_the_advice_says_what_to_do_and_the_type_that_somebody_can():
    made = event(decided(vm(), *storage(), node(unschedulable=True)))
    assert (made["type"], made["reason"]) == ("Warning", "NodeCordoned")
    sentence, advice = made["message"].split("; it is preferred, not required. ")
    assert sentence.startswith("node-a serves claim disk1, but ")
    assert advice == wording.ADVICE[Reason.NODE_CORDONED]


def test_a_cold_start_is_normal_life():
    made = event(COLD_START)
    assert (made["type"], made["reason"]) == ("Normal", "NoShareManager")
    assert made["message"] == f"{COLD_START.message}. {wording.ADVICE[Reason.NO_SHARE_MANAGER]}"


def test_claims_that_never_have_a_share_manager_are_a_warning_with_the_advice_of_each():
    pod = vm(claims=["disk1", "disk2", "disk3"])
    made = event(decided(pod, claim("disk1", modes=["ReadWriteOnce"]), claim("disk3", modes=["ReadWriteOnce"])), pod)
    assert (made["type"], made["reason"]) == ("Warning", "NoShareManager")
    advice = [wording.ADVICE[Reason.CLAIM_NOT_RWX], wording.ADVICE[Reason.CLAIM_NOT_FOUND]]
    assert made["message"].endswith(". " + " ".join(advice))


@pytest.mark.parametrize("reason", GUARD_REASONS)
def test_whatever_the_guard_refuses_is_a_warning(reason):
    assert event(said("node-a serves claim disk1, but", reason))["type"] == "Warning"


def test_a_vm_beside_most_of_its_storage_is_no_warning():
    pod = vm(claims=["disk1", "disk2"])
    decision = decided(pod, *storage("disk1"), *storage("disk2", "node-b"))
    assert decision.conflict
    assert event(decision, pod)["type"] == "Normal"


def test_nothing_else_of_the_pod_is_in_an_event():
    pod = vm(labels={"a": SECRET}, annotations={"b": SECRET}, serviceAccountName=SECRET, tolerations=[{"key": SECRET}])
    pod["spec"]["containers"][0] |= {"image": SECRET, "env": [{"name": "PASSPHRASE", "value": SECRET}]}
    for found in (storage(), [*storage(), node(unschedulable=True)], []):
        assert SECRET not in json.dumps(event(decided(pod, *found), pod))


# Limits

TEXT = st.text(max_size=1500)


@example("half of a character: \ud83d", Reason.NODE_FULL)
@example("ü" * 1500, Reason.CO_SCHEDULED)
@given(TEXT, st.sampled_from([Reason.CO_SCHEDULED, *GUARD_REASONS]))
def test_no_message_is_too_long_and_none_loses_its_advice(sentence, reason):
    message = event(said(sentence, reason))["message"]
    assert len(message.encode()) <= 1024
    assert reason is Reason.CO_SCHEDULED or message.endswith(f" {wording.ADVICE[reason]}")


def test_there_is_room_for_the_sentence_even_beside_all_advice_about_claims():
    claims = tuple(ClaimFinding(f"disk{reason}", reason=reason) for reason in sorted(CLAIM_REASONS))
    made = event(said("no claim has a node: " + "x" * 5000, Reason.NO_SHARE_MANAGER, claims=claims))
    assert len(made["message"]) == 1024
    assert made["message"].startswith("no claim has a node: ")


def test_a_reason_is_never_too_long():
    assert max(map(len, Reason)) <= 128


LABEL = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)


@given(st.lists(LABEL, min_size=1, max_size=5).map(".".join).filter(is_subdomain))
def test_the_name_of_an_event_is_a_subdomain_that_begins_like_the_vmi(vmi):
    name = event(CO_SCHEDULED, vm(vmi))["metadata"]["name"]
    stem, _, number = name.rpartition(".")
    assert is_subdomain(name)
    assert vmi.startswith(stem)
    assert int(number, 16) >= 0


@pytest.mark.parametrize("vmi", ["a" * 235 + "-" + "b" * 17, "a" * 235 + "." + "b" * 17])
def test_a_name_is_not_cut_where_it_would_not_be_one(vmi):
    assert is_subdomain(event(CO_SCHEDULED, vm(vmi))["metadata"]["name"])


def test_two_events_never_have_the_same_name():
    assert len({event(CO_SCHEDULED)["metadata"]["name"] for _ in range(1000)}) == 1000


def test_a_long_host_name_is_cut():
    assert event(CO_SCHEDULED, instance="a" * 253)["reportingInstance"] == "a" * 128


# Telling it


def test_nothing_is_written_on_the_requests_thread():
    owner = Owner()
    owner.record()
    assert owner.server.asked == []
    assert owner.events.step()
    assert [(method, path) for method, path, _ in owner.server.asked] == [("POST", EVENTS)]
    assert not owner.events.step()


def test_each_write_has_a_short_deadline():
    owner = Owner()
    owner.record("first")
    owner.record("second")
    assert owner.steps() == 2
    assert [timeout for _, _, timeout in owner.server.asked] == [DEADLINE] * 2


def test_a_dry_run_writes_nothing():
    owner = Owner()
    owner.events.record(asked(vm(), dryRun=True), CO_SCHEDULED)
    assert owner.steps() == 0


def test_the_thousandth_is_dropped_and_counted_while_nobody_writes():
    owner = Owner()
    with capture_logs() as lines:
        for number in range(1000):
            owner.record(f"decision {number}")
    assert owner.dropped() == {"full": 1000 - QUEUED, "failed": 0}
    assert lines == []
    assert owner.steps() == QUEUED


def test_a_full_queue_takes_little_memory_however_large_the_pods_are():
    owner = Owner()
    with traced(__file__) as taken:
        for number in range(1000):
            owner.events.record(asked(vm(annotations={"large": "x" * 100_000})), said(f"{number} " * 10_000))
        gc.collect()
        assert taken() < QUEUED * 4096


class Broken:
    """A decision that can't be read, and says what was in it."""

    @property
    def recorded(self):
        raise RuntimeError(SECRET)


def test_a_surprise_is_counted_and_logged_and_never_reaches_the_request():
    owner = Owner()
    with capture_logs() as lines:
        owner.events.record(asked(vm()), Broken())
    assert owner.dropped() == {"full": 0, "failed": 1}
    assert [(line["event"], line["log_level"]) for line in lines] == [("an event failed", "error")]


# Told again


def test_the_same_again_raises_the_count_of_the_event():
    owner = Owner()
    for later in (0, 60, 120):
        owner.clock.now += later
        owner.record()
        owner.steps()
    assert owner.server.methods() == ["POST", "PATCH", "PATCH"]
    [made] = owner.server.stored.values()
    assert made["count"] == 3
    assert (made["firstTimestamp"], made["lastTimestamp"]) == ("2026-08-01T12:00:00Z", "2026-08-01T12:03:00Z")


def test_the_same_many_times_a_second_is_one_write_a_second_and_none_is_lost():
    owner = Owner()
    for _ in range(30):
        owner.record()
        owner.steps()
        owner.clock.now += 0.1
    assert len(owner.server.methods()) in (3, 4)  # of tenths of a second, some are a little longer
    owner.clock.now += PAUSE
    owner.steps()
    assert owner.server.counts() == [30]
    assert owner.steps() == 0


def test_what_is_held_back_is_written_before_the_end():
    owner, stop = Owner(), threading.Event()
    for _ in range(3):
        owner.record()
        owner.steps()
    assert owner.server.counts() == [1]
    stop.set()
    owner.events.run(stop)
    assert owner.server.counts() == [3]
    assert owner.dropped() == {"full": 0, "failed": 0}


def test_what_is_held_back_and_can_not_be_written_is_counted_each_time():
    owner = Owner()
    owner.server.fails = [None, 403]
    for _ in range(3):
        owner.record()
        owner.steps()
    owner.clock.now += PAUSE
    owner.steps()
    assert owner.dropped() == {"full": 0, "failed": 2}


@pytest.mark.parametrize(("later", "counts"), [(WINDOW - 1, [2]), (WINDOW, [1, 1])])
def test_after_ten_minutes_it_is_a_new_event(later, counts):
    owner = Owner()
    owner.record()
    owner.steps()
    owner.clock.now += later
    owner.record()
    owner.steps()
    assert owner.server.counts() == counts


def test_the_ten_minutes_begin_anew_each_time():
    owner = Owner()
    for _ in range(5):
        owner.record()
        owner.steps()
        owner.clock.now += WINDOW - 1
    assert owner.server.counts() == [5]


@pytest.mark.parametrize(
    "other",
    [
        {"message": "pinned to node-b"},
        {"reason": Reason.NODE_FULL},
        {"uid": "another-uid"},
    ],
    ids=["another message", "another reason", "another VMI"],
)
def test_what_differs_is_an_event_of_its_own(other):
    owner = Owner()
    owner.record()
    owner.record(**other)
    owner.steps()
    assert owner.server.counts() == [1, 1]


def test_a_uid_copied_into_another_namespace_does_not_raise_the_count_there():
    owner = Owner()
    for namespace in ("default", "mine"):
        owner.events.record(asked(vm(namespace=namespace)), CO_SCHEDULED)
    owner.steps()
    assert owner.server.counts() == [1, 1]


def test_an_event_that_the_api_server_has_forgotten_is_written_anew():
    owner = Owner()
    owner.record()
    owner.steps()
    owner.server.stored.clear()
    for _ in range(2):
        owner.clock.now += PAUSE
        owner.record()
        owner.steps()
    assert owner.server.methods() == ["POST", "PATCH", "POST", "PATCH"]
    assert owner.server.counts() == [2]
    assert owner.dropped() == {"full": 0, "failed": 0}


def test_of_many_events_those_told_last_are_remembered():
    owner = Owner()
    for number in range(REMEMBERED + 1):
        owner.record(f"decision {number}")
        owner.record("decision 0")  # all the time
        owner.steps()
        owner.clock.now += PAUSE
    assert owner.server.methods().count("POST") == REMEMBERED + 1
    owner.server.asked.clear()
    for number in (0, 1, REMEMBERED):
        owner.record(f"decision {number}")
    owner.steps()
    assert owner.server.methods() == ["PATCH", "POST", "PATCH"]


# An API server that is slow, or refuses


@pytest.mark.parametrize("code", [500, 503, 429, NO_ANSWER])
def test_what_may_pass_is_tried_once_more(code):
    owner = Owner()
    owner.server.fails = [code]
    owner.record()
    assert owner.steps() == 2
    assert owner.server.counts() == [1]
    assert owner.dropped() == {"full": 0, "failed": 0}


@pytest.mark.parametrize("code", [500, 503, 429, NO_ANSWER])
def test_and_no_oftener(code):
    owner = Owner()
    owner.server.deaf = True
    owner.server.fails = [code] * 2
    owner.record("first")
    owner.record("second")
    assert owner.steps() == 3
    assert [made["message"] for made in owner.server.stored.values()] == ["second."]
    assert owner.dropped() == {"full": 0, "failed": 1}


@pytest.mark.parametrize("code", [400, 401, 403, 404, 422])
def test_what_will_not_pass_is_tried_once(code):
    owner = Owner()
    owner.server.fails = [code]
    owner.record()
    assert owner.steps() == 1
    assert owner.dropped() == {"full": 0, "failed": 1}


def test_a_write_without_an_answer_that_was_heard_makes_no_second_event():
    owner = Owner()
    owner.server.fails = [NO_ANSWER, None, NO_ANSWER]
    owner.record()
    owner.steps()
    owner.clock.now += PAUSE
    owner.record()
    owner.steps()
    assert owner.server.methods() == ["POST", "POST", "PATCH", "PATCH"]
    assert owner.server.counts() == [2]
    assert owner.dropped() == {"full": 0, "failed": 0}


def test_a_missing_right_is_named_once_and_counted_each_time():
    owner = Owner()
    owner.server.fails = [403, 403, None, 403, 403]
    with capture_logs() as lines:
        for _ in range(5):
            owner.clock.now += PAUSE
            owner.record()
            owner.steps()
    assert [(line["method"], line["code"], line["error"]) for line in lines] == [
        ("POST", 403, FORBIDDEN),
        ("PATCH", 403, FORBIDDEN),
    ]
    assert owner.dropped() == {"full": 0, "failed": 4}


def test_an_event_after_one_that_failed_is_written():
    owner = Owner()
    owner.server.fails = [422]
    owner.record("first")
    owner.record("second")
    assert owner.steps() == 2
    assert owner.server.counts() == [1]


def test_a_sender_that_breaks_does_not_end_the_thread():
    owner = Owner()
    owner.server.breaks = True
    owner.record("first")
    owner.record("second")
    with capture_logs() as lines:
        assert owner.steps() == 2
    assert owner.server.counts() == [1]
    assert owner.dropped() == {"full": 0, "failed": 1}
    assert lines[-1]["event"] == "an event failed"


# The thread, and its end


class Stop(threading.Event):
    """Is told to stop as soon as somebody waits, and keeps for how long."""

    def __init__(self):
        super().__init__()
        self.waits = []

    def wait(self, timeout=None):
        self.waits.append(timeout)
        self.set()
        return True


@pytest.mark.parametrize(("fails", "waits"), [([], 0), ([503], RETRY_WAIT)])
def test_between_two_tries_it_waits_and_between_two_events_not(fails, waits):
    owner, stop = Owner(), Stop()
    owner.server.fails = fails
    owner.record()
    owner.events.run(stop)
    assert stop.waits == [waits]
    assert owner.server.counts() == [1]


def stopped():
    """An event that was set before anybody looked."""
    stop = threading.Event()
    stop.set()
    return stop


def test_what_is_queued_at_the_end_is_still_written():
    owner = Owner()
    for number in range(QUEUED):
        owner.record(f"decision {number}")
    owner.events.run(stopped())
    assert len(owner.server.stored) == QUEUED
    assert owner.dropped() == {"full": 0, "failed": 0}


def test_after_a_second_what_is_left_is_given_up_counted_and_told():
    owner = Owner(takes=0.3)
    for number in range(10):
        owner.record(f"decision {number}")
    before = owner.clock.now
    with capture_logs() as lines:
        owner.events.run(stopped())
    assert owner.clock.now - before == pytest.approx(1.2)  # the last write began in time
    assert [timeout for _, _, timeout in owner.server.asked] == pytest.approx([1.0, 0.7, 0.4, 0.1], abs=1e-6)
    assert owner.dropped() == {"full": 0, "failed": 6}
    assert lines == [{"event": "given up", "log_level": "warning", "resource": "events", "number": 6}]


def test_what_waits_for_its_second_try_at_the_end_counts_as_well():
    owner = Owner(takes=FAREWELL)
    owner.server.fails = [503]
    owner.record()
    owner.events.run(stopped())
    assert owner.dropped() == {"full": 0, "failed": 1}


def test_the_thread_writes_and_ends_in_time():
    owner, stop = Owner(), threading.Event()
    thread = owner.events.start(stop)
    assert thread.daemon
    owner.record()
    assert owner.server.reached.wait(20)
    stop.set()
    thread.join(20)  # a hundred times what it takes; for how long it may go on, the clocks above tell
    assert not thread.is_alive()


def test_many_threads_tell_and_nothing_is_lost_from_sight():
    owner = Owner()
    threads = [threading.Thread(target=lambda: [owner.record(f"{n}") for n in range(500)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert owner.steps() == 500
    assert owner.server.counts() == [8] * 500


def test_what_comes_again_while_nobody_writes_takes_no_more_place():
    owner = Owner()
    for _ in range(2 * QUEUED):
        owner.record()
    assert owner.dropped() == {"full": 0, "failed": 0}
    assert owner.steps() == 1
    assert owner.server.counts() == [2 * QUEUED]


# The real API server


def connected(plane, tmp_path, *verbs):
    """A Cluster that may do this with events and nothing else."""
    token = grant(plane, f"events-{uuid4().hex[:8]}", (("", "events", verbs),))
    return ClusterClient.connect(str(plane.write_kubeconfig(tmp_path / "kubeconfig", token)))


@pytest.mark.controlplane
def test_on_a_real_api_server_describe_finds_the_event_and_the_second_one_raises_its_count(plane, tmp_path):
    namespace, uid = plane.create_namespace(f"events-{uuid4().hex[:8]}"), str(uuid4())
    clock = Clock()
    events = EventRecorder(connected(plane, tmp_path, "create", "patch").send, "webhook-0", clock)
    pod = vm("a" * 240 + ".vm1", uid, namespace=namespace)
    refused = decided(pod, claim(namespace=namespace), volume(namespace=namespace), share_manager_pod(node="node-a"))
    for decision in (refused, refused, replace(refused, reason=Reason.NODE_FULL, message="ü" * 2000)):
        events.record(asked(pod), decision)
        assert events.step()
        clock.now += 60
    # What `kubectl describe` asks for.
    about = {"kind": "VirtualMachineInstance", "namespace": namespace, "name": "a" * 240 + ".vm1", "uid": uid}
    selector = ",".join(f"involvedObject.{key}={value}" for key, value in about.items())
    found = json.loads(plane.kubectl("get", "events", "-n", namespace, "--field-selector", selector, "-o", "json"))
    told, long = sorted(found["items"], key=lambda made: made["firstTimestamp"])
    assert (told["reason"], told["count"]) == ("CoScheduled", 2)
    assert (told["firstTimestamp"], told["lastTimestamp"]) == ("2026-08-01T12:00:00Z", "2026-08-01T12:01:00Z")
    assert (long["reason"], long["type"], long["count"]) == ("NodeFull", "Warning", 1)
    assert len(long["message"].encode()) in (1023, 1024)
    assert dict(events.dropped) == {"full": 0, "failed": 0}


@pytest.mark.controlplane
def test_on_a_real_api_server_an_event_deleted_meanwhile_is_written_anew(plane, tmp_path):
    namespace = plane.create_namespace(f"events-{uuid4().hex[:8]}")
    path = f"/api/v1/namespaces/{namespace}/events"
    clock = Clock()
    events = EventRecorder(connected(plane, tmp_path, "create", "patch").send, "webhook-0", clock)
    pod = vm(namespace=namespace)
    events.record(asked(pod), CO_SCHEDULED)
    events.step()
    plane.request("DELETE", path)
    clock.now += PAUSE
    events.record(asked(pod), CO_SCHEDULED)
    events.step()
    [made] = plane.request("GET", path)["items"]
    assert (made["count"], events.dropped["failed"]) == (1, 0)


@pytest.mark.controlplane
@pytest.mark.parametrize(("granted", "missing"), [("patch", "create"), ("create", "patch")])
def test_on_a_real_api_server_the_missing_right_is_named(plane, tmp_path, granted, missing):
    namespace = plane.create_namespace(f"events-{uuid4().hex[:8]}")
    clock = Clock()
    events = EventRecorder(connected(plane, tmp_path, granted).send, "webhook-0", clock)
    with capture_logs() as lines:
        for _ in range(2):
            clock.now += PAUSE
            events.record(asked(vm(namespace=namespace)), CO_SCHEDULED)
            events.step()
    [line] = lines
    assert f'cannot {missing} resource "events"' in line["error"]
    assert "system:serviceaccount:" in line["error"]
