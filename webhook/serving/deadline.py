"""The API server's deadline: parse `?timeout=`, and decide whether a retry fits into it."""

import re
from collections import OrderedDict

# The API server sends the timeout of the whole call in the query: `?timeout=10s`. It covers all tries together. It is
# set once, before the first try, so every retry has the same value.
# https://github.com/kubernetes/apiserver/blob/v0.36.3/pkg/admission/plugin/webhook/mutating/dispatcher.go
DEFAULT_TIMEOUT = 10.0  # seconds; the default of a webhook's timeoutSeconds

# Time to write the response, send it and read it. A decision that starts later than this before the deadline would
# reach the API server too late.
MARGIN = 0.5  # seconds; the shortest timeout of a webhook configuration is 1 s

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_TERM = r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)"
_TERM_PATTERN = re.compile(_TERM, re.ASCII)
_DURATION_PATTERN = re.compile(rf"({_TERM})+", re.ASCII)


def parse_timeout(duration: str | None) -> float:
    """Return the seconds of a Go duration such as `3s`, `1500ms` or `1m30s`; the default for anything else."""
    if not duration or not _DURATION_PATTERN.fullmatch(duration):
        return DEFAULT_TIMEOUT
    return sum(float(number) * _UNITS[unit] for number, unit in _TERM_PATTERN.findall(duration))


class RetryBudget:
    """Decides whether the API server may be asked to retry a review in a second.

    The API server retries after a 503 with `Retry-After`, most often at another replica. All such waits together take
    at most a third of the call's timeout. `retry_after` is the value of the header, in whole seconds. `capacity` limits
    the number of remembered requests.
    """

    retry_after = 1
    MAX_SHARE = 1 / 3
    SLACK = 0.1  # seconds between the first byte of a request and the decision that it has to wait
    # The API server's client retries 10 times at most. Then the call fails, even before its timeout.
    # https://github.com/kubernetes/client-go/blob/v0.36.3/rest/request.go (maxRetries)
    MAX_WAIT = 8.0

    def __init__(self, capacity: int = 4096) -> None:
        self._capacity = capacity
        self._first_seen: OrderedDict[str, float] = OrderedDict()

    def first_seen(self, uid: str, received: float) -> float:
        """Return when the first try arrived: its timeout counts from there. Return `received` for a new request."""
        return self._first_seen.get(uid[:64], received)

    def may_retry(self, uid: str, timeout: float, now: float, age: float = 0.0, *, once: bool = False) -> bool:
        """Return whether one more retry fits into the budget, and remember the time of the first try.

        `now` is in seconds of a monotonic clock. `age` is for how many seconds the call has lasted already, as far as
        the request itself tells: another replica may have answered its first try. With `once`, a call waits only once.
        Safe to call from several threads: each of the two steps is one dict operation.
        """
        # A uid has 36 characters. Cutting it limits the memory that a malformed one can use.
        waited = max(now - self._first_seen.setdefault(uid[:64], now), age)
        if len(self._first_seen) > self._capacity:
            self._first_seen.popitem(last=False)
        limit = min(timeout * self.MAX_SHARE, self.MAX_WAIT) + self.SLACK
        return waited + self.retry_after <= limit and not (once and waited >= self.retry_after)
