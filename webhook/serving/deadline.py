"""How long the API server still waits for an answer."""

import re
from collections import OrderedDict

# The API server puts the time that it grants the whole call, all tries together, into the query: `?timeout=10s`. It
# does so once, before the first try, so that every later try says the same.
# https://github.com/kubernetes/apiserver/blob/v0.36.3/pkg/admission/plugin/webhook/mutating/dispatcher.go
DEFAULT_TIMEOUT = 10.0  # seconds, the default of a webhook's timeoutSeconds

# What the answer needs to be written, to cross the network and to be read: later than this before the end, a decision
# that is begun would come when nobody waits for it any more.
MARGIN = 0.5  # seconds; the shortest timeout that a webhook configuration can name is one

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)"
_ONE = re.compile(_PART, re.ASCII)
_WHOLE = re.compile(rf"({_PART})+", re.ASCII)


def parse_timeout(duration: str | None) -> float:
    """Return the seconds of a Go duration such as `3s`, `1500ms` or `1m30s`; the default for anything else."""
    if not duration or not _WHOLE.fullmatch(duration):
        return DEFAULT_TIMEOUT
    return sum(float(number) * _UNITS[unit] for number, unit in _ONE.findall(duration))


class RetryBudget:
    """Whether a request may be sent back to come again: the time since each was seen first.

    `retry_after` is what we ask for with a 503, in whole seconds; `capacity` bounds the memory.
    """

    # The API server's client tries 10 times more and no oftener, then the call has failed, however much of its timeout
    # is left: with a second between two tries the last one comes 10 seconds after the first.
    # https://github.com/kubernetes/client-go/blob/v0.36.3/rest/request.go (maxRetries)
    LONGEST = 10.0

    # What another try takes: the second that we ask for, and one for the rounding of the timeout, which the API server
    # rounds up to a whole second. With less than that left the next try might never come, and the call would fail.
    retry_after = 1
    _ANOTHER_TRY = retry_after + 1.0

    def __init__(self, capacity: int = 4096) -> None:
        self._capacity = capacity
        self._seen_first: OrderedDict[str, float] = OrderedDict()

    def first_seen(self, uid: str, received: float) -> float:
        """Return when the first try of a request came that was sent back: its timeout counts from there."""
        return self._seen_first.get(uid[:64], received)

    def may_retry(self, uid: str, timeout: float, now: float) -> bool:
        """Say whether a request that is seen `now` (seconds of a monotonic clock) will be sent once more in time.

        Called from several threads at once: each of the two steps is one operation of a dict.
        """
        first = self._seen_first.setdefault(
            uid[:64], now
        )  # a uid has 36 characters; nobody fills our memory with longer ones
        if len(self._seen_first) > self._capacity:
            self._seen_first.popitem(last=False)
        return first + min(timeout, self.LONGEST) - now >= self._ANOTHER_TRY
