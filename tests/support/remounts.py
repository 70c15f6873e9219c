"""Which pods Longhorn deletes after it has replaced the share-manager of their volume.

The rule is `handlePodDeletionIfVolumeRequestRemount` in controller/kubernetes_pod_controller.go of longhorn-manager
5ddaa369f. Longhorn compares times of whole seconds, so a race decides: it spares the pods if the new share-manager
starts in the second in which it asked for the remount, or if it asks again after that start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

from tests.support.controlplane.api import Object

DELAY = 5.0  # seconds; line 38


class Remounts:
    """The `remountRequestedAt` of the volumes.

    `races` decides for a volume whether `error` is stored until its next share-manager has started. Longhorn asks again
    as long as it is. Without an entry, the next share-manager starts in a later second.
    """

    def __init__(self) -> None:
        self.delay = DELAY
        self.races: dict[str, Callable[[], bool]] = {}  # by volume, as the next two
        self._requested_at: dict[str, datetime] = {}
        self._lasting: set[str] = set()

    def request(self, volume: str, *, again: bool) -> None:
        """Ask for a remount: controller/volume_controller.go:7068."""
        self._requested_at[volume] = datetime.now(UTC).replace(microsecond=0)
        if not again:
            self._lasting.discard(volume)
            self._lasting |= {volume} if volume in self.races and self.races[volume]() else set()

    def lasts(self, volume: str) -> bool:
        """Return whether `error` is stored until the next share-manager has started."""
        return volume in self._lasting

    def is_past(self, volume: str) -> bool:
        """Return whether the second of the request is over, so that a share-manager that starts now starts later."""
        requested_at = self._requested_at.get(volume)
        return requested_at is None or datetime.now(UTC) >= requested_at + timedelta(seconds=1)

    def is_pending(self, volume: str, server: Object | None) -> bool:
        """Return whether Longhorn may still delete the pods that mounted the share of a replaced share-manager."""
        requested_at = self._requested_at.get(volume)
        started_at = server and _started_at(server)
        return requested_at is not None and (not started_at or started_at > requested_at)

    def take(
        self, volume: str, server: Object | None, pods: Callable[[], Iterable[Object]], ready: Iterable[str]
    ) -> list[Object]:
        """Return the pods to delete now, of those that mount the volume.

        On each node, Longhorn's manager deletes the pods of that node. So the node has to be ready: line 620.
        """
        requested_at = self._requested_at.get(volume)
        if requested_at is None or not server or not is_due(server, requested_at, datetime.now(UTC), self.delay):
            return []
        affected = [pod for pod in pods() if is_affected(pod, requested_at)]
        here = [pod for pod in affected if pod["spec"].get("nodeName") in ready]
        if here == affected:
            del self._requested_at[volume]
        return here


def is_due(server: Object, requested_at: datetime, now: datetime, delay: float = DELAY) -> bool:
    """Return whether Longhorn deletes the affected pods now: lines 676 to 712."""
    started_at = _started_at(server)
    serves = server["status"].get("phase") == "Running" and is_serving(server)
    return bool(started_at and started_at > requested_at and serves and now > requested_at + timedelta(seconds=delay))


def is_affected(pod: Object, requested_at: datetime) -> bool:
    """Return whether Longhorn deletes a pod that mounts the volume, once it is due: lines 635 to 656, and 706."""
    metadata, started_at = pod["metadata"], _started_at(pod)
    has_controller = any(each.get("controller") for each in metadata.get("ownerReferences", []))
    is_old = started_at is not None and started_at < requested_at
    return has_controller and is_old and "deletionTimestamp" not in metadata


def is_serving(pod: Object) -> bool:
    """Return whether the NFS server of a running pod answers: its readiness probe asks for that."""
    return all(each["ready"] for each in pod["status"].get("containerStatuses", []))


def was_handled(pod: Object | None) -> bool:
    """Return whether a kubelet has started a pod, or the scheduler has refused it."""
    conditions = pod["status"].get("conditions", []) if pod else []
    refused = any(each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions)
    return refused or bool(pod and _started_at(pod))


def _started_at(pod: Object) -> datetime | None:
    started_at = pod["status"].get("startTime")
    return datetime.fromisoformat(started_at) if started_at else None
