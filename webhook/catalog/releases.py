"""Remember for an hour on which nodes the pinned pods of a VM failed."""

from collections.abc import Callable

from webhook.fleet.release import Loss

# Seconds. KubeVirt waits at most 300 s before it starts a VM again, so the next start is well within the hour.
RELEASE_SECONDS = 3600.0
MAX_OWNERS, MAX_PODS_PER_OWNER = 4096, 4  # bound the memory to a few MiB, however many pods users create and delete

# The namespace and name of a VM or of the replica set of a VMI, and its UID, which changes if it is recreated.
Owner = tuple[str, ...]


class Releases:
    """The pinned pods of each VM that the scheduler could not place and that were deleted within the last hour.

    The webhook released them, or a user or a controller deleted them: a new pin might leave the VM Pending again. Not
    thread-safe.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
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
        """List the pods of an owner."""
        since = self._clock() - RELEASE_SECONDS
        return [each for each in self._gone.get(owner, {}).values() if each.at > since]
