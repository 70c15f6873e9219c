"""Remember for an hour which VMs lost an unschedulable pod, and the node that it was pinned to."""

from collections.abc import Callable
from typing import NamedTuple

# Seconds. KubeVirt waits at most 300 s before it starts a VM again, so the next start is well within the hour.
MEMORY_SECONDS = 3600.0
MAX_VMS, MAX_PODS_PER_VM = 4096, 4  # bound the memory to a few MiB, however many pods users create and delete


class VmId(NamedTuple):
    """A VM. `uid` is the VirtualMachine's, which changes if the VM is recreated; empty without a VirtualMachine."""

    namespace: str
    name: str
    uid: str


class ReleaseMemory:
    """The pinned pods of each VM that the scheduler could not place and that were deleted within the last hour.

    The webhook released such a pod, or a user or a controller deleted it. In each case, a new pin to the same node
    might leave the VM's next pod Pending again. `clock` returns monotonic seconds. Not thread-safe.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # By VM, the VM recorded last at the end: the node and the time of each pod, by its UID.
        self._gone: dict[VmId, dict[str, tuple[str, float]]] = {}

    def record(self, vm: VmId, node: str, uid: str) -> None:
        """Record that a VM's pod that was pinned to `node` was deleted. A pod counts once, however often recorded."""
        pods = self._gone.pop(vm, {})
        pods.setdefault(uid, (node, self._clock()))
        while len(pods) > MAX_PODS_PER_VM:
            del pods[next(iter(pods))]
        self._gone[vm] = pods
        while len(self._gone) > MAX_VMS:
            del self._gone[next(iter(self._gone))]

    def nodes(self, vm: VmId) -> list[str]:
        """List the node of each pod of a VM that was deleted within the last hour."""
        since = self._clock() - MEMORY_SECONDS
        return [node for node, at in self._gone.get(vm, {}).values() if at > since]
