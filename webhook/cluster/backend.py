"""The interface between the HTTP routes and the cluster, which is a snapshot or a live cluster."""

from collections.abc import Callable
from dataclasses import dataclass, field

from webhook.cluster.caches.store import Store
from webhook.placement.injector import Injection, inject
from webhook.placement.objects.fields import JsonObject
from webhook.placement.reasons import Decision
from webhook.placement.settings import Settings


@dataclass(frozen=True, slots=True)
class Cache:
    """The state of one cache of a live cluster.

    `age` is the number of seconds since the last list or watch event (bookmarks included), None before the first list.
    `problem` is the current error, empty without one. Without a `required` cache, the webhook isn't ready.
    """

    resource: str
    synced: bool
    objects: int
    age: float | None
    problem: str
    required: bool = True


@dataclass(frozen=True, slots=True)
class Backend:
    """The functions that the routes call. The defaults suit a snapshot, which is always synced and records no Events.

    No function waits for the API server. `lacks_objects` returns whether a decision may change as soon as a watch shows
    an object that is a few milliseconds old. `record` queues an Event that reports the decision on the VMI. The server
    calls `start` after the fork, because threads don't survive a fork, and `stop` at shutdown. Any thread may call
    `caches`. `synced` returns whether the cluster was read completely; every request calls it.
    """

    decide: Callable[[JsonObject], Injection]
    lacks_objects: Callable[[JsonObject, Decision], bool] = lambda _request, _decision: False
    record: Callable[[JsonObject, Decision], None] = lambda _request, _decision: None
    start: Callable[[], None] = lambda: None
    stop: Callable[[], None] = lambda: None
    caches: Callable[[], list[Cache]] = field(default=list)
    synced: Callable[[], bool] = lambda: True


def from_snapshot(store: Store, settings: Settings) -> Backend:
    """Return a backend that decides from a store that never changes."""
    return Backend(lambda request: inject(request, store, settings))
