"""Record every version of the objects in a collection of the API server, with a list and a watch."""

from __future__ import annotations

import json
import threading
import uuid
from collections import defaultdict
from itertools import groupby
from typing import Any

from certs.cluster import ca_bundles
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from webhook.cluster.client import ClusterClient

# Seconds, more than a test takes on a machine that is ten times slower. The watch is closed earlier, at the end marker.
WATCH_TIMEOUT = 1200


class History:
    """The versions of each object. Complete after the block `with History(plane, path) as history`."""

    def __init__(self, plane: ControlPlane, path: str) -> None:
        """`path` is the path of a collection."""
        self._plane, self._path = plane, path
        self._versions: defaultdict[str, list[Object]] = defaultdict(list)
        self._end_marker = f"the-end-{uuid.uuid4().hex}"
        self._thread = threading.Thread(target=self._record)

    def __enter__(self) -> History:
        cluster = ClusterClient.connect(str(self._plane.kubeconfig))
        version, objects = next(cluster.pages(self._path))
        for each in map(json.loads, map(bytes, objects)):
            self._versions[each["metadata"]["name"]].append(each)
        self._events: Any = cluster.watch(self._path, version, WATCH_TIMEOUT)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Create an object as the end marker. When the watch shows it, no earlier version is missing.
        self._plane.request("POST", self._path, {"metadata": {"name": self._end_marker}})
        self._thread.join(30)
        self._plane.request("DELETE", f"{self._path}/{self._end_marker}")
        assert self._end_marker in self._versions, "the watch ended before the test did"

    def ca_bundles(self, name: str) -> list[bytes]:
        """Return the `caBundle`s of a configuration in order. Versions that leave them unchanged add nothing."""
        values = (one for version in self._versions[name] for one in sorted(set(ca_bundles(version).values())))
        return [value for value, _ in groupby(values)]

    def latest_ca_bundles(self, name: str) -> set[bytes]:
        """Return the distinct `caBundle`s in the latest version of a configuration."""
        return set(ca_bundles(self._versions[name][-1]).values())

    def versions(self, name: str) -> list[Object]:
        """Return all versions of an object."""
        return self._versions[name]

    def _record(self) -> None:
        for kind, raw in self._events:
            found = json.loads(bytes(raw))
            if kind in ("ADDED", "MODIFIED"):
                self._versions[found["metadata"]["name"]].append(found)
            if found["metadata"].get("name") == self._end_marker:
                break
        self._events.close()
