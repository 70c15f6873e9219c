"""Mirror one resource kind with list and watch, and relist after any error."""

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import Struct, field

from webhook.catalog.kind import JSON, METADATA, METADATA_LIST, Kind, MalformedObject, identity
from webhook.catalog.store import Store
from webhook.cluster.client import ClusterClient
from webhook.cluster.credentials import ClusterError
from webhook.placement.objects.facts import Fact

# Seconds. Short, because decisions need current data. Jittered, because all replicas lose the API server together.
FIRST_WAIT, MAX_WAIT = 0.5, 3.0
# Seconds between checks for a missing CRD: Longhorn may be installed after the webhook.
MISSING_WAIT = 30.0
# Maximum seconds of one watch. The minimum is half of it, so that the replicas' watches don't end together.
MAX_WATCH = 300
# Seconds. A watch that ends sooner than MIN_WATCH counts as failed. A watch that lasts STABLE_WATCH resets the backoff.
# A list alone doesn't reset the backoff: the right to watch may be missing.
MIN_WATCH, STABLE_WATCH = 1.0, 10.0

CRD_MISSING = "the CRD is not installed; checking again every 30 s"

log = logging.getLogger("webhook.reflector")


class Health(Struct):
    """The state of a cache."""

    # clock time of the last list or watch event, up to 120 s ago on a quiet watch; None before the first list
    last_contact: float | None = None
    problem: str = ""  # the current error; empty without one
    code: int = 0  # the HTTP status of the error
    objects: int = 0
    relists: Counter[str] = field(default_factory=Counter)  # started lists, by cause
    watch_errors: int = 0
    skipped: int = 0  # malformed objects


class Reflector:
    """Mirrors one kind into the store. A thread executes `run`. Readers of the store must hold `lock`."""

    def __init__(
        self,
        kind: Kind,
        cluster: ClusterClient,
        store: Store,
        lock: AbstractContextManager[Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.kind = kind
        self.health = Health()
        self._cluster = cluster
        self._store = store
        self._lock = lock
        self._clock = clock
        self._wait, self._cause, self._last_error = FIRST_WAIT, "start", ""
        self._watching_since: float | None = None

    def is_ready(self) -> bool:
        """Return whether the decisions need not wait for this kind."""
        # Without the right, waiting would not help.
        return self.health.last_contact is not None or (
            not self.kind.required and self.health.code == HTTPStatus.FORBIDDEN
        )

    def run(self, stop: threading.Event) -> None:
        """Mirror the cluster until `stop` is set."""
        while not stop.is_set():
            try:
                self.follow(stop)
            except ClusterError as error:
                stop.wait(self._record_failure(error))
            except Exception as error:
                log.exception("unexpected error", extra={"resource": self.kind.plural})
                stop.wait(self._record_failure(ClusterError(0, f"{type(error).__name__} in {self.kind.plural}")))

    def follow(self, stop: threading.Event) -> None:
        """List once, then watch until `stop` is set. Raises ClusterError if a relist is needed."""
        version = self._list()
        while not stop.is_set():
            version = self._watch(version)

    def _list(self) -> str:
        self._watching_since = None
        self.health.relists[self._cause] += 1
        version = ""
        facts: list[Fact] = []
        kind = self.kind
        pages = self._cluster.pages(kind.path, accept=METADATA_LIST if kind.metadata_only else JSON, **kind.query)
        for version, items in pages:  # noqa: B007 (the last page's version is returned)
            facts += [self._known(fact) for _, fact in kind.read_all(items, self._skip) if fact is not None]
        is_first = self.health.last_contact is None
        self._replace_table(facts)
        if is_first:
            log.info("synced", extra={"resource": self.kind.plural, "objects": len(facts)})
        return version

    def _known(self, fact: Fact) -> Fact:
        """Return the stored fact instead of an equal one, so that a relist doesn't double the memory."""
        old: Fact | None = self._store.table(self.kind.fact).find(*fact.key)
        return old if old is not None and old == fact else fact

    def _replace_table(self, facts: list[Fact]) -> None:
        self._store.replace(self.kind.fact, facts, self._lock)
        self._record_contact()

    def _watch(self, version: str) -> str:
        seconds = random.randint(MAX_WATCH // 2, MAX_WATCH)  # noqa: S311 (jitter needs no secure randomness)
        accept = METADATA if self.kind.metadata_only else JSON
        events = self._cluster.watch(self.kind.path, version, seconds, accept=accept, **self.kind.query)
        started = self._watching_since = self._clock()
        self.health.problem, self.health.code = "", 0
        for kind, raw in events:
            version = self._apply(kind, raw) or version
        if self._clock() - started < MIN_WATCH:
            raise ClusterError(0, "the watch ended immediately")
        return version

    def _apply(self, kind: str, raw: msgspec.Raw) -> str:
        """Apply a watch event to the store and return its resource version."""
        fact: Fact | None = None
        try:
            item = self.kind.decode(raw)
            if kind not in ("BOOKMARK", "DELETED"):
                fact = self.kind.extract(item)
        except MalformedObject as error:
            if error.manifest is None:
                raise ClusterError(0, f"an object is {error.args[1]}") from None
            item = error.manifest
            self._skip(*error.args)
        namespace, name, resource_version = identity(item)
        if kind != "BOOKMARK":
            with self._lock:
                self._store.apply(self.kind.fact, (namespace, name), fact)
        self._record_contact()
        return resource_version

    def _record_contact(self) -> None:
        self.health.last_contact = self._clock()
        self.health.objects = len(self._store.table(self.kind.fact))

    def _skip(self, name: str, error: str) -> None:
        self.health.skipped += 1
        log.warning("malformed object skipped", extra={"resource": self.kind.plural, "object": name, "error": error})

    def _record_failure(self, error: ClusterError) -> float:
        """Record the failure and return the backoff in seconds."""
        if self._watching_since is not None and self._clock() - self._watching_since >= STABLE_WATCH:
            self._wait, self._last_error = FIRST_WAIT, ""
        if error.code == 404 and self.kind.optional:
            return self._treat_as_empty()
        self.health.watch_errors += self._watching_since is not None
        self._cause = {410: "expired", 401: "forbidden", 403: "forbidden"}.get(error.code, "error")
        self._report(error)
        wait = self._wait
        self._wait = min(self._wait * 2, MAX_WAIT)
        return 0.0 if error.code == 410 and wait == FIRST_WAIT else wait * random.uniform(0.5, 1)  # noqa: S311 (jitter)

    def _treat_as_empty(self) -> float:
        """Treat a missing CRD as an empty list, and return the seconds until the next check."""
        self._replace_table([])
        self._cause, self._wait = "missing", FIRST_WAIT
        self._report(ClusterError(404, CRD_MISSING))
        return MISSING_WAIT

    def _report(self, error: ClusterError) -> None:
        self.health.problem = str(error)
        self.health.code = error.code
        if self._last_error != str(error):
            emit = log.info if error.code == 410 else log.warning
            fields = {"resource": self.kind.plural, "code": error.code, "error": str(error)}
            emit("list or watch failed, relisting", extra=fields)
        self._last_error = str(error)
