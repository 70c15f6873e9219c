"""The API server's clock, by the Date header of its responses.

API servers verify certificates by their own clocks. So replicas issue and renew certificates by the API server's clock,
and two replicas whose clocks differ don't replace each other's certificates.
"""

import time
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

TOLERANCE = 60.0  # seconds: the header has whole seconds, and a response may take some


class ServerClock:
    """Compares this machine's clock with the API server's. Thread-safe."""

    def __init__(self) -> None:
        self.seconds_ahead = 0.0  # of the API server, at the last response

    def observe(self, date: str | None) -> None:
        """Compare with the Date header of a response that has just arrived; a missing or malformed one is ignored."""
        try:
            self.seconds_ahead = time.time() - parsedate_to_datetime(date or "").timestamp()
        except (ValueError, OverflowError):
            return

    def now(self) -> datetime:
        """Return this machine's time, or the API server's if they differ by more than TOLERANCE."""
        ahead = self.seconds_ahead if abs(self.seconds_ahead) > TOLERANCE else 0.0
        return datetime.now(UTC) - timedelta(seconds=ahead)

    def problem(self) -> str:
        """Return a sentence about a difference of more than TOLERANCE, else an empty string."""
        if abs(self.seconds_ahead) <= TOLERANCE:
            return ""
        relation = "ahead of" if self.seconds_ahead > 0 else "behind"
        return f"{abs(self.seconds_ahead):.0f} s {relation} the API server's; synchronize the clocks of both nodes"
