"""Run a benchmark on a cluster: create its objects, wait for one probe after the other, and delete everything."""

import time
from collections.abc import Callable
from contextlib import suppress

import click
import msgspec

from webhook.catalog.kinds import NAMESPACES, PODS
from webhook.catalog.storage_kinds import CLAIMS, VOLUMES
from webhook.cluster.client import ClusterClient
from webhook.cluster.credentials import ClusterError
from webhook.commands.benchmark.comparison import Visit
from webhook.commands.benchmark.plan import BESIDE, ELSEWHERE, LABEL, VISITS, Plan
from webhook.commands.interrupts import Presses
from webhook.placement.objects.fields import JsonObject, condition, mapping, mappings, text
from webhook.placement.objects.longhorn import COMPONENT_LABEL, SHARE_MANAGER, VOLUME_LABEL
from webhook.placement.objects.pod import is_terminating
from webhook.reading.api import REQUEST_TIMEOUT, answered, list_objects
from webhook.reading.documents import BadInput
from webhook.reading.events import list_warnings

POLL = 1.0  # seconds between two looks at the cluster
LONGEST_RUN, LONGEST_DELETION = 300.0, 120.0  # seconds
LONGEST_PROBLEM = 60.0  # seconds: a claim that isn't bound yet, for example, is no reason to stop
STARTING = ("", "ContainerCreating", "PodInitializing")
DELETED_WITH_CLAIM: JsonObject = {"spec": {"persistentVolumeReclaimPolicy": "Delete"}}


class BenchmarkRun:
    """One benchmark on one cluster."""

    def __init__(
        self, cluster: ClusterClient, plan: Plan, presses: Presses, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster = cluster
        self._plan = plan
        self._presses = presses
        self._clock = clock
        self._deadline = clock() + LONGEST_RUN
        self._volume = ""  # the path of the claim's PV

    def run(self) -> tuple[dict[str, list[Visit]], dict[str, str]]:
        """Return what the probes of each side measured, and the node of each side.

        Raises BadInput if that fails, and KeyboardInterrupt after Ctrl-C.
        """
        with answered():
            if not self._plan.existing_namespace:
                self._cluster.send("POST", NAMESPACES.path, self._plan.namespace_manifest(), REQUEST_TIMEOUT)
            path = CLAIMS.path_in(self._plan.namespace)
            self._cluster.send("POST", path, self._plan.claim_manifest(), REQUEST_TIMEOUT)
            _report("Waiting for the share-manager")
            self._run_pod(0, "Running")
            server = self._bound_share_manager()
            visits = {BESIDE: list[Visit](), ELSEWHERE: list[Visit]()}
            nodes = {BESIDE: server[0]}
            for number, side in enumerate(VISITS, 1):
                _report(f"Measuring {side} ({number} of {len(VISITS)})")
                pod = self._run_pod(number, "Succeeded", "In" if side in nodes else "NotIn", nodes.get(side, server[0]))
                visits[side].append(_visit(pod))
                nodes[side] = text(pod, "spec", "nodeName")
                if self._share_manager() != server:
                    raise BadInput("Longhorn has replaced the share-manager meanwhile; run the benchmark again")
        return visits, nodes

    def delete(self) -> dict[str, str]:
        """Delete everything. Return the paths of what is left after a while or another Ctrl-C, with their errors."""
        _report("Deleting everything that the benchmark created")
        deadline = self._clock() + LONGEST_DELETION
        pressed = self._presses.count
        while (left := self._delete_once()) and self._clock() < deadline and self._presses.count == pressed:
            self._presses.sleep(POLL)
        return left

    def _run_pod(self, number: int, phase: str, operator: str = "", node: str = "") -> JsonObject:
        """Create a pod, and return it when it is in this phase. Raises BadInput, and ClusterError."""
        path = PODS.path_in(self._plan.namespace)
        pod = self._plan.pod_manifest(number, operator, node)
        self._cluster.send("POST", path, pod, REQUEST_TIMEOUT)
        where = f" on {node}" if node else ""
        where = f" on another node than {node}" if operator == "NotIn" else where
        since = self._clock()
        problem = ""
        while self._clock() < min(self._deadline, since + LONGEST_PROBLEM):
            pod = self._cluster.get(self._plan.paths[number], REQUEST_TIMEOUT) or {}
            if text(pod, "status", "phase") == phase:
                return pod
            if text(pod, "status", "phase") in ("Failed", "Succeeded"):
                raise BadInput(f"the pod{where} failed: {_last_words(pod)}")
            problem = _problem(pod)
            since = since if problem else self._clock()
            self._pause()
        raise BadInput(f"no pod can run{where}: {problem or 'it takes more than five minutes'}{self._warning(problem)}")

    def _warning(self, problem: str) -> str:
        """Return the newest other warning about what the benchmark created, such as why a volume can't be mounted."""
        try:
            events = list_warnings(self._cluster, self._plan.namespace)
        except ClusterError:  # the user may not list Events
            return ""
        own = [each.message for each in events if each.involved_object.name.startswith(self._plan.name)]
        messages = [each for each in own if each != problem]
        return f" (last warning: {messages[-1]})" if messages else ""

    def _bound_share_manager(self) -> tuple[str, str]:
        """Return the same as `_share_manager`, as soon as the pod has a node."""
        until = self._clock() + LONGEST_PROBLEM
        while not (found := self._share_manager())[0]:
            if self._clock() >= until:
                raise BadInput("the scheduler has found no node for the share-manager in a minute")
            self._pause()
        return found

    def _pause(self) -> None:
        """Wait until the next look at the cluster. Raises KeyboardInterrupt after Ctrl-C."""
        self._presses.sleep(POLL)
        if self._presses.count:
            raise KeyboardInterrupt

    def _share_manager(self) -> tuple[str, str]:
        """Return the node and the UID of the share-manager pod. Raises BadInput, and ClusterError."""
        claim = self._cluster.get(self._plan.claim_path, REQUEST_TIMEOUT)
        volume = self._cluster.get(f"{VOLUMES.path}/{text(claim, 'spec', 'volumeName')}", REQUEST_TIMEOUT)
        handle = text(volume, "spec", "csi", "volumeHandle")
        selector = f"{COMPONENT_LABEL}={SHARE_MANAGER},{VOLUME_LABEL}={handle}"
        pods = list_objects(self._cluster, PODS.path_in(self._plan.longhorn_namespace), labelSelector=selector)
        for pod in pods:
            if not is_terminating(pod):
                return text(pod, "spec", "nodeName"), text(pod, "metadata", "uid")
        raise BadInput(f"no share-manager serves volume {handle} in namespace {self._plan.longhorn_namespace}")

    def _delete_once(self) -> dict[str, str]:
        """Delete what exists and isn't being deleted yet. Return the paths of what may still exist."""
        left = dict[str, str]()
        for path in (*self._plan.paths, *filter(None, [self._volume])):
            try:
                if self._remains(path):
                    left[path] = "is being deleted"
            except ClusterError as error:
                left[path] = str(error)
        return left

    def _remains(self, path: str) -> bool:
        item = self._cluster.get(path, REQUEST_TIMEOUT)
        if item is None or path == self._volume:
            return item is not None  # Longhorn deletes the volume after the claim
        if mapping(item, "metadata", "labels").get(LABEL) != self._plan.name:
            return False
        if volume := text(item, "spec", "volumeName"):  # of the claim
            self._volume = f"{VOLUMES.path}/{volume}"
            if self._plan.retains:
                self._cluster.send("PATCH", self._volume, DELETED_WITH_CLAIM, REQUEST_TIMEOUT)
        if not is_terminating(item):
            self._cluster.send("DELETE", path, {}, REQUEST_TIMEOUT)
        return True


def _report(words: str) -> None:
    with suppress(OSError):  # of a pipe that is closed
        click.echo(words, err=True)


def _problem(pod: JsonObject) -> str:
    """Return why a pod doesn't run, empty if it may only need more time."""
    for each in mappings(pod, "status", "containerStatuses"):
        waiting = mapping(each, "state", "waiting")
        if text(waiting, "reason") not in STARTING:
            return f"{text(waiting, 'reason')}: {text(waiting, 'message')}"
    scheduled = condition(pod, "PodScheduled")
    return text(scheduled, "message") if scheduled.get("status") == "False" else ""


def _last_words(pod: JsonObject) -> str:
    """Return the last line that the container of a finished pod wrote, or else why the pod ended."""
    ended = [mapping(each, "state", "terminated") for each in mappings(pod, "status", "containerStatuses")]
    lines = [line for each in ended for line in text(each, "message").splitlines()]
    return lines[-1] if lines else text(pod, "status", "message") or text(pod, "status", "reason")


def _visit(pod: JsonObject) -> Visit:
    try:
        return msgspec.json.decode(_last_words(pod), type=Visit)
    except ValueError as error:
        raise BadInput(f"unexpected result of pod {text(pod, 'metadata', 'name')}: {error}") from None
