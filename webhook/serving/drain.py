"""The graceful shutdown of an event loop: when it ends."""

from collections.abc import Callable

DRAIN_TIMEOUT = 15.0  # seconds; with a preStop wait of 5 s before it, within Kubernetes' grace period of 30 s
QUIET_PERIOD = 1.0  # seconds without a request; then the Service no longer routes requests to this replica


class Drain:
    """The shutdown of one loop. `last_activity` is when a connection last made progress, in seconds of the clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._forced = False
        self._started = self.last_activity = clock()

    def begin(self) -> None:
        """Begin the shutdown."""
        self._started = self._clock()

    def force(self) -> None:
        """End the shutdown immediately."""
        self._forced = True

    def is_over(self, *, busy: bool) -> bool:
        """Return whether a shutdown that has begun ends: forced, after a quiet period, or after DRAIN_TIMEOUT."""
        now = self._clock()
        is_quiet = not busy and now - max(self.last_activity, self._started) > QUIET_PERIOD
        return self._forced or is_quiet or now - self._started > DRAIN_TIMEOUT
