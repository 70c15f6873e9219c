"""A token bucket: limits how often something happens per second."""

from collections.abc import Callable


class TokenBucket:
    """Allows `rate` events per second, and up to `burst` at once after a quiet time. Not thread-safe.

    `clock` returns seconds.
    """

    def __init__(self, rate: float, burst: int, clock: Callable[[], float]) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._tokens = float(burst)
        self._refilled = clock()

    def take(self) -> bool:
        """Take one token. Return False if there is none."""
        now = self._clock()
        elapsed = max(0.0, now - self._refilled)  # a wall clock may be set back
        self._tokens = min(self._burst, self._tokens + elapsed * self._rate)
        self._refilled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
