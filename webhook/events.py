"""Tell the VM's owner what was decided and why, by an Event about the VMI; nothing else here writes to the cluster."""

import queue
import secrets
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable

import structlog

from webhook import wording
from webhook.cluster import ClusterError
from webhook.decision import Decision, Reason
from webhook.injector import namespace_of
from webhook.settings import is_subdomain
from webhook.shape import JsonObject, mapping, text

COMPONENT = "kubevirt-scheduler"
QUEUED, REMEMBERED = 512, 1024  # events; one takes 2 KiB
# Seconds: in which the same again raises an event's count; of one write; before its second try, as long as a busy API
# server asks for (`Retry-After: 1`); for what is still queued at the end; until the thread notices its end.
WINDOW, DEADLINE, RETRY_WAIT, FAREWELL, TICK = 600.0, 2.0, 1.0, 1.0, 0.2
PAUSE = 1.0  # seconds between two writes about the same: no VM starts oftener, and the API server is spared a storm
# Limits: https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/apis/core/validation/events.go
MESSAGE_SIZE, NAME_LENGTH, INSTANCE_LENGTH, UID_LENGTH = 1024, 253, 128, 63

log = structlog.get_logger("webhook.events")


def event_on(request: JsonObject, decision: Decision, instance: str, at: float) -> JsonObject | None:
    """Return the Event that tells of a decision; None for a dry run, and for what concerns no opted-in VM."""
    metadata, namespace = mapping(request, "object", "metadata"), namespace_of(request)
    vmi = text(mapping(metadata, "annotations"), "kubevirt.io/domain")
    uid = text(mapping(metadata, "labels"), "kubevirt.io/created-by")
    # Nobody has validated the pod yet: its fields may be any text of any length.
    of_a_vmi = is_subdomain(namespace) and is_subdomain(vmi) and 0 < len(uid) <= UID_LENGTH
    if request.get("dryRun") or not decision.recorded or not of_a_vmi:
        return None
    about = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": vmi, "uid": uid}
    suffix = f".{secrets.token_hex(8)}"
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    return {
        "metadata": {"namespace": namespace, "name": vmi[: NAME_LENGTH - len(suffix)].rstrip("-.") + suffix},
        "involvedObject": about | {"namespace": namespace},
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


class Events:
    """Writes what it was told, in a thread of its own. `dropped` counts what was not written: `full`, `failed`.

    `send` is Cluster.send or speaks like it, `instance` the name of our pod, `clock` the wall clock in seconds.
    """

    def __init__(self, send: Callable[..., JsonObject], instance: str, clock: Callable[[], float] = time.time) -> None:
        self.dropped = Counter(full=0, failed=0)
        self._send, self._instance, self._clock, self._lock = send, instance, clock, threading.Lock()
        self._queue: queue.Queue[JsonObject] = queue.Queue(QUEUED)
        self._again: JsonObject | None = None
        # By what it says of whom: name, count and time of an event that is there. Only the one thread looks at it.
        self._written: OrderedDict[str, tuple[str, int, float]] = OrderedDict()
        self._complaints: set[tuple[str, int]] = set()

    def tell(self, request: JsonObject, decision: Decision) -> None:
        """Have the VM's owner told of a decision. Any thread may call it; it neither waits nor raises."""
        try:
            if event := event_on(request, decision, self._instance, self._clock()):
                self._queue.put_nowait(event)
        except queue.Full:
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
            self.step(TICK)
            stop.wait(RETRY_WAIT if self._again else 0)
        end = self._clock() + FAREWELL
        while (left := end - self._clock()) > 0 and self.step(deadline=min(left, DEADLINE)):
            pass
        if given_up := self._queue.qsize() + (self._again is not None):
            self._drop("failed", given_up)
            log.warning("given up", resource="events", number=given_up)

    def step(self, wait: float = 0.0, deadline: float = DEADLINE) -> bool:
        """Write one event, that of the last step anew if it failed; say whether one was there within `wait` seconds."""
        again, self._again = self._again, None
        try:
            event = again or self._queue.get(wait > 0, wait)
            self._write(event, deadline)
        except queue.Empty:
            return False
        except ClusterError as error:
            if again is None and (error.code in (0, 429) or error.code >= 500):
                self._again = event
            else:
                self._drop("failed")
        except Exception as error:  # noqa: BLE001 (a thread that has ended tells nobody anything)
            self._drop("failed", error=error)
        return True

    def _write(self, event: JsonObject, deadline: float) -> None:
        # Not the uid alone: it is from a label, which anybody can write in a namespace of his own.
        topic = f"{event['involvedObject']} {event['reason']} {event['message']}"
        path, now = f"/api/v1/namespaces/{event['metadata']['namespace']}/events", self._clock()
        name, count, at = self._written.get(topic, ("", 0, float("-inf")))
        if now - at < PAUSE:
            self._remember(topic, name, count + 1, at)  # the next one tells of this one as well
            return
        # A number and no increment, and below a name of its own: a try that got no answer may have been heard.
        change = {"count": count + 1, "lastTimestamp": event["lastTimestamp"]}
        if now - at >= WINDOW or not self._sent("PATCH", f"{path}/{name}", change, deadline, unless=404):
            self._sent("POST", path, event, deadline, unless=409)
            name, count = event["metadata"]["name"], 0
        self._remember(topic, name, count + 1, now)

    def _remember(self, topic: str, name: str, count: int, at: float) -> None:
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
