"""The API server's clock, by the Date header of its responses.

API servers verify certificates by their own clocks. So replicas issue and renew certificates by the API server's clock,
and two replicas whose clocks differ don't replace each other's certificates. The times in a review are the API
server's, too.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

# Responses. The header has whole seconds, and a response may take some: the least difference is closest to the truth.
SAMPLES = 16
TOLERANCE = 1.0  # seconds that the least difference may be wrong
NOTEWORTHY = 60.0  # seconds


class ServerClock:
    """Compares this machine's clock with the API server's. Thread-safe. `clock` returns seconds since the epoch."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._differences: tuple[float, ...] = ()

    @property
    def seconds_ahead(self) -> float:
        """Return by how many seconds this machine's clock is ahead; 0 if no response said it."""
        return min(self._differences, default=0.0)

    def observe(self, date: str | None) -> None:
        """Compare with the Date header of a response that has just arrived; a missing or malformed one is ignored."""
        try:
            difference = self._clock() - parsedate_to_datetime(date or "").timestamp()
        except (ValueError, OverflowError):
            return
        recent = self._differences[1 - SAMPLES :]
        was_set = any(abs(difference - each) > NOTEWORTHY for each in recent)
        self._differences = (difference,) if was_set else (*recent, difference)

    def now(self) -> datetime:
        """Return this machine's time, or the API server's if they differ by more than TOLERANCE."""
        ahead = self.seconds_ahead
        return datetime.fromtimestamp(self._clock() - (ahead if abs(ahead) > TOLERANCE else 0.0), UTC)

    def problem(self) -> str:
        """Return a sentence about a difference of more than NOTEWORTHY, else an empty string."""
        ahead = self.seconds_ahead
        if abs(ahead) <= NOTEWORTHY:
            return ""
        relation = "ahead of" if ahead > 0 else "behind"
        return f"{abs(ahead):.0f} s {relation} the API server's; synchronize the clocks of both nodes"
