"""Run the benchmark on a cluster: create its objects, wait for one probe after the other, and delete everything."""

import time
from collections.abc import Callable
from contextlib import suppress

import click

from webhook.catalog.kinds import CLAIMS, NAMESPACES, PODS, VOLUMES
from webhook.cluster.client import ClusterClient, ClusterError
from webhook.commands.benchmark.comparison import Visit, parse
from webhook.commands.benchmark.manifests import BESIDE, ELSEWHERE, LABEL, VISITS, WHERE, Plan
from webhook.commands.recolocate.run import Presses
from webhook.placement.objects.fields import JsonObject, condition, mapping, mappings, printable, text
from webhook.placement.objects.longhorn import COMPONENT_LABEL, SHARE_MANAGER, VOLUME_LABEL
from webhook.placement.objects.pod import is_terminating
from webhook.reading.api import REQUEST_TIMEOUT, answered, list_objects
from webhook.reading.documents import BadInput

POLL = 1.0  # seconds between two looks at the cluster
LONGEST_RUN = 300.0  # seconds until the last probe has to end
LONGEST_PROBLEM = 60.0  # seconds: a claim that isn't bound yet, for example, is no reason to stop
LONGEST_DELETION = 120.0  # seconds
DELETED_WITH_CLAIM: JsonObject = {"spec": {"persistentVolumeReclaimPolicy": "Delete"}}
STARTING = ("", "ContainerCreating", "PodInitializing")
NO_ACCOUNT = "error looking up service account"  # of a new namespace, until the controller manager creates it


class BenchmarkRun:
    """One benchmark on one cluster."""

    def __init__(
        self, cluster: ClusterClient, plan: Plan, presses: Presses, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster, self._plan, self._presses, self._clock = cluster, plan, presses, clock
        self._deadline = clock() + LONGEST_RUN
        self._volume = ""  # the path of the claim's PV

    def run(self) -> tuple[dict[str, list[Visit]], dict[str, str]]:
        """Return what the probes of each side measured, and the node of each side.

        Raises BadInput if that fails, and KeyboardInterrupt after Ctrl-C.
        """
        if not self._plan.existing_namespace:
            self._create(NAMESPACES.path, self._plan.namespace_manifest())
        self._create(CLAIMS.path_in(self._plan.namespace), self._plan.claim_manifest())
        self._report("Waiting for the share-manager")
        self._run_pod(0, "Running")
        node, server = self._share_manager()
        visits, nodes = {BESIDE: list[Visit](), ELSEWHERE: list[Visit]()}, {BESIDE: node}
        for number, side in enumerate(VISITS, 1):
            self._report(f"Measuring {WHERE[side]} ({number} of {len(VISITS)})")
            place = ("In", nodes[side]) if side in nodes else ("NotIn", node)
            pod = self._run_pod(number, "Succeeded", *place)
            visits[side].append(_visit(pod))
            nodes[side] = text(pod, "spec", "nodeName")
            if self._share_manager() != (node, server):
                raise BadInput("Longhorn has replaced the share-manager meanwhile; run the benchmark again")
        return visits, nodes

    def delete(self) -> dict[str, str]:
        """Delete everything. Return the paths of what is left after a while or another Ctrl-C, with their errors."""
        self._report("Deleting everything that the benchmark created")
        deadline, pressed = self._clock() + LONGEST_DELETION, self._presses.count
        while (left := self._delete_once()) and self._clock() < deadline and self._presses.count == pressed:
            self._presses.sleep(POLL)
        return left

    def _create(self, path: str, manifest: JsonObject) -> None:
        self._check()
        with answered():
            self._cluster.send("POST", path, manifest, REQUEST_TIMEOUT)

    def _create_pod(self, number: int, operator: str, node: str) -> None:
        while True:
            try:
                manifest = self._plan.pod_manifest(number, operator, node)
                return self._create(PODS.path_in(self._plan.namespace), manifest)
            except BadInput as error:
                if NO_ACCOUNT not in str(error) or self._clock() > self._deadline:
                    raise
            self._presses.sleep(POLL)

    def _run_pod(self, number: int, phase: str, operator: str = "", node: str = "") -> JsonObject:
        """Create a pod, and return it when it is in this phase."""
        self._create_pod(number, operator, node)
        path, since, problem = PODS.object_path((self._plan.namespace, self._plan.pod_name(number))), self._clock(), ""
        while self._clock() < min(self._deadline, since + LONGEST_PROBLEM):
            self._check()
            with answered():
                pod = self._cluster.get(path, REQUEST_TIMEOUT) or {}
            if text(pod, "status", "phase") == phase:
                return pod
            if text(pod, "status", "phase") in ("Failed", "Succeeded"):
                raise BadInput(f"pod {self._plan.pod_name(number)} failed: {_end(pod)}")
            problem = _problem(pod)
            since = since if problem else self._clock()
            self._presses.sleep(POLL)
        where = f" on a node other than {node}" if operator == "NotIn" else f" on {node}" if node else ""
        causes = [problem or "it did not end within five minutes", *self._warning()]
        raise BadInput(f"pod {self._plan.pod_name(number)} cannot run{where}: {'; '.join(causes)}")

    def _warning(self) -> list[str]:
        """Return the newest warning about the benchmark's objects, such as why a volume can't be mounted."""
        try:
            path = f"/api/v1/namespaces/{self._plan.namespace}/events"
            events = list(list_objects(self._cluster, path, fieldSelector="type=Warning"))
        except ClusterError:  # the user may not list Events
            return []
        own = [each for each in events if text(each, "involvedObject", "name").startswith(self._plan.name)]
        return [text(each, "message") for each in own][-1:]

    def _share_manager(self) -> tuple[str, str]:
        """Return the node and the UID of the share-manager pod."""
        with answered():
            claim = self._cluster.get(CLAIMS.object_path((self._plan.namespace, self._plan.name)), REQUEST_TIMEOUT)
            volume = self._cluster.get(f"{VOLUMES.path}/{text(claim, 'spec', 'volumeName')}", REQUEST_TIMEOUT)
            handle = text(volume, "spec", "csi", "volumeHandle")
            selector = f"{COMPONENT_LABEL}={SHARE_MANAGER},{VOLUME_LABEL}={handle}"
            path = PODS.path_in(self._plan.longhorn_namespace)
            pods = [
                each for each in list_objects(self._cluster, path, labelSelector=selector) if not is_terminating(each)
            ]
        nodes = [(text(each, "spec", "nodeName"), text(each, "metadata", "uid")) for each in pods]
        if not nodes:
            raise BadInput(
                f"no share-manager serves volume {handle} in namespace {self._plan.longhorn_namespace}: the volumes of "
                f"StorageClass {self._plan.storage_class} are not served over NFS"
            )
        return nodes[0]

    def _delete_once(self) -> dict[str, str]:
        """Delete what exists and isn't being deleted yet. Return the paths of what may still exist."""
        left = dict[str, str]()
        for path in (*self._plan.paths, *filter(None, [self._volume])):
            try:
                if self._remains(path):
                    left[path] = ""
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

    def _check(self) -> None:
        if self._presses.count:
            raise KeyboardInterrupt

    @staticmethod
    def _report(words: str) -> None:
        with suppress(OSError):  # of a pipe that is closed
            click.echo(printable(words), err=True)


def _problem(pod: JsonObject) -> str:
    """Return why a pod doesn't run, empty if it may only need more time."""
    waiting = [mapping(each, "state", "waiting") for each in mappings(pod, "status", "containerStatuses")]
    found = [each for each in waiting if text(each, "reason") not in STARTING]
    if found:
        return ": ".join(filter(None, (text(found[0], "reason"), text(found[0], "message"))))
    scheduled = condition(pod, "PodScheduled")
    return text(scheduled, "message") if scheduled.get("status") == "False" else ""


def _end(pod: JsonObject) -> str:
    """Return what the container of a finished pod wrote last."""
    ended = [mapping(each, "state", "terminated") for each in mappings(pod, "status", "containerStatuses")]
    message = text(ended[0], "message") if ended else text(pod, "status", "message")
    return message.strip().rpartition("\n")[2] or text(pod, "status", "reason") or "it gave no reason"


def _visit(pod: JsonObject) -> Visit:
    try:
        return parse(_end(pod))
    except ValueError as error:
        raise BadInput(f"pod {text(pod, 'metadata', 'name')}: unexpected result: {error}") from None
