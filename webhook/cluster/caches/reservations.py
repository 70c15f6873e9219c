"""Count a pod on the node that it requires or prefers at once: the caches show the pod some milliseconds later."""

from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from webhook.cluster.caches.store import Store
from webhook.placement.objects.facts import Key, Pod
from webhook.placement.reasons import Decision

# Seconds until a reservation expires if the pod doesn't show up in the cache: the pod may have been rejected after the
# webhook's response.
RESERVATION_SECONDS = 10.0
# A pin counts as recent for so many times the delay with which the cache shows this replica's own pins: the watch of
# another replica, or the creation of one of its pods, may take longer. In seconds at least and at most.
DELAY_FACTOR, MIN_RECENT_SECONDS, MAX_RECENT_SECONDS = 3.0, 0.5, 5.0
DELAY_SECONDS = 10.0  # for which such a delay counts
# The reviews may be made up. Beyond this number, the oldest reservation ends: its pod is the most likely one to be in
# the cache, or rejected.
MAX_RESERVATIONS = 2048
MAX_REMEMBERED = 8192  # VMs for which this replica has reserved
MAX_UNRESERVED = 1024  # VMs that this replica has pinned without a reservation


class Reservations:
    """Maintains a store's `reservations` and `recent_pins`. Callers must hold the store's lock.

    Without reservations, a burst of VMs would be pinned into the same free capacity. A `vm` is a `vm_key`.
    """

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self._reserved_at: dict[Key, float] = {}
        # The VMs for which this replica has reserved, and whether the caches have shown the pod since.
        self._was_shown: dict[Key, bool] = {}
        # The VMs that this replica has pinned before the caches showed their VMI: they are no pins of another replica.
        self._unreserved: deque[Key] = deque(maxlen=MAX_UNRESERVED)
        # When the cache showed a pin of this replica, and after which delay.
        self._delays: deque[tuple[float, float]] = deque(maxlen=100)

    def withdraw(self, vm: Key) -> tuple[Pod | None, Pod | None]:
        """Remove and return the reservation and the recent pin of a VM: its next decision must not count them."""
        now = self._clock()
        self._store.counting_pins()  # shows what has arrived
        self._learn(now)
        self._expire(now)
        return self._store.reservations.remove(vm), self._store.recent_pins.remove(vm)

    def restore(self, withdrawn: tuple[Pod | None, Pod | None]) -> None:
        """Store again what `withdraw` returned."""
        reservation, recent = withdrawn
        if reservation:
            self._store.reservations.put(reservation)
        if recent:
            self._store.recent_pins.put(recent)

    def settle(self, vm: Key, withdrawn: tuple[Pod | None, Pod | None], decision: Decision, *, reserves: bool) -> None:
        """Reserve for the VM what the final decision reserves. Otherwise, an earlier reservation continues unchanged.

        `reserves` means that the decision will get a patch; if it gets none, call `give_back`.

        Only a known VMI reserves, and once until the caches show its pod: a quota may reject the pod again and again.
        """
        pod = decision.reservation
        if decision.unpins:
            return
        may_reserve = self._was_shown.get(vm, True) and self._store.pins.knows_vmi(*vm)
        if pod is None or not (withdrawn[0] or (reserves and may_reserve)):
            self.restore(withdrawn)
            if reserves:
                self._unreserved.append(vm)
            return
        pod = pod if pod.key == vm else replace(pod, name=vm[1])
        if withdrawn[0] is None:
            self._reserved_at.pop(vm, None)  # the order of the dict is the order of time
            self._reserved_at[vm] = self._clock()
            self._remember(vm)
        if len(self._reserved_at) > MAX_RESERVATIONS:
            self._end(next(iter(self._reserved_at)))
        self.restore((pod, None if pod.prefers else pod))

    def give_back(self, vm: Key, withdrawn: tuple[Pod | None, Pod | None]) -> None:
        """Undo `settle` for a VM that does not get its patch."""
        self.withdraw(vm)
        self.restore(withdrawn)
        if withdrawn[0] is None:
            self._was_shown.pop(vm, None)

    def _remember(self, vm: Key) -> None:
        self._was_shown.pop(vm, None)
        self._was_shown[vm] = False
        if len(self._was_shown) > MAX_REMEMBERED:
            del self._was_shown[next(iter(self._was_shown))]

    def _learn(self, now: float) -> None:
        """Learn from the pins that the cache has shown for the first time how fast it shows pins."""
        while self._store.shown_vms:
            if (vm := self._store.shown_vms.popleft()) in self._was_shown:
                self._was_shown[vm] = True
        arrivals = self._store.pins.arrivals
        while arrivals:
            arrival = arrivals.popleft()
            self._store.last_pins[arrival.node] = arrival.at
            if (reserved_at := self._reserved_at.get(arrival.vm)) is not None:
                self._delays.append((arrival.at, arrival.at - reserved_at))
            elif arrival.vm not in self._was_shown and arrival.vm not in self._unreserved:
                self._store.other_replica_pinned_at = arrival.at
        while self._delays and self._delays[0][0] <= now - DELAY_SECONDS:
            self._delays.popleft()

    def _expire(self, now: float) -> None:
        longest_delay = max((delay for _, delay in self._delays), default=0.0)
        recent_seconds = min(max(DELAY_FACTOR * longest_delay, MIN_RECENT_SECONDS), MAX_RECENT_SECONDS)
        last_pins = self._store.last_pins
        for node in [node for node, at in last_pins.items() if now - at >= recent_seconds]:
            del last_pins[node]
        for vm, reserved_at in list(self._reserved_at.items()):
            age = now - reserved_at
            if age < recent_seconds:
                break
            if age >= RESERVATION_SECONDS or self._store.reservations.get(vm) is None:
                self._end(vm)

    def _end(self, vm: Key) -> None:
        self._store.reservations.remove(vm)
        self._store.recent_pins.remove(vm)
        del self._reserved_at[vm]
