"""Remember for a while on which nodes the pods of a VM, or of a volume, failed."""

from collections.abc import Callable, Iterable

from webhook.fleet.release import Loss
from webhook.placement.objects.facts import Key, Pod, ShareManager
from webhook.placement.objects.longhorn import VOLUME_LABEL

# Seconds. KubeVirt waits at most 300 s before it starts a VM again, so the next start is well within the hour.
RELEASE_SECONDS = 3600.0
FAILURE_SECONDS = 600.0  # of a share-manager
MAX_OWNERS, MAX_PODS_PER_OWNER = 4096, 4  # bound the memory to a few MiB, however many pods users create and delete


# A volume's namespace and name, or those of a VM or of the replica set of a VMI, and its UID, which changes if it is
# recreated.
Owner = tuple[str, ...]


class NodeMemory:
    """The pods of each owner that failed within the last `seconds`, with their nodes. Not thread-safe."""

    def __init__(self, clock: Callable[[], float], seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        # By owner, the owner recorded last at the end: each pod, by its UID.
        self._gone: dict[Owner, dict[str, Loss]] = {}

    def record(self, owner: Owner, node: str, uid: str, seen: float = 0.0) -> None:
        """Record that a pod failed on `node`, first `seen` then. A pod counts once, however often recorded."""
        pods = self._gone.pop(owner, {})
        pods.setdefault(uid, Loss(node, seen, self._clock()))
        while len(pods) > MAX_PODS_PER_OWNER:  # the first one stays, because it decides which others count
            del pods[min(list(pods)[1:], key=lambda each: pods[each].seen)]
        self._gone[owner] = pods
        while len(self._gone) > MAX_OWNERS:
            del self._gone[next(iter(self._gone))]

    def losses(self, owner: Owner) -> list[Loss]:
        """List the pods of an owner that failed within the last `seconds`."""
        since = self._clock() - self._seconds
        return [each for each in self._gone.get(owner, {}).values() if each.at > since]


class ServerFailures(NodeMemory):
    """The share-manager pods that failed within the last ten minutes, by Longhorn's namespace and volume.

    Longhorn reports a failure as the state `error` of the ShareManager, and deletes the pod. The watch may show the end
    of the pod first. Not thread-safe.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock, FAILURE_SECONDS)
        # The pods that ended since the last change of their ShareManager.
        self._ended: dict[Key, Pod] = {}

    def end(self, pod: Pod) -> None:
        """Take note of the end of a share-manager pod, whose ShareManager is known."""
        self._ended[pod.namespace, pod.labels[VOLUME_LABEL]] = pod

    def change(self, manager: ShareManager, servers: Iterable[Pod]) -> None:
        """Take note of a change of a ShareManager. `servers` are the pods of its volume that still exist."""
        ended = self._ended.pop(manager.key, None)
        if manager.state == "error":
            for pod in (*servers, *([ended] if ended else [])):
                if pod.node:
                    self.record(manager.key, pod.node, pod.uid)

    def forget(self, volume: Key) -> None:
        """Drop a volume whose ShareManager was deleted."""
        self._ended.pop(volume, None)
