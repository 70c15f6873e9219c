"""Count a pod on the node that it requires or prefers at once: the caches show the pod some milliseconds later."""

from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from webhook.cluster.caches.pins import Arrival
from webhook.cluster.caches.pod_tables import PlacedPods
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
MAX_REMEMBERED = 8192  # VMs that this replica has pinned

Withdrawn = tuple[Pod | None, Pod | None]


class Reservations(PlacedPods):
    """The pods that this replica has pinned, or for which it prefers a node, until the caches show them, by VM.

    Without reservations, a burst of VMs would be pinned into the same free capacity. A `vm` is a `vm_key`.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        # The pods that this replica pinned in the last moments, whether the caches show them or not.
        self.recent_pins: dict[Key, Pod] = {}
        # When the caches showed the last new pin to a node, for nodes where that is recent, and one of another replica.
        self.last_pins: dict[str, float] = {}
        self.other_replica_pinned_at = float("-inf")
        self._clock = clock
        self._reserved_at: dict[Key, float] = {}
        # The VMs that this replica has pinned, and whether they may reserve: once until the caches show their pod.
        self._may_reserve: dict[Key, bool] = {}
        # When the cache showed a pin of this replica, and after which delay.
        self._delays: deque[tuple[float, float]] = deque(maxlen=100)

    def end(self, vm: Key) -> None:
        """End the reservation of a VM: the caches have shown its pod."""
        self.remove(vm)
        if vm in self._may_reserve:
            self._may_reserve[vm] = True

    def withdraw(self, vm: Key, arrivals: deque[Arrival]) -> Withdrawn:
        """Remove and return the reservation and the recent pin of a VM: its next decision must not count them."""
        now = self._clock()
        self._learn(arrivals, now)
        self._expire(now)
        return self.remove(vm), self.recent_pins.pop(vm, None)

    def restore(self, withdrawn: Withdrawn) -> None:
        """Store again what `withdraw` returned."""
        reservation, recent = withdrawn
        if reservation:
            self.put(reservation)
        if recent:
            self.recent_pins[recent.key] = recent

    def settle(self, vm: Key, withdrawn: Withdrawn, decision: Decision, *, changes_pod: bool, known: bool) -> None:
        """Reserve for the VM what the final decision reserves. Otherwise, an earlier reservation continues unchanged.

        Only a known VMI reserves, and once until the caches show its pod: a quota may reject the pod again and again.
        """
        pod = decision.reservation
        if decision.unpins:
            return
        may_reserve = self._may_reserve.get(vm, True) and known
        if pod is None or not (withdrawn[0] or (changes_pod and may_reserve)):
            self.restore(withdrawn)
            if pod and changes_pod and vm not in self._may_reserve:
                self._remember(vm, may_reserve=True)  # otherwise it would be a pin of another replica
            return
        pod = pod if pod.key == vm else replace(pod, name=vm[1])
        if withdrawn[0] is None:
            self._reserved_at.pop(vm, None)  # the order of the dict is the order of time
            self._reserved_at[vm] = self._clock()
            self._remember(vm, may_reserve=False)
        if len(self._reserved_at) > MAX_RESERVATIONS:
            self._forget(next(iter(self._reserved_at)))
        self.restore((pod, None if pod.prefers else pod))

    def _remember(self, vm: Key, *, may_reserve: bool) -> None:
        self._may_reserve.pop(vm, None)
        self._may_reserve[vm] = may_reserve
        if len(self._may_reserve) > MAX_REMEMBERED:
            del self._may_reserve[next(iter(self._may_reserve))]

    def _learn(self, arrivals: deque[Arrival], now: float) -> None:
        """Learn from the pins that the cache has shown for the first time how fast it shows pins."""
        while arrivals:
            arrival = arrivals.popleft()
            self.last_pins[arrival.node] = arrival.at
            if (reserved_at := self._reserved_at.get(arrival.vm)) is not None:
                self._delays.append((arrival.at, arrival.at - reserved_at))
            elif arrival.vm not in self._may_reserve:
                self.other_replica_pinned_at = arrival.at
        while self._delays and self._delays[0][0] <= now - DELAY_SECONDS:
            self._delays.popleft()

    def _expire(self, now: float) -> None:
        longest_delay = max((delay for _, delay in self._delays), default=0.0)
        recent_seconds = min(max(DELAY_FACTOR * longest_delay, MIN_RECENT_SECONDS), MAX_RECENT_SECONDS)
        for node in [node for node, at in self.last_pins.items() if now - at >= recent_seconds]:
            del self.last_pins[node]
        for vm, reserved_at in list(self._reserved_at.items()):
            age = now - reserved_at
            if age < recent_seconds:
                break
            if age >= RESERVATION_SECONDS or self.find(*vm) is None:
                self._forget(vm)

    def _forget(self, vm: Key) -> None:
        self.remove(vm)
        self.recent_pins.pop(vm, None)
        del self._reserved_at[vm]
