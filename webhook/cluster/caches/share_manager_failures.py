"""Remember on which nodes a volume's share-manager has failed, as the watches of pods and ShareManagers show it."""

from collections.abc import Callable, Iterable

from webhook.cluster.caches.failed_nodes import NodeMemory
from webhook.placement.objects.facts import Key, Pod, ShareManager
from webhook.placement.objects.longhorn import VOLUME_LABEL

FAILURE_SECONDS = 600.0


class ServerFailures:
    """The share-manager pods that failed within the last ten minutes, by Longhorn's namespace and volume.

    Longhorn reports a failure as the state `error` of the ShareManager, and deletes the pod. The watch may show the end
    of the pod first. Not thread-safe.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._memory = NodeMemory[Key](clock, FAILURE_SECONDS)
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
                    self._memory.record(manager.key, pod.node, pod.uid)

    def forget(self, volume: Key) -> None:
        """Drop a volume whose ShareManager was deleted."""
        self._ended.pop(volume, None)

    def nodes(self, volume: Key) -> list[str]:
        """List the node of each pod that failed within the last ten minutes."""
        return self._memory.nodes(volume)
