"""Count a pod on the node that it requires or prefers at once: the caches show the pod some milliseconds later.

A VM passes through these steps, and each is one method of `Reservations`:

1. `withdraw`: a review of the VM's pod begins. An earlier try may have reserved; the decision must not count that.
2. `settle`: the decision reserves, if it changes the pod and the VMI is known. A dry run calls `restore` instead.
3. The API server stores the pod, and the watch shows it. `Pins` counts the pod from then on, and calls `end`.
4. If the pod doesn't show up, because a quota rejected it or its creator gave up, the reservation expires after 10 s.
   Until a pod of the VM shows up, the VM can't reserve again: a rejected pod may come back for ever.
"""

from collections.abc import Callable

from msgspec.structs import replace

from webhook.catalog.pod_tables import PlacedPods
from webhook.placement.objects.facts import Key, Pod
from webhook.placement.reasons import Decision

# Seconds until a reservation expires if the pod doesn't show up in the cache: the pod may have been rejected after the
# webhook's response.
RESERVATION_SECONDS = 10.0
# The reviews may be made up. Beyond this number, the oldest reservation ends: its pod is the most likely one to be in
# the cache, or rejected.
MAX_RESERVATIONS = 2048
MAX_REMEMBERED = 8192  # VMs whose pod the caches have not shown since they reserved


class Reservations(PlacedPods):
    """The pods that this replica has pinned, or for which it prefers a node, until the caches show them, by VM.

    Without reservations, a burst of VMs would be pinned into the same free capacity. A `vm` is a `vm_key`.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._reserved_at: dict[Key, float] = {}
        # The VMs that may not reserve again: the caches have not shown the pod for which they reserved.
        self._awaited: dict[Key, None] = {}

    def end(self, vm: Key) -> None:
        """End the reservation of a VM: the caches have shown its pod."""
        self._forget(vm)
        self._awaited.pop(vm, None)

    def withdraw(self, vm: Key) -> Pod | None:
        """Remove and return the reservation of a VM: its next decision must not count it."""
        now = self._clock()
        while self._reserved_at:
            oldest, reserved_at = next(iter(self._reserved_at.items()))
            if now - reserved_at < RESERVATION_SECONDS:
                break
            self._forget(oldest)
        return self.remove(vm)

    def restore(self, withdrawn: Pod | None) -> None:
        """Store again what `withdraw` returned."""
        if withdrawn:
            self.put(withdrawn)

    def settle(self, vm: Key, withdrawn: Pod | None, decision: Decision, *, changes_pod: bool, known: bool) -> None:
        """Reserve for the VM what the final decision reserves. Otherwise, an earlier reservation continues unchanged.

        Only a known VMI reserves, and once until the caches show its pod: a quota may reject the pod again and again.
        """
        if decision.unpins:
            return
        pod = decision.reservation
        may_reserve = changes_pod and known and vm not in self._awaited
        if pod is None or not (withdrawn or may_reserve):
            self.restore(withdrawn)
            return
        if withdrawn is None:
            self._reserved_at.pop(vm, None)  # the order of the dict is the order of time
            self._reserved_at[vm] = self._clock()
            self._awaited[vm] = None
        if len(self._awaited) > MAX_REMEMBERED:
            del self._awaited[next(iter(self._awaited))]
        if len(self._reserved_at) > MAX_RESERVATIONS:
            self._forget(next(iter(self._reserved_at)))
        self.put(pod if pod.key == vm else replace(pod, name=vm[1]))

    def _forget(self, vm: Key) -> None:
        self.remove(vm)
        self._reserved_at.pop(vm, None)
