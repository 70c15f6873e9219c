"""Limits how often failed requests are logged, so that a flood of them can't fill the log."""

import time
from collections import Counter
from collections.abc import Callable
from threading import Lock

import structlog
from structlog.typing import EventDict, WrappedLogger

from webhook.cluster.token_bucket import TokenBucket

# The lines that a client causes without a valid review. Decisions are never dropped: each is the record of one pod.
LIMITED_EVENTS = ("error response", "request failed", "connection failed", "client certificate rejected")
LINES_PER_SECOND, MAX_BURST = 10.0, 50


class LogLimit:
    """A structlog processor that drops lines about failed requests beyond LINES_PER_SECOND.

    Each event and HTTP status has its own limit, so that a flood of 400s hides no 503. `suppressed` counts the dropped
    lines. The next line of the same kind has the number of lines dropped before it, in the field `suppressed`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.suppressed = 0
        self._clock, self._lock = clock, Lock()
        self._buckets: dict[tuple[str, int | None], TokenBucket] = {}
        self._unreported: Counter[tuple[str, int | None]] = Counter()

    def __call__(self, _: WrappedLogger, __: str, event: EventDict) -> EventDict:
        """Return the event, or raise DropEvent."""
        if event["event"] not in LIMITED_EVENTS:
            return event
        kind = event["event"], event.get("code")
        with self._lock:
            if kind not in self._buckets:
                self._buckets[kind] = TokenBucket(LINES_PER_SECOND, MAX_BURST, self._clock)
            if not self._buckets[kind].take():
                self.suppressed += 1
                self._unreported[kind] += 1
                raise structlog.DropEvent
            if suppressed := self._unreported.pop(kind, 0):
                event["suppressed"] = suppressed
        return event
