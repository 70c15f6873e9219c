"""Record each version of the objects in some collections of the API server, with a list and watches."""

from __future__ import annotations

import json
import threading
from itertools import groupby

from msgspec.structs import replace

from certs.cluster import ca_bundles
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from webhook.cluster.client import ClusterClient

WATCH = 1  # seconds until a watch is renewed, or ends
Event = tuple[int, str, str, Object]  # resource version, path of the collection, type, object


class History:
    """The versions of each object. Complete after the block `with History(plane, *paths) as history`."""

    def __init__(self, plane: ControlPlane, *paths: str) -> None:
        cluster = ClusterClient.connect(str(plane.kubeconfig))
        # For each token, the library looks for proxies in the environment, which pytest changes between tests.
        header = cluster.api.authorization()
        self._cluster = replace(cluster, api=replace(cluster.api, authorization=lambda: header))
        self._events: list[Event] = []
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._record, args=(path, self._list(path))) for path in paths]

    def __enter__(self) -> History:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def events(self) -> list[Event]:
        """Return what happened so far, in order: all objects are in one etcd."""
        return sorted(self._events, key=lambda event: event[0])

    def ca_bundles(self, name: str) -> list[bytes]:
        """Return the `caBundle`s of a configuration in order. Versions that leave them unchanged add nothing."""
        versions = [item for _, _, _, item in self.events() if item["metadata"]["name"] == name]
        values = (one for version in versions for one in sorted(set(ca_bundles(version).values())))
        return [value for value, _ in groupby(values)]

    def _list(self, path: str) -> str:
        """Record the objects that exist, and return the resource version of the list."""
        version, objects = next(self._cluster.pages(path))
        for found in map(json.loads, map(bytes, objects)):
            self._events.append((int(found["metadata"]["resourceVersion"]), path, "ADDED", found))
        return version

    def _record(self, path: str, version: str) -> None:
        is_last = False
        while not is_last:
            is_last = self._stopped.is_set()  # the last watch begins after the end of the block
            for kind, raw in self._cluster.watch(path, version, WATCH):
                found = json.loads(bytes(raw))
                version = found["metadata"]["resourceVersion"]
                if kind != "BOOKMARK":
                    self._events.append((int(version), path, kind, found))
