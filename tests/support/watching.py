"""List and watch some collections of the API server in threads, for what remembers their objects."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from typing import Self

from msgspec.structs import replace

from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from webhook.cluster.client import ClusterClient


class Watching:
    """`with Watching(plane, paths)`: each path has a thread. Subclasses remember the objects."""

    seconds = 1  # until a watch is renewed, or ends

    def __init__(self, plane: ControlPlane, paths: Iterable[str]) -> None:
        cluster = ClusterClient.connect(str(plane.kubeconfig))
        # For each token, the library looks for proxies in the environment, which pytest changes between tests.
        header = cluster.api.authorization()
        self._cluster = replace(cluster, api=replace(cluster.api, authorization=lambda: header))
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._follow, args=(path, self._list(path))) for path in paths]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _see(self, path: str, kind: str, found: Object) -> None:
        """Remember an object that exists, as ADDED, or the object of an event."""
        raise NotImplementedError

    def _follow(self, path: str, version: str) -> None:
        """Watch from a version on, until the end of the block."""
        raise NotImplementedError

    def _list(self, path: str) -> str:
        """See the objects that exist, and return the resource version of the list."""
        version = ""
        for version, objects in self._cluster.pages(path):  # noqa: B007 (the last page's version is returned)
            for found in map(json.loads, map(bytes, objects)):
                self._see(path, "ADDED", found)
        return version

    def _watch(self, path: str, version: str) -> str:
        """See the events of one watch, and return the last resource version."""
        for kind, raw in self._cluster.watch(path, version, self.seconds):
            found = json.loads(bytes(raw))
            version = found["metadata"]["resourceVersion"]
            if kind != "BOOKMARK":
                self._see(path, kind, found)
        return version
