"""What watches show of the cluster, without a request for each look: the objects, and the lives of VMIs and servers."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

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


class Sight(NamedTuple):
    """A version of an object, as far as its life is concerned."""

    at: float  # monotonic seconds
    uid: str
    runs: bool
    node: str


Key = tuple[str, str]  # namespace and name


class LiveView(Watching):
    """`with LiveView(plane) as view`: watch the pods, VMs, VMIs, migrations and ShareManagers of all namespaces."""

    seconds = 3

    def __init__(self, plane: ControlPlane) -> None:
        self._objects: dict[str, dict[Key, Object]] = {path: {} for path in (PODS, VMS, VMIS, MIGRATIONS, MANAGERS)}
        self._sights = defaultdict[tuple[str, Key], list[Sight]](list)
        self._changes = defaultdict[str, tuple[int, float]](lambda: (0, 0.0))
        self._lock = threading.Lock()
        super().__init__(plane, self._objects)

    def objects(self, path: str, namespace: str) -> list[Object]:
        """Return the objects of a namespace."""
        with self._lock:
            return [found for (place, _), found in self._objects[path].items() if place == namespace]

    def find(self, path: str, namespace: str, name: str) -> Object:
        """Return an object, empty if there is none."""
        return self._objects[path].get((namespace, name), {})

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
        key = metadata["namespace"], metadata["name"]
        with self._lock:
            if kind == "DELETED":
                self._objects[path].pop(key, None)
            else:
                self._objects[path][key] = found
            runs = kind != "DELETED" and found.get("status", {}).get("phase") == "Running"
            node = found["status"].get("nodeName", "") if path == VMIS and runs else found["spec"].get("nodeName", "")
            runs = runs and "deletionTimestamp" not in metadata
            self._sights[path, key].append(Sight(now, metadata["uid"], runs, node))
            volume = metadata["name"].removeprefix("share-manager-") if path in (PODS, MANAGERS) else ""
            for place in {key[0], volume}:
                self._changes[place] = self._changes[place][0] + 1, now


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
