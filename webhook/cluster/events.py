"""Tell the VM's owner what was decided and why, by an Event about the VMI; nothing else here writes to the cluster."""

import secrets
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import structlog

from webhook.cluster.client import ClusterError
from webhook.placement import wording
from webhook.placement.decision import ClaimFinding, Decision, Reason
from webhook.placement.injector import namespace_of
from webhook.placement.settings import is_subdomain
from webhook.placement.shape import JsonObject, mapping, text

COMPONENT = "kubevirt-scheduler"
QUEUED, REMEMBERED = 512, 1024  # events; one takes 2 KiB
# Seconds: in which the same again raises an event's count; of one write; before its second try, as long as a busy API
# server asks for (`Retry-After: 1`); for what is still queued at the end; until the thread notices its end.
WINDOW, DEADLINE, RETRY_WAIT, FAREWELL, TICK = 600.0, 2.0, 1.0, 1.0, 0.2
PAUSE = 1.0  # seconds between two writes about the same: no VM starts oftener, and the API server is spared a storm
# Limits: https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/apis/core/validation/events.go
MESSAGE_SIZE, NAME_LENGTH, INSTANCE_LENGTH, UID_LENGTH = 1024, 253, 128, 63

CLAIMS = 16  # more than a VM has disks

log = structlog.get_logger("webhook.events")


class Subject(NamedTuple):
    """The VMI that an Event is about. Not the uid alone: anybody can write a label in a namespace of his own."""

    namespace: str
    name: str
    uid: str


Topic = tuple[Subject, Reason, str]  # what makes two events the same: whom it is about, the reason, the sentence
Writing = tuple[Topic, JsonObject, int]  # an event, and of how many decisions it tells
NEVER = ("", 0, float("-inf"))  # name, count and time of an event that is not there


class Told(NamedTuple):
    """What is to be written of a topic: what was decided, when it was told last, and how often."""

    decision: Decision
    at: float
    times: int


def subject_of(request: JsonObject, decision: Decision) -> Subject | None:
    """Return whom a decision is about; None for a dry run, and for what concerns no opted-in VM."""
    metadata, namespace = mapping(request, "object", "metadata"), namespace_of(request)
    vmi = text(mapping(metadata, "annotations"), "kubevirt.io/domain")
    uid = text(mapping(metadata, "labels"), "kubevirt.io/created-by")
    # Nobody has validated the pod yet: its fields may be any text of any length.
    of_a_vmi = is_subdomain(namespace) and is_subdomain(vmi) and 0 < len(uid) <= UID_LENGTH
    return Subject(namespace, vmi, uid) if of_a_vmi and decision.recorded and not request.get("dryRun") else None


def event_on(subject: Subject, decision: Decision, instance: str, at: float) -> JsonObject:
    """Return the Event that tells of a decision."""
    about = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": subject.name, "uid": subject.uid}
    suffix = f".{secrets.token_hex(8)}"
    name = subject.name[: NAME_LENGTH - len(suffix)].rstrip("-.") + suffix
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    return {
        "metadata": {"namespace": subject.namespace, "name": name},
        "involvedObject": about | {"namespace": subject.namespace},
        "type": _type(decision),
        "reason": decision.reason.value,
        "message": _message(decision),
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": instance[:INSTANCE_LENGTH],
    } | {"count": 1, "firstTimestamp": now, "lastTimestamp": now}


def _type(decision: Decision) -> str:
    # One rule of where a person can act, that of the response's warnings: the guard refused the node, or no claim can
    # ever have a share-manager. A VM beside its storage is what was wanted, and a cold start is normal life.
    return "Warning" if decision.reason is not Reason.CO_SCHEDULED and wording.warnings(decision, None) else "Normal"


def _message(decision: Decision) -> str:
    reasons: list[Reason] = [] if decision.reason is Reason.CO_SCHEDULED else [decision.reason]
    if decision.reason is Reason.NO_SHARE_MANAGER:  # what to do depends on why each claim has none
        reasons = [finding.reason for finding in decision.claims if finding.reason]
    advice = "".join(dict.fromkeys(f" {wording.ADVICE[reason]}" for reason in reasons))
    raw, room = f"{decision.message}.".encode(errors="replace"), MESSAGE_SIZE - len(advice.encode())
    return (raw.decode() if len(raw) <= room else raw[: room - 3].decode(errors="ignore") + "...") + advice


def _short(decision: Decision) -> Decision:
    """Return what is written of a decision, without names and sentences as long as a pod may hold."""
    if len(decision.message) <= MESSAGE_SIZE and len(decision.claims) <= CLAIMS:
        return decision
    reasons = dict.fromkeys(finding.reason for finding in decision.claims)
    claims = tuple(ClaimFinding("", reason=reason) for reason in reasons)
    return replace(decision, message=decision.message[: MESSAGE_SIZE + 1], claims=claims)


class EventRecorder:
    """Writes what it was told, in a thread of its own. `dropped` counts what was not written: `full`, `failed`.

    `send` is Cluster.send or speaks like it, `instance` the name of our pod, `clock` the wall clock in seconds.
    """

    def __init__(self, send: Callable[..., JsonObject], instance: str, clock: Callable[[], float] = time.time) -> None:
        self.dropped = Counter(full=0, failed=0)
        self._send, self._instance, self._clock, self._lock = send, instance, clock, threading.Lock()
        # What is to be written, in the order in which it came.
        self._waiting: dict[Topic, Told] = {}
        self._again: Writing | None = None
        # Name, count and time of an event that is there. Only the one thread looks at it.
        self._written: OrderedDict[Topic, tuple[str, int, float]] = OrderedDict()
        self._complaints: set[tuple[str, int]] = set()

    def record(self, request: JsonObject, decision: Decision) -> None:
        """Have the VM's owner told of a decision. Any thread may call it; it neither waits nor raises.

        Nobody is woken: the thread looks for itself. To wake it for each event took a review a fifth of its time.
        """
        try:
            if (subject := subject_of(request, decision)) is None:
                return
            kept = _short(decision)
            topic = subject, kept.reason, kept.message
            with self._lock:
                before = self._waiting.get(topic)
                if before or len(self._waiting) < QUEUED:
                    self._waiting[topic] = Told(kept, self._clock(), before.times + 1 if before else 1)
                    return
            self._drop("full")
        except Exception as error:  # noqa: BLE001 (the decision is made; nothing here may spoil its answer)
            self._drop("failed", error=error)

    def start(self, stop: threading.Event) -> threading.Thread:
        """Start to write, in the thread that is returned: join it, for FAREWELL + TICK at most, when `stop` is set."""
        thread = threading.Thread(target=self.run, args=(stop,), name="events", daemon=True)
        thread.start()
        return thread

    def run(self, stop: threading.Event) -> None:
        """Write until told to stop and for a second more, then give up what is left."""
        while not stop.is_set():
            busy = self.step()
            stop.wait(RETRY_WAIT if self._again else 0 if busy else TICK)
        end = self._clock() + FAREWELL
        while (left := end - self._clock()) > 0 and self.step(min(left, DEADLINE), pause=0):
            pass
        given_up = sum(told.times for told in self._waiting.values()) + (self._again[2] if self._again else 0)
        if given_up:
            self._drop("failed", given_up)
            log.warning("given up", resource="events", number=given_up)

    def step(self, deadline: float = DEADLINE, pause: float = PAUSE) -> bool:
        """Write one event, that of the last step anew if it failed; say whether there was something to do."""
        event = failed = self._again
        self._again = None
        try:
            event = failed or self._next(pause)
            if event is None:
                return False
            self._write(*event, deadline)
        except ClusterError as error:
            if failed is None and (error.code in (0, 429) or error.code >= 500):
                self._again = event
            else:
                self._drop("failed", event[2] if event else 1)
        except Exception as error:  # noqa: BLE001 (a thread that has ended tells nobody anything)
            self._drop("failed", error=error)
        return True

    def _next(self, pause: float) -> Writing | None:
        with self._lock:
            now = self._clock()
            for topic, told in self._waiting.items():
                if now - self._written.get(topic, NEVER)[2] >= pause:
                    del self._waiting[topic]
                    return topic, event_on(topic[0], told.decision, self._instance, told.at), told.times
        return None

    def _write(self, topic: Topic, event: JsonObject, times: int, deadline: float) -> None:
        path, now = f"/api/v1/namespaces/{event['metadata']['namespace']}/events", self._clock()
        name, count, before = self._written.get(topic, NEVER)
        # A number and no increment, and below a name of its own: a try that got no answer may have been heard.
        change = {"count": count + times, "lastTimestamp": event["lastTimestamp"]}
        if now - before >= WINDOW or not self._sent("PATCH", f"{path}/{name}", change, deadline, unless=404):
            self._sent("POST", path, event | {"count": times}, deadline, unless=409)
            name, count = event["metadata"]["name"], 0
        self._remember(topic, name, count + times, now)

    def _remember(self, topic: Topic, name: str, count: int, at: float) -> None:
        self._written[topic] = name, count, at
        self._written.move_to_end(topic)
        while len(self._written) > REMEMBERED:
            self._written.popitem(last=False)

    def _sent(self, method: str, path: str, body: JsonObject, deadline: float, unless: int) -> bool:
        try:
            self._send(method, path, body, deadline)
        except ClusterError as error:
            if error.code == unless:
                return False
            if (method, error.code) not in self._complaints:  # a 403 says which right is missing, and to whom
                self._complaints.add((method, error.code))
                log.warning("refused", resource="events", method=method, code=error.code, error=str(error))
            raise
        return True

    def _drop(self, cause: str, number: int = 1, error: Exception | None = None) -> None:
        with self._lock:
            self.dropped[cause] += number
        if error is not None:
            log.error("an event failed", exc_info=error)
