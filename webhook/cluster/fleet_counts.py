"""Count the fleet by state for the metrics, from the caches that the decisions use."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

from msgspec import Struct, field

from webhook.catalog.inventory import facts_of, machines, volume_data
from webhook.catalog.store import Store
from webhook.cluster.live_catalog import Live
from webhook.fleet.machine import State
from webhook.fleet.states import assess
from webhook.placement.objects.facts import Pod
from webhook.placement.opt_in import opted_in_by
from webhook.placement.reasons import OptedInBy
from webhook.placement.settings import Action, Settings

# Seconds for which a count is reused: a client that scrapes all the time must not take the CPU from the decisions.
COUNT_SECONDS = 10.0
# Seconds for which a scrape, and the probes behind it, wait for a count. Pods of a user can make it take 15 s.
MAX_WAIT = 1.0
# Only pods of the last hour count as undecided: older ones may have started before the chart was installed.
UNDECIDED_SECONDS = 3600.0


class Counts(Struct, frozen=True):
    """The number of VMs by state and opt-in, by node and state, and by data, and of recent pods without a decision."""

    vms: Counter[tuple[State, bool]] = field(default_factory=Counter)
    by_node: Counter[tuple[str, State]] = field(default_factory=Counter)
    # by whether the node of its share-manager has a healthy replica; without VMs for which that is unknown
    by_data: Counter[bool] = field(default_factory=Counter)
    undecided: int = 0


class FleetCounter:
    """Counts the fleet on request, in a thread of its own. `wall_clock` returns seconds since the epoch."""

    def __init__(
        self, live: Live, settings: Settings, clock: Callable[[], float], wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._live = live
        self._settings = settings
        self._clock = clock
        self._wall_clock = wall_clock
        self._counts: Counts | None = None
        self._counted_at = float("-inf")
        self._thread = threading.Thread()

    def counts(self) -> Counts | None:
        """Return the last counts, at most `COUNT_SECONDS` old unless counting is slow. None before the first."""
        now = self._clock()
        if self._live.synced() and not self._thread.is_alive() and now - self._counted_at >= COUNT_SECONDS:
            self._counted_at = now
            self._thread = threading.Thread(target=self._count, name="fleet", daemon=True)
            self._thread.start()
            self._thread.join(MAX_WAIT)
        return self._counts

    def _count(self) -> None:
        try:
            self._counts = self._current_counts()
        except Exception:
            self._counts = None  # no number is better than an old one
            raise

    def _current_counts(self) -> Counts:
        *_, launchers, _ = facts = self._live.query(facts_of)
        data = self._live.query(volume_data)
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._wall_clock() - UNDECIDED_SECONDS))
        catalog = self._live.catalog()
        recent = [pod for pod in launchers if pod.undecided and pod.created >= since]
        # In observe mode, no decision is recorded. One pod at a time, so that no decision waits for all.
        ask = partial(is_undecided, settings=self._settings)
        enabled = self._settings.action is not Action.OBSERVE
        counts = Counts(undecided=sum(self._live.query(partial(ask, pod)) for pod in recent if enabled))
        for machine in machines(facts):
            status = assess(machine, catalog, self._settings)
            counts.vms[status.state, status.opted_in] += 1
            # Namespace users can create a pod that names any node: each would be a few time series.
            if status.node and catalog.node(status.node):
                counts.by_node[status.node, status.state] += 1
            is_local = data[status.volume].is_local_to(status.storage_node) if status.volume in data else None
            if is_local is not None:
                counts.by_data[is_local] += 1
        return counts


def is_undecided(pod: Pod, store: Store, settings: Settings) -> bool:
    """Return whether the API server should have called the webhook for a pod, but no decision was recorded."""
    return (
        pod.undecided
        and pod.alive
        and bool(pod.claims)
        # A tenant can create pods that look like those of VMs, but no VMI.
        and bool(store.vmis.indexed(pod.namespace, pod.vmi_uid))
        and opted_in_by(pod, store, settings) is not OptedInBy.NOTHING
    )
