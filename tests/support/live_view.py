"""What watches show of the cluster, without a request for each look: the objects, and the lives of VMIs and servers.

Polling the API server was half of the CPU time of the random fleets, whose controllers look ten times a second.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import NamedTuple
from urllib.parse import parse_qs

from certs import ApiError
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.reconcile_loop import IDLE
from tests.support.watching import Watching

RESYNC = 4.0  # seconds
KUBEVIRT = "/apis/kubevirt.io/v1"
PODS, VMS, VMIS = "/api/v1/pods", f"{KUBEVIRT}/virtualmachines", f"{KUBEVIRT}/virtualmachineinstances"
MIGRATIONS = f"{KUBEVIRT}/virtualmachineinstancemigrations"
MANAGERS = "/apis/longhorn.io/v1beta2/sharemanagers"
NODES, ATTACHMENTS = "/api/v1/nodes", "/apis/storage.k8s.io/v1/volumeattachments"
KINDS = (PODS, VMS, VMIS, MIGRATIONS, MANAGERS, NODES, ATTACHMENTS)
CAUGHT_UP = 5.0  # seconds, at most, until a watch has shown a write


class Sight(NamedTuple):
    """A version of an object, as far as its life is concerned."""

    at: float  # monotonic seconds
    uid: str
    runs: bool
    node: str


Key = tuple[str, str]  # namespace and name


class LiveView(Watching):
    """`with LiveView(plane) as view`: watch the objects of KINDS in all namespaces."""

    seconds = 3

    def __init__(self, plane: ControlPlane) -> None:
        self._objects: dict[str, dict[Key, Object]] = {path: {} for path in KINDS}
        self._sights = defaultdict[tuple[str, Key], list[Sight]](list)
        self._versions = dict.fromkeys(KINDS, 0)
        self._changes = defaultdict[str, tuple[int, float]](lambda: (0, 0.0))
        self._lock = threading.Condition()
        super().__init__(plane, self._objects)

    def objects(self, path: str, namespace: str) -> list[Object]:
        """Return the objects of a namespace."""
        with self._lock:
            return [found for (place, _), found in self._objects[path].items() if place == namespace]

    def find(self, path: str, namespace: str, name: str) -> Object:
        """Return an object, empty if there is none."""
        return self._objects[path].get((namespace, name), {})

    def wait_for(self, path: str, is_shown: Callable[[], bool]) -> None:
        """Wait until the watch of a collection has shown something."""
        with self._lock:
            if not self._lock.wait_for(is_shown, CAUGHT_UP):
                raise TimeoutError(f"the watch of {path} has not shown a write for {CAUGHT_UP} s")

    def version(self, path: str) -> int:
        """Return the resource version of the last change of a collection that was seen."""
        return self._versions[path]

    def sights(self, path: str, namespace: str, name: str) -> list[Sight]:
        """Return all that was seen of the objects of this name."""
        return list(self._sights[path, (namespace, name)])

    def changes(self, place: str) -> tuple[int, float]:
        """Return how often something has changed, and when for the last time. A place is a namespace or a volume."""
        return self._changes[place]

    def _follow(self, path: str, version: str) -> None:
        while not self._stopped.is_set():
            try:
                version = self._watch(path, version)
            except ApiError:  # the connection was lost, or the version is too old
                version = self._list(path)

    def _see(self, path: str, kind: str, found: Object) -> None:
        metadata, now = found["metadata"], time.monotonic()
        key = metadata.get("namespace", ""), metadata["name"]
        with self._lock:
            if kind == "DELETED":
                self._objects[path].pop(key, None)
            else:
                self._objects[path][key] = found
            self._versions[path] = max(self._versions[path], int(metadata["resourceVersion"]))
            self._lock.notify_all()
            if path in (PODS, VMIS):
                self._sights[path, key].append(_sight(path, kind, found, now))
            volume = metadata["name"].removeprefix("share-manager-") if path in (PODS, MANAGERS) else ""
            for place in {key[0], volume} - {""}:
                self._changes[place] = self._changes[place][0] + 1, now


def _sight(path: str, kind: str, found: Object, now: float) -> Sight:
    metadata = found["metadata"]
    runs = kind != "DELETED" and found.get("status", {}).get("phase") == "Running"
    node = found["status"].get("nodeName", "") if path == VMIS and runs else found["spec"].get("nodeName", "")
    return Sight(now, metadata["uid"], runs and "deletionTimestamp" not in metadata, node)


class ViewedPlane:
    """The requests of a controller: a LiveView answers its reads, once that has seen its own writes."""

    def __init__(self, plane: ControlPlane, view: LiveView) -> None:
        self._plane, self._view = plane, view

    def request(self, method: str, path: str, body: object = None) -> Object:
        """Send a request, or answer a read."""
        collection, namespace, name = _parsed(path)
        if collection not in KINDS:
            return self._plane.request(method, path, body)
        if method == "GET":
            return self._read(path, collection, namespace, name)
        answer = self._plane.request(method, path, body)
        if method == "DELETE" and name:
            self._view.wait_for(collection, lambda: self._is_leaving(collection, namespace, name, answer))
        elif method != "DELETE":
            version = int(answer["metadata"]["resourceVersion"])
            self._view.wait_for(collection, lambda: self._view.version(collection) >= version)
        return answer

    def _is_leaving(self, collection: str, namespace: str, name: str, answer: Object) -> bool:
        """Return whether a deleted object is gone or terminating. The answer names it, or is a Status that does."""
        found = self._view.find(collection, namespace, name).get("metadata", {})
        uid = answer["metadata"].get("uid") or answer.get("details", {}).get("uid")
        return not found or found["uid"] != uid or "deletionTimestamp" in found

    def _read(self, path: str, collection: str, namespace: str, name: str) -> Object:
        if name:
            return self._view.find(collection, namespace, name) or self._plane.request("GET", path)
        found = self._view.objects(collection, namespace)
        for selector in parse_qs(path.partition("?")[2]).get("labelSelector", []):
            key, _, value = selector.partition("=")
            found = [each for each in found if each["metadata"].get("labels", {}).get(key) == value]
        return {"items": found}


def _parsed(path: str) -> tuple[str, str, str]:
    """Return the collection of all namespaces, the namespace, and the name of the object, or empty strings."""
    parts = path.partition("?")[0].strip("/").split("/")
    root = 2 if parts[0] == "api" else 3
    namespace, rest = (parts[root + 1], parts[root + 2 :]) if parts[root] == "namespaces" else ("", parts[root:])
    kind, *name = rest or ["namespaces"]
    return "/".join(["", *parts[:root], kind]), namespace, name[0] if name else ""


class NamespaceChanges:
    """Says when a controller has to look at its namespace again.

    It has to after each change there, every IDLE seconds for a while after it, and otherwise every RESYNC seconds.
    """

    def __init__(self, view: LiveView, namespace: str) -> None:
        self._view, self._namespace = view, namespace
        self._seen, self._looked_at = -1, 0.0

    def are_due(self) -> bool:
        (seen, changed_at), now = self._view.changes(self._namespace), time.monotonic()
        interval = IDLE if now < changed_at + RESYNC else RESYNC
        if seen == self._seen and now < self._looked_at + interval:
            return False
        self._seen, self._looked_at = seen, now
        return True

    def expect(self) -> None:
        """Look again at the next tick."""
        self._looked_at = 0.0


class Life(NamedTuple):
    """The time in which one VMI or share-manager pod ran, and its nodes with the times when it came there."""

    uid: str
    begin: float
    end: float  # infinite if it still runs
    nodes: tuple[tuple[float, str], ...]

    def runs_at(self, moment: float) -> bool:
        """Return whether it ran then."""
        return self.begin <= moment < self.end

    def node_at(self, moment: float) -> str:
        """Return the node that it ran on."""
        return [node for at, node in self.nodes if at <= moment][-1]


def lives(sights: list[Sight]) -> Iterator[Life]:
    """Yield each time in which one of the objects ran, in order."""
    for uid in dict.fromkeys(each.uid for each in sights):
        seen = [each for each in sights if each.uid == uid]
        running = [each for each in seen if each.runs]
        if running:
            ended = (each.at for each in seen if not each.runs and each.at > running[-1].at)
            nodes = tuple((next(stay).at, node) for node, stay in groupby(running, key=lambda each: each.node))
            yield Life(uid, running[0].at, next(ended, float("inf")), nodes)
