"""Release VMs from pins that can't hold: delete their Pending pods, or report those that must not be deleted."""

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import islice, zip_longest

from msgspec import Struct

from webhook.catalog.kinds import PODS
from webhook.cluster.client import ClusterClient
from webhook.cluster.credentials import ClusterError
from webhook.cluster.events import Vmi
from webhook.cluster.live_catalog import Live
from webhook.fleet.release import why_kept, why_not_scheduled, why_pin_fails
from webhook.placement import wording
from webhook.placement.guard.feasibility import FailedCheck
from webhook.placement.guard.pins import read_pin
from webhook.placement.objects.facts import PendingPin, Pod
from webhook.placement.objects.pod import Manifest
from webhook.placement.objects.pod_object import PodObject
from webhook.placement.reasons import Decision, Mode, Outcome, Reason
from webhook.placement.settings import Settings

PASS_INTERVAL = 5.0  # seconds
DELETE_TIMEOUT = 3.0  # seconds, less than between the end of one leadership and the start of the next (see `election`)
MAX_PODS_PER_PASS = 20  # each is read from the API server
REPORT_INTERVAL = 600.0  # seconds between two Events about one pod, and between two deletions that are forbidden
NEVER = float("-inf")
GONE_OR_CHANGED = (404, 409)
FORBIDDEN = (403, 422)  # by a missing right, and by a ValidatingAdmissionPolicy

log = logging.getLogger("webhook.releaser")


class StuckPod(Struct):
    """A pinned pod that can't be scheduled, or that no scheduler has evaluated."""

    pod: Pod
    pin: PendingPin
    since: float  # when this replica first saw that, by its own clock: the scheduler's may be wrong
    examined_at: float = NEVER
    reported_at: float = NEVER
    forbidden_until: float = NEVER
    reason: Reason | None = None  # why the pin can't hold; None if that isn't known yet


class Releaser:
    """Examines the stuck pods every few seconds while `leads` returns True.

    `record` queues an Event about a VMI. `released` counts the deleted pods by reason. `pending` counts the pods that
    were still stuck after the last pass, by reason; it is empty in a replica that doesn't lead.
    """

    def __init__(  # noqa: PLR0913, PLR0917 (what it reads, obeys, writes to and measures with)
        self,
        cluster: ClusterClient,
        live: Live,
        settings: Settings,
        leads: Callable[[], bool],
        record: Callable[[Vmi, Decision], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.released: Counter[Reason] = Counter()
        self.pending: Counter[Reason] = Counter()
        self.leads = leads
        self._cluster = cluster
        self._live = live
        self._settings = settings
        self._record = record
        self._clock = clock
        self._stuck: dict[tuple[str, str], StuckPod] = {}  # by UID and the time of the scheduler's condition
        # Each namespace with pods to examine, and when its last turn was, or when the first of these pods was found.
        self._turns: dict[str, float] = {}
        self._logged_errors: set[tuple[str, int]] = set()

    def run(self, stop: threading.Event) -> None:
        """Run a pass every few seconds until `stop` is set."""
        while not stop.wait(PASS_INTERVAL):
            try:
                self.step()
            except Exception:
                log.exception("unexpected error")

    def step(self) -> None:
        """Examine the pods that have been stuck for long enough."""
        self._track()
        if self.leads() and self._live.synced():
            for stuck in self._due():
                try:
                    self._examine(stuck)
                except ClusterError as error:
                    self._report_error("list", error)
                except Exception:
                    log.exception("unexpected error", extra={"namespace": stuck.pod.namespace, "pod": stuck.pod.name})
        reasons = (stuck.reason for stuck in self._stuck.values() if stuck.reason)
        self.pending = Counter(reasons) if self.leads() else Counter()

    def _track(self) -> None:
        now = self._clock()
        known = self._stuck
        pods = self._live.query(lambda store: [(pod, pod.pin) for pod in store.pins.unbound() if pod.pin])
        found = {(pod.uid, pin.unschedulable_since): StuckPod(pod, pin, now) for pod, pin in pods}
        self._stuck = {key: known.get(key, new) for key, new in found.items()}

    def _due(self) -> list[StuckPod]:
        """Return the pods to examine in this pass, from the namespaces in turn.

        A user of one namespace can create stuck pods faster than they are examined. Those must not delay the others.
        """
        now = self._clock()
        due = [stuck for stuck in self._stuck.values() if stuck.since <= now - self._settings.release_after]
        # The newest pods first: if only some of them fit, the oldest keep their node.
        due.sort(key=lambda stuck: stuck.pod.created, reverse=True)
        due.sort(key=lambda stuck: max(stuck.examined_at, stuck.since))
        queues: defaultdict[str, list[StuckPod]] = defaultdict(list)
        for stuck in due:
            queues[stuck.pod.namespace].append(stuck)
        self._turns = {namespace: self._turns.get(namespace, now) for namespace in queues}
        rounds = zip_longest(*(queues[namespace] for namespace in sorted(queues, key=self._turns.__getitem__)))
        chosen = list(islice((stuck for each in rounds for stuck in each if stuck), MAX_PODS_PER_PASS))
        self._turns |= {stuck.pod.namespace: now for stuck in chosen}
        return chosen

    def _examine(self, stuck: StuckPod) -> None:
        settings = self._settings
        seconds = self._clock() - stuck.since
        stuck.examined_at = self._clock()
        pod = self._read(stuck.pod)
        stuck.reason = None
        # The cache may be older than the pod, which may be bound or gone by now.
        if pod is None or pod.metadata.is_terminating or read_pin(pod) != stuck.pin:
            return
        if not stuck.pin.unschedulable_since:
            stuck.reason = Reason.NOT_SCHEDULED if why_not_scheduled(pod, seconds) else None
            return
        obstacle = why_pin_fails(pod, self._live.catalog(), settings, seconds)
        if obstacle is None:
            return
        stuck.reason = obstacle.reason
        if kept := self._why_kept(stuck):
            self._warn(stuck, pod, obstacle, kept)
        elif self.leads():
            self._release(stuck, pod, obstacle)

    def _read(self, cached: Pod) -> Manifest | None:
        """Read a pod as the caches decode it. A list of one name needs no right besides those of the caches."""
        pages = self._cluster.pages(PODS.path_in(cached.namespace), fieldSelector=f"metadata.name={cached.name}")
        pods: Iterator[PodObject] = (pod for _, items in pages for pod in map(PODS.decode, items))
        pod = next((pod for pod in pods if pod.metadata.uid == cached.uid), None)
        return Manifest(pod, cached.namespace) if pod else None

    def _why_kept(self, stuck: StuckPod) -> str:
        if self._clock() < stuck.forbidden_until:
            return "the webhook has no right to delete pods"
        key = stuck.pod.namespace, stuck.pin.vm
        vm, vmi, losses, seen = self._live.query(
            lambda it: (it.virtual_machine(*key), it.vmi(*key), it.losses(*key), it.pins.first_seen(stuck.pod))
        )
        return why_kept(vm, vmi, losses, seen, self._settings)

    def _release(self, stuck: StuckPod, pod: Manifest, obstacle: FailedCheck) -> None:
        # If the scheduler has just bound the pod, its resource version has changed, and the API server keeps it.
        preconditions = {"uid": stuck.pod.uid, "resourceVersion": pod.metadata.resource_version}
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        try:
            self._cluster.send("DELETE", PODS.object_path(stuck.pod.key), options, DELETE_TIMEOUT)
        except ClusterError as error:
            if error.code in GONE_OR_CHANGED:
                stuck.reason = None
                return
            self._report_error("delete", error)
            if error.code in FORBIDDEN:
                stuck.forbidden_until = self._clock() + REPORT_INTERVAL
                self._warn(stuck, pod, obstacle, self._why_kept(stuck))
            return
        stuck.reason, cached, pin = None, stuck.pod, stuck.pin
        self.released[obstacle.reason] += 1
        names = {"namespace": cached.namespace, "vm": pin.vm, "pod": cached.name, "node": pin.node}
        log.info("released", extra={**names, "reason": obstacle.reason.value})
        # Now, before the watch reports it: otherwise this pass might release more pods than necessary.
        self._live.query(lambda store: store.apply(Pod, cached.key, None))
        self._send_event(stuck, pod, obstacle, wording.released(pin.node, obstacle.detail))

    def _warn(self, stuck: StuckPod, pod: Manifest, obstacle: FailedCheck, kept: str) -> None:
        now = self._clock()
        if now - stuck.reported_at >= REPORT_INTERVAL:
            stuck.reported_at = now
            key = stuck.pod.namespace, stuck.pin.vm
            strategy = self._live.query(lambda store: store.run_strategy(*key))
            restart = wording.restart_advice(*key, strategy)
            message = wording.stuck(stuck.pin.node, obstacle.detail, kept, restart)
            self._send_event(stuck, pod, obstacle, message)

    def _send_event(self, stuck: StuckPod, pod: Manifest, obstacle: FailedCheck, message: str) -> None:
        decision = Decision(Outcome.PINNED, obstacle.reason, message, Mode.REQUIRED, stuck.pin.node, recorded=True)
        self._record(Vmi(stuck.pod.namespace, pod.vmi_name, pod.vmi_uid), decision)

    def _report_error(self, verb: str, error: ClusterError) -> None:
        # Log each error once. The text of a 403 names the missing right and the service account.
        if (verb, error.code) not in self._logged_errors:
            self._logged_errors.add((verb, error.code))
            log.warning(
                "release failed", extra={"resource": "pods", "verb": verb, "code": error.code, "error": str(error)}
            )
