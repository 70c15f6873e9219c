"""The API server's deadline: read `?timeout=`, and decide whether a retry fits into it."""

import re
from collections import OrderedDict
from enum import Enum

# The API server sends the timeout of the whole call in the query: `?timeout=10s`. It covers all tries together. It is
# set once, before the first try, so every retry has the same value.
# https://github.com/kubernetes/apiserver/blob/v0.36.3/pkg/admission/plugin/webhook/mutating/dispatcher.go
DEFAULT_TIMEOUT = 10.0  # seconds; the default of a webhook's timeoutSeconds

# Time to write the response, send it and read it. A decision that starts later than this before the deadline would
# reach the API server too late.
MARGIN = 0.5  # seconds; the shortest timeout of a webhook configuration is 1 s

_TIMEOUT = re.compile(r"(?:^|&)timeout=(\d{1,4})s(?:&|\Z)", re.ASCII)  # whole seconds, from 1 to 30


def timeout_of(query: str) -> float:
    """Return the seconds of the timeout in a query; the default without one."""
    found = _TIMEOUT.search(query)
    return float(found[1]) if found else DEFAULT_TIMEOUT


class Wait(Enum):
    """Why the API server should retry a review: the error sentence, and the seconds of `Retry-After`."""

    NOT_SYNCED = "the caches are not synced yet", 1
    BEING_BOUND = "a share-manager is starting, and its node is not known yet", 1
    USER_NOT_SEEN_YET = "the caches know no bound pod that mounts the share-manager's volume", 1
    NOT_SEEN_YET = "the caches lack a claim of this pod, or its volume", 0

    def __init__(self, sentence: str, retry_after: int) -> None:
        self.sentence, self.retry_after = sentence, retry_after


class RetryBudget:
    """Decides whether the API server may be asked to retry a review.

    The API server retries after a 503 with `Retry-After`, most often at another replica. Each `Wait` holds a review up
    at most once, and none if less than two thirds of the call's timeout would remain. `capacity` limits the number of
    remembered reviews.
    """

    MAX_SHARE = 1 / 3  # of the timeout
    IMMEDIATELY = 0.05  # seconds until the API server retries after `Retry-After: 0`
    SLACK = 0.1  # seconds between the first byte of a request and the decision that it has to wait
    # seconds from the creation of a pod until the first try is decided, also if the replica's node stalls meanwhile
    FIRST_TRY = 0.25

    def __init__(self, capacity: int = 4096) -> None:
        self._capacity = capacity
        self._seen: OrderedDict[str, tuple[float, tuple[Wait, ...]]] = OrderedDict()

    def first_seen(self, uid: str, received: float) -> float:
        """Return when the first try arrived: its timeout counts from there. Return `received` for a new review."""
        return self._seen.get(uid[:64], (received, ()))[0]

    def may_retry(self, uid: str, wait: Wait, timeout: float, now: float, age: float = 0.0) -> bool:
        """Return whether a retry fits into the budget, and remember the review.

        `now` is in seconds of a monotonic clock. `age` is for how many seconds the call has lasted at least, as far as
        the request itself tells. After FIRST_TRY, another replica has answered its first try.
        """
        # A uid has 36 characters. Cutting it limits the memory that a malformed one can use.
        first, waits = self._seen.get(uid[:64], (now, ()))
        age = age if age > self.FIRST_TRY else 0.0
        waited_elsewhere = age > 0 and not waits and wait.retry_after > 0
        left = timeout * self.MAX_SHARE + self.SLACK - max(now - first, age)
        if wait in waits or waited_elsewhere or max(wait.retry_after, self.IMMEDIATELY) > left:
            return False
        self._seen[uid[:64]] = first, (*waits, wait)
        if len(self._seen) > self._capacity:
            self._seen.popitem(last=False)
        return True
