"""Record decisions as Kubernetes Events on the VMI.

Only this module creates objects. `releaser` deletes pods, and `election` updates one Lease.
"""

import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from webhook.cluster.credentials import ClusterError
from webhook.cluster.token_bucket import TokenBucket
from webhook.placement import wording
from webhook.placement.objects.fields import JsonObject, is_dns_subdomain
from webhook.placement.reasons import ClaimFinding, Decision, Reason

COMPONENT = "kubevirt-scheduler"
MAX_QUEUED = 512  # events; each takes 2 KiB
# Seconds. SHUTDOWN_TIMEOUT is for queued events. POLL_INTERVAL is between passes over the queue: equal decisions
# meanwhile are one Event.
WRITE_TIMEOUT, SHUTDOWN_TIMEOUT, POLL_INTERVAL = 2.0, 1.0, 1.0
# After a quiet time, as many events as the queue holds are written at once. A client that reaches the TLS port can post
# made-up reviews, and the API server keeps each Event for an hour: at 20 per second 72,000, about 70 MB in etcd.
WRITES_PER_SECOND = 20.0
# Limits: https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/apis/core/validation/events.go
MESSAGE_SIZE = 1024
NAME_LENGTH = 253
INSTANCE_LENGTH = 128
UID_LENGTH = 63

MAX_CLAIMS = 16  # more than a VM has disks

log = logging.getLogger("webhook.events")


class Vmi(NamedTuple):
    """The VMI that an Event is about.

    The uid alone isn't trustworthy: it comes from a pod label, and namespace users control labels.
    """

    namespace: str
    name: str
    uid: str

    def is_valid(self) -> bool:
        """Return whether such a VMI may exist: the API server hasn't validated a new pod yet."""
        return is_dns_subdomain(self.namespace) and is_dns_subdomain(self.name) and 0 < len(self.uid) <= UID_LENGTH


Topic = tuple[Vmi, Reason, str]  # events with the same VMI, reason and message are one topic


class PendingTopic(NamedTuple):
    """A topic in the queue."""

    decision: Decision
    at: float  # when the decision was last recorded
    times: int  # how often


def build_event(vmi: Vmi, decision: Decision, instance: str, at: float, times: int = 1) -> JsonObject:
    """Return the Event that reports a decision made so many times. `at` is in seconds since the epoch."""
    about = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": vmi.name, "uid": vmi.uid}
    suffix = f".{secrets.token_hex(8)}"
    name = vmi.name[: NAME_LENGTH - len(suffix)].rstrip("-.") + suffix
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    # An Event is a warning in the same cases as the response, where a user can act: the guard refused the node, or no
    # claim can ever have a share-manager. A VM on the node of its share-manager and a cold start are successes.
    is_warning = decision.reason is not Reason.CO_SCHEDULED and wording.warnings(decision, None)
    return {
        "metadata": {"namespace": vmi.namespace, "name": name},
        "involvedObject": about | {"namespace": vmi.namespace},
        "type": "Warning" if is_warning else "Normal",
        "reason": decision.reason.value,
        "message": _message(decision),
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": instance[:INSTANCE_LENGTH],
        "count": times,
        "firstTimestamp": now,
        "lastTimestamp": now,
    }


def _message(decision: Decision) -> str:
    advice = "".join(f" {each}" for each in wording.advice(decision) if each is not wording.NO_ACTION)
    raw = f"{decision.message}.".encode(errors="replace")
    limit = MESSAGE_SIZE - len(advice.encode())
    return (raw.decode() if len(raw) <= limit else raw[: limit - 3].decode(errors="ignore") + "...") + advice


def _bounded(decision: Decision) -> Decision:
    """Return a decision with only the content of its Event, at a bounded size: a pod's fields may be long."""
    claims = decision.claims
    if len(claims) > MAX_CLAIMS or any(len(finding.claim) > NAME_LENGTH for finding in claims):
        claims = tuple(ClaimFinding("", reason=reason) for reason in dict.fromkeys(each.reason for each in claims))
    message = decision.message[: MESSAGE_SIZE + 1]
    return replace(decision, message=message, claims=claims, reservation=None)


class EventRecorder:
    """Writes queued events to the API server from a background thread.

    `dropped` counts the events that were not written: `full`, `failed`. `send` has the signature of
    `ClusterClient.send`, `instance` is the name of the webhook's pod, and `clock` returns wall-clock seconds.
    """

    def __init__(self, send: Callable[..., JsonObject], instance: str, clock: Callable[[], float] = time.time) -> None:
        self.dropped = Counter(full=0, failed=0)
        self._send = send
        self._instance = instance
        self._clock = clock
        self._lock = threading.Lock()
        # Events to write, in order of arrival.
        self._queue: dict[Topic, PendingTopic] = {}
        self._bucket = TokenBucket(WRITES_PER_SECOND, MAX_QUEUED, clock)
        self._logged_errors: set[int] = set()  # by the HTTP status

    def record(self, vmi: Vmi, decision: Decision) -> None:
        """Queue an Event that reports the decision on the VMI. Thread-safe; neither waits nor raises.

        The writer thread polls the queue, because waking it for each event took a fifth of a review's time.
        """
        try:
            if not vmi.is_valid():
                return
            bounded = _bounded(decision)
            topic = vmi, bounded.reason, bounded.message
            with self._lock:
                queued = self._queue.get(topic)
                if queued or len(self._queue) < MAX_QUEUED:
                    self._queue[topic] = PendingTopic(bounded, self._clock(), queued.times + 1 if queued else 1)
                    return
            self._drop("full")
        except Exception as error:  # noqa: BLE001 (a failed Event must not fail the response)
            self._drop("failed", error=error)

    def run(self, stop: threading.Event) -> None:
        """Write events until `stop` is set, then for SHUTDOWN_TIMEOUT seconds more, and drop the rest."""
        while not stop.wait(POLL_INTERVAL):
            for _ in range(len(self._queue)):  # an event that arrives meanwhile waits for the next pass
                if stop.is_set() or not self.step():
                    break
        end = self._clock() + SHUTDOWN_TIMEOUT
        while self._clock() < end and self.step():
            pass
        if unwritten := sum(pending.times for pending in self._queue.values()):
            self._drop("failed", unwritten)
            log.warning("events dropped at shutdown", extra={"resource": "events", "number": unwritten})

    def step(self) -> bool:
        """Write one event. Return False if there was nothing to write yet."""
        with self._lock:
            if not self._queue or not self._bucket.take():
                return False
            topic = next(iter(self._queue))
            pending = self._queue.pop(topic)
        try:
            event = build_event(topic[0], pending.decision, self._instance, pending.at, pending.times)
            self._send("POST", f"/api/v1/namespaces/{topic[0].namespace}/events", event, WRITE_TIMEOUT)
        except ClusterError as error:
            self._drop("failed", pending.times)
            # Log each error once. The text of a 403 names the missing right and the service account.
            if error.code not in self._logged_errors:
                self._logged_errors.add(error.code)
                fields = {"resource": "events", "code": error.code, "error": str(error)}
                log.warning("event write failed", extra=fields)
        except Exception as error:  # noqa: BLE001 (an exception would end the writer thread)
            self._drop("failed", error=error)
        return True

    def _drop(self, cause: str, number: int = 1, error: Exception | None = None) -> None:
        with self._lock:
            self.dropped[cause] += number
        if error is not None:
            log.error("unexpected error, event dropped", exc_info=error)
