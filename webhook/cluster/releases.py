"""Remember for an hour which VMs lost a pinned pod before the scheduler bound it."""

from collections.abc import Callable

from webhook.placement.facts import Key

# Seconds. KubeVirt waits at most 300 s before it starts a VM again, so the next start is well within the hour.
MEMORY_SECONDS = 3600.0
MAX_VMS, MAX_PODS_PER_VM = 4096, 4  # bound the memory to a few MiB, however many pods users create and delete


class ReleaseMemory:
    """The pinned pods of each VM that were deleted unbound within the last hour. Not thread-safe.

    The webhook released such a pod, or a user or a controller deleted it. In each case, a new pin
    might leave the VM's next pod Pending again. `clock` returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._gone: dict[Key, dict[str, float]] = {}  # by VM, the VM recorded last at the end: each pod's UID and time

    def record(self, vm: Key, uid: str) -> None:
        """Record that a pod of a VM was deleted. A pod counts once, however often it is recorded."""
        pods = self._gone.pop(vm, {})
        pods.setdefault(uid, self._clock())
        while len(pods) > MAX_PODS_PER_VM:
            del pods[next(iter(pods))]
        self._gone[vm] = pods
        while len(self._gone) > MAX_VMS:
            del self._gone[next(iter(self._gone))]

    def count(self, vm: Key) -> int:
        """Count the pods of a VM that were deleted within the last hour."""
        since = self._clock() - MEMORY_SECONDS
        return sum(at > since for at in self._gone.get(vm, {}).values())
