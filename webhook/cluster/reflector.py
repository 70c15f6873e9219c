"""Keep the objects of one kind like the cluster's: list, watch, and list anew whenever something is strange."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog

from webhook.cluster.client import ClusterClient, ClusterError
from webhook.cluster.kinds import Kind
from webhook.cluster.objects import Fact
from webhook.cluster.store import Store
from webhook.placement.shape import JsonObject, Malformed, text

# Seconds. Short, because decisions wait for the truth; jittered, because replicas lose the API server together.
FIRST_WAIT, LONGEST_WAIT = 0.5, 3.0
# Seconds until a missing CRD is looked for again: Longhorn may be installed after us.
MISSING_WAIT = 30.0
# Seconds of one watch; half to all of it, so that the replicas' watches do not end together.
WATCH_SECONDS = 300
# Seconds; a watch that ends sooner is no watch, and one that lasts so long has shown that all is well. A list alone has
# not: the right to watch may be missing.
SHORTEST_WATCH, PROVEN = 1.0, 10.0

MISSING = "the CRD is not installed; looked for again every 30 s"

log = structlog.get_logger("webhook.reflector")


@dataclass(slots=True)
class Health:
    """How a cache is doing.

    `heard` is when it last heard of the cluster, by the clock: up to 120 s ago where nothing happens. `problem` is in
    words, empty while all is well, `code` its HTTP status. `relists` counts the lists that were begun, by cause.
    """

    synced: bool = False
    heard: float | None = None
    problem: str = ""
    code: int = 0
    objects: int = 0
    relists: Counter[str] = field(default_factory=Counter)
    list_errors: int = 0
    watch_errors: int = 0
    skipped: int = 0


class Reflector:
    """Follows one kind. `run` is its thread; whoever reads the store holds `lock`."""

    def __init__(
        self,
        kind: Kind,
        cluster: ClusterClient,
        store: Store,
        lock: AbstractContextManager[Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.kind, self.health = kind, Health()
        self._cluster, self._store, self._lock, self._clock = cluster, store, lock, clock
        self._decoder = msgspec.json.Decoder(kind.shape)
        self._wait, self._cause, self._told = FIRST_WAIT, "start", ""
        self._watching: float | None = None  # since when

    def run(self, stop: threading.Event) -> None:
        """Follow the cluster until told to stop."""
        while not stop.is_set():
            try:
                self.follow(stop)
            except ClusterError as error:
                stop.wait(self._after(error))
            except Exception as error:
                log.exception("surprised", resource=self.kind.plural)
                stop.wait(self._after(ClusterError(0, f"{type(error).__name__} in {self.kind.plural}")))

    def follow(self, stop: threading.Event) -> None:
        """List once, then watch until told to stop. Raises ClusterError where it must list anew."""
        version = self._list()
        while not stop.is_set():
            version = self._watch(version)

    def _list(self) -> str:
        self._watching = None
        self.health.relists[self._cause] += 1
        version = ""
        facts: list[Fact] = []
        for version, items in self._cluster.pages(self.kind.path, **self.kind.query):  # noqa: B007 (the last one counts)
            facts += filter(None, map(self._listed, items))
        self._adopt(facts)
        if not self.health.synced:
            log.info("synced", resource=self.kind.plural, objects=len(facts))
        self.health.synced = True
        return version

    def _adopt(self, facts: list[Fact]) -> None:
        # Filled and dismantled outside of the lock: with 50,000 pods either takes half a second, and decisions go on.
        fresh = self._store.new_table(self.kind.fact, facts)
        with self._lock:
            gone = self._store.swap_table(self.kind.fact, fresh)
        gone.clear_stepwise()
        self._heard()

    def _watch(self, version: str) -> str:
        if not version:
            raise ClusterError(0, "the list has no resource version to watch from")
        seconds = random.randint(WATCH_SECONDS // 2, WATCH_SECONDS)  # noqa: S311 (jitter, no secret)
        events = self._cluster.watch(self.kind.path, version, seconds, **self.kind.query)
        started = self._watching = self._clock()
        self.health.problem, self.health.code = "", 0
        for kind, raw in events:
            version = self._take(kind, raw) or version
        if self._clock() - started < SHORTEST_WATCH:
            raise ClusterError(0, "the watch ended at once")
        return version

    def _take(self, kind: str, raw: msgspec.Raw) -> str:
        """Do as an event says, and return its resource version."""
        item = self._decoded(raw)
        if kind in ("ADDED", "MODIFIED", "DELETED"):
            self._change(None if kind == "DELETED" else self._fact(item), item)
        elif kind != "BOOKMARK":
            raise ClusterError(0, "an event is of a type that no API server sends")
        self._heard()
        return text(item, "metadata", "resourceVersion")

    def _change(self, fact: Fact | None, item: JsonObject) -> None:
        with self._lock:
            if fact is not None:
                self._store.put(fact)
            else:
                key = text(item, "metadata", "namespace"), text(item, "metadata", "name")
                self._store.table(self.kind.fact).remove(key)

    def _heard(self) -> None:
        self.health.heard, self.health.objects = self._clock(), len(self._store.table(self.kind.fact))

    def _listed(self, raw: msgspec.Raw) -> Fact | None:
        try:
            return self._fact(self._decoded(raw))
        except ClusterError as error:
            self._skip("", str(error))
        return None

    def _fact(self, item: JsonObject) -> Fact | None:
        name = text(item, "metadata", "name")
        try:
            if name:
                return self.kind.read(item)
            self._skip(name, "it has no name")
        except Malformed as error:
            self._skip(name, str(error))
        except Exception as error:  # noqa: BLE001 (one object of strange types must not take the others along)
            self._skip(name, type(error).__name__)
        return None

    def _skip(self, name: str, error: str) -> None:
        self.health.skipped += 1
        log.warning("skipped", resource=self.kind.plural, name=name, error=error)

    def _decoded(self, raw: msgspec.Raw) -> JsonObject:
        try:
            item: JsonObject = self._decoder.decode(raw)
        except (ValueError, RecursionError):
            return _untyped(raw)
        return item

    def _after(self, error: ClusterError) -> float:
        """Note what went wrong, and return for how many seconds to wait."""
        if self._watching is not None and self._clock() - self._watching >= PROVEN:
            self._wait, self._told = FIRST_WAIT, ""
        if error.code == 404 and self.kind.optional:
            return self._missing()
        if self._watching is None:
            self.health.list_errors += 1
        else:
            self.health.watch_errors += 1
        self._cause = {410: "expired", 401: "forbidden", 403: "forbidden"}.get(error.code, "error")
        self._tell(error)
        wait, self._wait = self._wait, min(self._wait * 2, LONGEST_WAIT)
        return 0.0 if error.code == 410 and wait == FIRST_WAIT else wait * random.uniform(0.5, 1)  # noqa: S311 (jitter)

    def _missing(self) -> float:
        """Take a resource that the API server does not know for one of which there is nothing."""
        self._adopt([])
        self._cause, self._wait, self.health.synced = "missing", FIRST_WAIT, True
        self._tell(ClusterError(404, MISSING))
        return MISSING_WAIT

    def _tell(self, error: ClusterError) -> None:
        self.health.problem, self.health.code = str(error), error.code
        if self._told != str(error):
            write = log.info if error.code == 410 else log.warning
            write("lost", resource=self.kind.plural, code=error.code, error=str(error))
        self._told = str(error)


def _untyped(raw: msgspec.Raw) -> JsonObject:
    """Decode an object that has a field of another type than Kubernetes gives it, to see what can be read."""
    try:
        item = msgspec.json.decode(raw)
    except (ValueError, RecursionError):
        raise ClusterError(0, "an object is not what an API server sends") from None
    return item if isinstance(item, dict) else {}
