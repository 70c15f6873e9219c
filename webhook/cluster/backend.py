"""What stands behind the routes: a snapshot of a cluster, or a live one."""

from collections.abc import Callable
from dataclasses import dataclass, field

from webhook.cluster.store import Store
from webhook.placement.decision import Decision
from webhook.placement.injector import Injection, inject
from webhook.placement.settings import Settings
from webhook.placement.shape import JsonObject


def _nothing() -> None:
    pass


def _always() -> bool:
    return True


def _never(_injection: Injection) -> bool:
    return False


def _nobody(_request: JsonObject, _decision: Decision) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Cache:
    """How one cache of a live cluster is doing. `age` is in seconds since it last heard of the cluster."""

    resource: str
    synced: bool
    objects: int
    age: float | None
    problem: str


@dataclass(frozen=True, slots=True)
class Backend:
    """How to decide; the defaults are those of a snapshot, which is there from the start and has nobody to tell.

    `decide` may wait for the API server for so many seconds; where it would and may not at all, there is no decision.
    `tell` has the VM's owner told of a decision. `start` is called after the fork, since threads do not survive one,
    and `stop` at the end. `caches` may be asked by any thread. What is `contested` is worth asking again in a second.
    `synced` says whether the cluster was read completely; every request asks it.
    """

    decide: Callable[[JsonObject, float], Injection | None]
    record: Callable[[JsonObject, Decision], None] = _nobody
    start: Callable[[], None] = _nothing
    stop: Callable[[], None] = _nothing
    caches: Callable[[], list[Cache]] = field(default=list)
    contested: Callable[[Injection], bool] = _never
    synced: Callable[[], bool] = _always


def from_snapshot(store: Store, settings: Settings) -> Backend:
    """Answer from a store that stays as it is."""
    return Backend(lambda request, _seconds: inject(request, store, settings))
