"""Every version that some objects of a cluster have had, as a watch shows them."""

from __future__ import annotations

import json
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

from certs.bundle import content
from certs.cluster import ca_bundles
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from webhook.cluster.client import ClusterClient

LONGEST = 1200  # seconds, more than a machine that is ten times slower takes; a watch ends when we have seen the end


class History:
    """`with History(plane, path) as history`: afterwards it knows each version since the beginning, by object."""

    def __init__(self, plane: ControlPlane, path: str) -> None:
        """`path` is that of a collection."""
        self._plane, self._path = plane, path
        self._versions: defaultdict[str, list[Object]] = defaultdict(list)
        self._end = f"the-end-{uuid.uuid4().hex}"
        self._thread = threading.Thread(target=self._follow)

    def __enter__(self) -> History:
        cluster = ClusterClient.connect(str(self._plane.kubeconfig))
        version, objects = next(cluster.pages(self._path))
        for each in map(json.loads, map(bytes, objects)):
            self._versions[each["metadata"]["name"]].append(each)
        self._events: Any = cluster.watch(self._path, version, LONGEST)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # The last thing that it is to see: nothing before that is missing then, and it ends by itself.
        self._plane.request("POST", self._path, {"metadata": {"name": self._end}})
        self._thread.join(30)
        self._plane.request("DELETE", f"{self._path}/{self._end}")
        assert self._end in self._versions, "the watch ended before the test did"

    def bundles(self, name: str) -> list[bytes]:
        """Return the `ca.crt`s of a Secret one after the other, each as often as it came back."""
        return self._sequence(name, lambda secret: [content(secret, "ca.crt")])

    def ca_bundles(self, name: str) -> list[bytes]:
        """Return the same of a configuration's `caBundle`s."""
        return self._sequence(name, lambda configuration: sorted(set(ca_bundles(configuration).values())))

    def latest(self, name: str) -> set[bytes]:
        """Return the different `caBundle`s of a configuration as it was last seen."""
        return set(ca_bundles(self._versions[name][-1]).values())

    def of(self, name: str) -> list[Object]:
        """Return each version of an object."""
        return self._versions[name]

    def versions(self, name: str) -> int:
        """Return how often an object was written."""
        return len(self._versions[name]) - 1

    def _sequence(self, name: str, read: Callable[[Object], list[bytes]]) -> list[bytes]:
        each: Iterator[bytes] = (one for version in self._versions[name] for one in read(version))
        return [one for one, _ in groupby(each)]

    def _follow(self) -> None:
        for kind, raw in self._events:
            found = json.loads(bytes(raw))
            if kind in ("ADDED", "MODIFIED"):
                self._versions[found["metadata"]["name"]].append(found)
            if found["metadata"].get("name") == self._end:
                break
        self._events.close()
