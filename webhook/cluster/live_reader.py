"""Read single objects that the caches lack, such as a recently created claim, within limits."""

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable

import msgspec
import structlog

from webhook.cluster.client import ClusterClient, ClusterError
from webhook.cluster.kinds import Kind, kinds, object_path
from webhook.cluster.objects import Fact
from webhook.cluster.token_bucket import TokenBucket
from webhook.placement.facts import Key, Volume
from webhook.placement.settings import is_dns_subdomain

READ_TIMEOUT = 0.5  # seconds for one read; the creation of the VM waits for it
MAX_CONCURRENT_READS = 4
# Per second, and at once after a quiet time. The first start of a volume needs a read, because the volume has no
# ShareManager yet. 100 of them fit into the burst. Beyond the limit, the caches decide alone. They lag behind the
# cluster by about 30 ms.
READS_PER_SECOND, MAX_READ_BURST = 20.0, 100
# Seconds for which an absent object isn't read again. An object that is created meanwhile is found as soon as a watch
# shows it, after about 30 ms. If the watch is slower, the retry of an API server must find it (`Retry-After: 1`), so
# the memory must not last longer than that second. KubeVirt creates a pod only after its claims exist, and Longhorn
# creates a ShareManager seconds after the first VM of a volume has started. No usual order of events reads too early.
ABSENT_SECONDS = 1.0
MAX_REMEMBERED = 256  # absent objects; the limit of reads lets fewer be found in ABSENT_SECONDS
LOG_INTERVAL = 60.0  # seconds between two log lines about the limit

Miss = tuple[type[Fact], Key]

log = structlog.get_logger("webhook.live")


class LiveReader:
    """Reads single objects. Never raises. Thread-safe.

    A client that reaches the TLS port can post reviews with made-up names. So reads are limited per second, and an
    object that was absent isn't read again for ABSENT_SECONDS. A read takes at most READ_TIMEOUT. `results` counts the
    reads by result. `problem` is the error of the last read, empty if that read succeeded.
    """

    def __init__(self, cluster: ClusterClient, longhorn: str, clock: Callable[[], float]) -> None:
        self.results = Counter(found=0, absent=0, failed=0, skipped=0, limited=0, remembered=0)
        self.problem = ""
        self._cluster, self._clock = cluster, clock
        self._slots = threading.BoundedSemaphore(MAX_CONCURRENT_READS)
        self._bucket = TokenBucket(READS_PER_SECOND, MAX_READ_BURST, clock)
        self._lock = threading.Lock()  # for everything below, and for `results`
        self._absent_since: OrderedDict[Miss, float] = OrderedDict()
        self._limit_logged = clock() - LOG_INTERVAL
        self._kinds: dict[type[Fact], Kind] = {kind.fact: kind for kind in kinds(longhorn)}

    def is_absent(self, miss: Miss) -> bool:
        """Return whether a read has found the object to be absent within the last ABSENT_SECONDS, and count that."""
        with self._lock:
            since = self._absent_since.get(miss)
            if since is None or self._clock() - since >= ABSENT_SECONDS:
                return False
            self.results["remembered"] += 1
            return True

    def read(self, miss: Miss, seconds: float = READ_TIMEOUT) -> Fact | None:
        """Read one object. Return None if it doesn't exist or can't be read within `seconds` and the limits."""
        kind, (namespace, name) = self._kinds[miss[0]], miss[1]
        # No object has an invalid name, and its path might address another resource.
        if not is_dns_subdomain(name) or not (is_dns_subdomain(namespace) or kind.fact is Volume):
            return None
        if seconds <= 0 or not self._slots.acquire(blocking=False):
            self._count("skipped")
            return None
        try:
            return self._read_within_limit(kind, miss, min(seconds, READ_TIMEOUT))
        finally:
            self._slots.release()

    def _read_within_limit(self, kind: Kind, miss: Miss, seconds: float) -> Fact | None:
        if not self._bucket.take():
            self._count("limited")
            self._log_limit()
            return None
        try:
            fact = self._get(kind, miss[1], seconds)
        except ClusterError as error:
            self._record_outcome("failed", str(error))
            return None
        self._record_outcome("absent" if fact is None else "found")
        if fact is None:
            self._remember(miss)
        return fact

    def _get(self, kind: Kind, key: Key, seconds: float) -> Fact | None:
        body = self._cluster.get(object_path(kind, key), seconds)
        try:
            return None if body is None else kind.read(msgspec.json.decode(body, type=kind.shape))
        except (ValueError, TypeError, RecursionError):
            raise ClusterError(0, f"unexpected response: one of the {kind.plural} is malformed") from None

    def _remember(self, miss: Miss) -> None:
        with self._lock:
            self._absent_since[miss] = self._clock()
            self._absent_since.move_to_end(miss)
            while len(self._absent_since) > MAX_REMEMBERED:
                self._absent_since.popitem(last=False)

    def _count(self, result: str) -> None:
        with self._lock:
            self.results[result] += 1

    def _record_outcome(self, result: str, problem: str = "") -> None:
        self._count(result)
        with self._lock:
            previous, self.problem = self.problem, problem
        if problem and problem != previous:
            log.warning("live read failed", error=problem)

    def _log_limit(self) -> None:
        with self._lock:
            now = self._clock()
            due = now - self._limit_logged >= LOG_INTERVAL
            self._limit_logged = now if due else self._limit_logged
        if due:
            log.warning("live reads limited, deciding from the caches", per_second=READS_PER_SECOND)
