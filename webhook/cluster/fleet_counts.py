"""Count the fleet by state for the metrics, from the caches that the decisions use."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from webhook.cluster.inventory import Facts, machines
from webhook.cluster.store import Store
from webhook.fleet.states import Machine, State, assess
from webhook.placement.settings import Settings

if TYPE_CHECKING:  # avoids the slow import of the Kubernetes client when `serve` reads a snapshot
    from webhook.cluster.live import Live

# Machines that are assessed under the lock in one go, in about 3 ms. Meanwhile, decisions wait.
BATCH_SIZE = 100
# Seconds for which a count is reused: a client that scrapes all the time must not take the CPU from the decisions.
COUNT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Counts:
    """The number of VMs by state and opt-in, and by node and state."""

    vms: Counter[tuple[State, bool]] = field(default_factory=Counter)
    by_node: Counter[tuple[str, State]] = field(default_factory=Counter)


class FleetCounter:
    """Counts the fleet on request. Thread-safe."""

    def __init__(self, live: Live, settings: Settings, clock: Callable[[], float]) -> None:
        self._live, self._settings, self._clock = live, settings, clock
        self._lock = threading.Lock()
        self._counts: Counts | None = None
        self._counted_at = 0.0

    def counts(self) -> Counts | None:
        """Return the counts, at most `COUNT_SECONDS` old. None before the caches are synced."""
        with self._lock:
            now = self._clock()
            if self._live.synced() and (self._counts is None or now - self._counted_at >= COUNT_SECONDS):
                self._counts, self._counted_at = self._count(), now
            return self._counts

    def _count(self) -> Counts:
        found = machines(self._live.query(Facts.of))
        counts = Counts()
        for start in range(0, len(found), BATCH_SIZE):
            self._live.query(partial(self._add, counts, found[start : start + BATCH_SIZE]))
        return counts

    def _add(self, counts: Counts, batch: list[Machine], store: Store) -> None:
        for machine in batch:
            status = assess(machine, store, self._settings)
            counts.vms[status.state, status.opted_in] += 1
            if status.node:
                counts.by_node[status.node, status.state] += 1
