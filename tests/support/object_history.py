"""Record each version of the objects in some collections of the API server, with a list and watches."""

from __future__ import annotations

from itertools import groupby

from certs.cluster import ca_bundles
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.watching import Watching

Event = tuple[int, str, str, Object]  # resource version, path of the collection, type, object


class History(Watching):
    """The versions of each object. Complete after the block `with History(plane, *paths) as history`."""

    def __init__(self, plane: ControlPlane, *paths: str) -> None:
        self._events: list[Event] = []
        super().__init__(plane, paths)

    def events(self) -> list[Event]:
        """Return what happened so far, in order: all objects are in one etcd."""
        return sorted(self._events, key=lambda event: event[0])

    def ca_bundles(self, name: str) -> list[bytes]:
        """Return the `caBundle`s of a configuration in order. Versions that leave them unchanged add nothing."""
        versions = [item for _, _, _, item in self.events() if item["metadata"]["name"] == name]
        values = (one for version in versions for one in sorted(set(ca_bundles(version).values())))
        return [value for value, _ in groupby(values)]

    def _see(self, path: str, kind: str, found: Object) -> None:
        self._events.append((int(found["metadata"]["resourceVersion"]), path, kind, found))

    def _follow(self, path: str, version: str) -> None:
        is_last = False
        while not is_last:
            is_last = self._stopped.is_set()  # the last watch begins after the end of the block
            version = self._watch(path, version)
