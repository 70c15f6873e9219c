"""Measures the turns of an event loop: how long it has made no progress, and its longest turn."""

from collections.abc import Callable

POLL_TIMEOUT = 1.0  # seconds; the longest time between two turns
STALLED_AFTER = 10.0  # seconds without a turn; the API server gives up a call after the same time


class TurnTimes:
    """The times of a loop's turns. `last_begin` is when the last turn began, in seconds of the clock.

    Any thread may call the methods that return seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._longest, self.last_begin = 0.0, clock()

    def begin(self) -> float:
        """Begin a turn, and return when it began."""
        self.last_begin = self._clock()
        return self.last_begin

    def end(self) -> None:
        """End the turn that has begun."""
        self._longest = max(self._longest, self._clock() - self.last_begin)

    def stalled_seconds(self) -> float:
        """Return the seconds since the last turn began, or 0 up to STALLED_AFTER."""
        elapsed = self._clock() - self.last_begin
        return elapsed if elapsed > STALLED_AFTER else 0.0

    def take_longest(self) -> float:
        """Return the seconds of the longest turn since the last call, or of the current one."""
        longest, self._longest = self._longest, 0.0
        elapsed = self._clock() - self.last_begin
        return max(longest, elapsed if elapsed > 2 * POLL_TIMEOUT else 0.0)  # up to POLL_TIMEOUT may be an idle poll
