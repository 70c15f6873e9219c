"""Keep the objects of one kind like the cluster's: list, watch, and list anew whenever something is strange."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog

from webhook import objects, wire
from webhook.catalog import Claim, Node, Pod, ShareManager, Volume
from webhook.cluster import Cluster, ClusterError
from webhook.objects import Fact
from webhook.shape import JsonObject, Malformed, text
from webhook.store import Store

# Seconds. Short, because decisions wait for the truth; jittered, because replicas lose the API server together.
FIRST_WAIT, LONGEST_WAIT = 0.5, 3.0
# Seconds until a missing CRD is looked for again: Longhorn may be installed after us.
MISSING_WAIT = 30.0
# Seconds of one watch; half to all of it, so that the replicas' watches do not end together.
WATCH_SECONDS = 300
# Seconds; a watch that ends sooner is no watch.
SHORTEST_WATCH = 1.0

log = structlog.get_logger("webhook.reflector")


@dataclass(frozen=True, slots=True)
class Kind:
    """What is listed and watched. `read` gives None for an object that does not count; `optional`: a CRD."""

    fact: type[Fact]
    plural: str
    path: str
    shape: Any
    read: Callable[[JsonObject], Fact | None]
    optional: bool = False
    query: dict[str, str] = field(default_factory=dict)


def kinds(longhorn: str) -> tuple[Kind, ...]:
    """Return all that a decision asks for; `longhorn` is Longhorn's namespace."""
    unfinished = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
    managers = f"/apis/longhorn.io/v1beta2/namespaces/{longhorn}/sharemanagers"
    return (
        Kind(Claim, "persistentvolumeclaims", "/api/v1/persistentvolumeclaims", wire.Claim, objects.read_claim),
        Kind(Volume, "persistentvolumes", "/api/v1/persistentvolumes", wire.Volume, objects.read_volume),
        Kind(ShareManager, "sharemanagers", managers, wire.ShareManager, objects.read_share_manager, optional=True),
        Kind(Node, "nodes", "/api/v1/nodes", wire.Node, objects.read_node),
        Kind(Pod, "pods", "/api/v1/pods", wire.StoredPod, objects.read_pod, query=unfinished),
    )


@dataclass(slots=True)
class Health:
    """How a cache is doing. `heard` is when it last heard of the cluster, by the clock; `problem` is in words."""

    synced: bool = False
    heard: float | None = None
    problem: str = ""
    relists: Counter[str] = field(default_factory=Counter)
    watch_errors: int = 0
    skipped: int = 0


class Reflector:
    """Follows one kind. `run` is its thread; whoever reads the store holds `lock`."""

    def __init__(
        self,
        kind: Kind,
        cluster: Cluster,
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
        self._decoder = msgspec.json.Decoder(kind.shape)
        self._wait = FIRST_WAIT
        self._cause = "start"

    def run(self, stop: threading.Event) -> None:
        """Follow the cluster until told to stop."""
        while not stop.is_set():
            try:
                self.follow(stop)
            except ClusterError as error:
                stop.wait(self._after(error))
            except Exception as error:  # noqa: BLE001 (a thread that ends is a cache that lies)
                stop.wait(self._after(ClusterError(0, f"{type(error).__name__} in {self.kind.plural}")))

    def follow(self, stop: threading.Event) -> None:
        """List once, then watch until told to stop. Raises ClusterError where it must list anew."""
        version = self._list()
        self._wait = FIRST_WAIT
        while not stop.is_set():
            started = self._clock()
            version = self._watch(version)
            if self._clock() - started < SHORTEST_WATCH:
                raise ClusterError(0, "the watch ended at once")

    def _list(self) -> str:
        self.health.relists[self._cause] += 1
        version = ""
        facts: list[Fact] = []
        for version, items in self._cluster.pages(self.kind.path, **self.kind.query):  # noqa: B007 (the last one counts)
            facts += self._read(items)
        with self._lock:
            self._store.replace(self.kind.fact, facts)
        self._heard()
        if not self.health.synced:
            log.info("synced", resource=self.kind.plural, objects=len(facts))
        self.health.synced, self.health.problem = True, ""
        return version

    def _watch(self, version: str) -> str:
        seconds = random.randint(WATCH_SECONDS // 2, WATCH_SECONDS)  # noqa: S311 (jitter, no secret)
        for kind, raw in self._cluster.watch(self.kind.path, version, seconds, **self.kind.query):
            item = self._decoded(raw)
            version = text(item, "metadata", "resourceVersion") or version
            if kind != "BOOKMARK":
                self._take(kind, item)
            self._heard()
        return version

    def _take(self, kind: str, item: JsonObject) -> None:
        fact = None if kind == "DELETED" else next(self._facts(item), None)
        with self._lock:
            if fact is not None:
                self._store.put(fact)
            else:
                key = text(item, "metadata", "namespace"), text(item, "metadata", "name")
                self._store.table(self.kind.fact).drop(key)

    def _read(self, items: list[msgspec.Raw]) -> Iterator[Fact]:
        for raw in items:
            yield from self._facts(self._decoded(raw))

    def _facts(self, item: JsonObject) -> Iterator[Fact]:
        try:
            fact = self.kind.read(item)
        except Malformed as error:
            self.health.skipped += 1
            log.warning("skipped", resource=self.kind.plural, name=text(item, "metadata", "name"), error=str(error))
            return
        if fact is not None:
            yield fact

    def _decoded(self, raw: msgspec.Raw) -> JsonObject:
        try:
            item: JsonObject = self._decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise ClusterError(0, "an object is not what an API server sends") from None
        return item

    def _heard(self) -> None:
        self.health.heard = self._clock()

    def _after(self, error: ClusterError) -> float:
        """Note what went wrong, and return for how many seconds to wait."""
        if error.code == 404 and self.kind.optional:
            return self._missing()
        self._cause = {410: "expired", 401: "forbidden", 403: "forbidden"}.get(error.code, "error")
        if self.health.synced:
            self.health.watch_errors += 1
        if self.health.problem != str(error):
            write = log.info if error.code == 410 else log.warning
            write("lost", resource=self.kind.plural, code=error.code, error=str(error))
        self.health.problem = str(error)
        wait, self._wait = self._wait, min(self._wait * 2, LONGEST_WAIT)
        return 0.0 if error.code == 410 and wait == FIRST_WAIT else wait * random.uniform(0.5, 1)  # noqa: S311 (jitter)

    def _missing(self) -> float:
        """Take a resource that the API server does not know for one of which there is nothing."""
        if not self.health.synced or not self.health.problem:
            log.warning(
                "missing", resource=self.kind.plural, error="the CRD is not installed; looking again in a while"
            )
        with self._lock:
            self._store.replace(self.kind.fact, ())
        self._cause, self.health.synced, self.health.problem = "missing", True, "the CRD is not installed"
        self._heard()
        return MISSING_WAIT
