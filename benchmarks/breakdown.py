"""Where the milliseconds of a VM's start go: the parts of the time until the VM's pod is bound.

The parts come from the API server's traces, the webhook's log and the scheduler's metrics. This module measures
nothing: run as a script, it prints nothing.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rich import box
from rich.table import Table
from traces import Trace
from vm_starts import WITH, WITHOUT, Timing

from tests.support.controlplane.api import LOOPBACK

# Spans of the API server 1.36 and events in them. "Create" is the handler of the request.
HANDLER, ADMISSION_BEGINS = "Create", "About to store object in database"
CALL, ROUND_TRIP, STORE = "Call mutating webhook", "HTTP POST", "Create etcd3"
# The sums of the scheduler's histograms, in seconds. The first is from the queue until the pod is bound.
QUEUED_TO_BOUND = "scheduler_pod_scheduling_sli_duration_seconds_sum{"
ALGORITHM = "scheduler_scheduling_algorithm_duration_seconds_sum "
BIND = 'scheduler_framework_extension_point_duration_seconds_sum{extension_point="Bind"'

Parts = dict[str, float]  # milliseconds by name
TOTAL, RESPONSE = "in all, until bound", "beside it: until the client has the response"
DECISION = "   its decision, by its log"  # a part of the call


@dataclass(frozen=True, slots=True)
class Scheduling:
    """The sums of the scheduler's times, in milliseconds."""

    queued_to_bound: float
    algorithm: float
    bind: float

    @classmethod
    def read(cls, metrics: str) -> Scheduling:
        """Return the sums from metrics in Prometheus' text format."""
        lines = metrics.splitlines()
        sums = (
            sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))
            for name in (QUEUED_TO_BOUND, ALGORITHM, BIND)
        )
        return cls(*(1000 * each for each in sums))

    def __sub__(self, before: Scheduling) -> Scheduling:
        """Return the times between two readings."""
        return Scheduling(
            self.queued_to_bound - before.queued_to_bound, self.algorithm - before.algorithm, self.bind - before.bind
        )


class SchedulerMetrics:
    """Reads the metrics of the scheduler on a loopback port, on one connection."""

    def __init__(self, port: int) -> None:
        trust = ssl.create_default_context()
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE  # the scheduler signs its own certificate
        self._connection = http.client.HTTPSConnection(LOOPBACK, port, context=trust, timeout=10)

    def read(self) -> Scheduling:
        """Return the current sums."""
        self._connection.request("GET", "/metrics")
        response = self._connection.getresponse()
        text = response.read().decode()
        if response.status != 200:
            raise RuntimeError(f"the scheduler's metrics: HTTP status {response.status}")
        return Scheduling.read(text)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def last_decision(log: Path) -> float:
    """Return the milliseconds of the webhook's last decision."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 16_384))
        lines = [line for line in file.read().splitlines() if b'"decided"' in line]
    return float(json.loads(lines[-1])["ms"])


@dataclass(frozen=True, slots=True)
class Start:
    """One VM's start: its times, the scheduler's, and the milliseconds of the decision, if the webhook logs them."""

    trace: str
    timing: Timing
    scheduling: Scheduling
    decision: float | None

    def parts(self, trace: Trace) -> Parts:
        """Return the parts of the time until the pod is bound, and what the response took beside them."""
        server = next(span for name, span in trace.items() if name.startswith("POST /"))
        sent, store, scheduling = 1000 * self.timing.sent, trace[STORE], self.scheduling
        admission = trace[HANDLER].events[ADMISSION_BEGINS]
        bound, response = sent + 1000 * self.timing.bound, sent + 1000 * self.timing.created
        called = trace[CALL].duration if CALL in trace else 0.0
        found = {
            "client: the request arrives": server.start - sent,
            "API server: filters, decode the pod": admission - server.start,
            **self._call(trace),
            "API server: other admission": store.start - admission - called,
            "API server: etcd": store.duration,
            "watches: to the scheduler and the client": bound - store.end - scheduling.queued_to_bound,
            "scheduler: queue, reserve, permit": scheduling.queued_to_bound - scheduling.algorithm - scheduling.bind,
            "scheduler: algorithm": scheduling.algorithm,
            "scheduler: bind, a request": scheduling.bind,
        }
        return found | {TOTAL: sum(found.values()) - found.get(DECISION, 0.0), RESPONSE: response - store.end}

    def _call(self, trace: Trace) -> Parts:
        if CALL not in trace:
            return {}
        call, trip = trace[CALL], trace[ROUND_TRIP]
        return {
            "API server: encode the review": trip.start - call.start,
            "webhook: the call, over TLS": trip.duration,
            **({} if self.decision is None else {DECISION: self.decision}),
            "API server: read the answer, apply the patch": call.end - trip.end,
        }


def typical(starts: Iterable[Parts]) -> Parts:
    """Return the mean of each part over the middle half of the starts by total time, so that the parts still add up."""
    ordered = sorted(starts, key=lambda parts: parts[TOTAL])
    quarter = len(ordered) // 4
    middle = ordered[quarter : len(ordered) - quarter]
    return {name: fmean(parts[name] for parts in middle) for name in middle[0]}


def breakdown_table(size: int, starts: dict[str, list[Parts]]) -> Table:
    """Return a table of the parts by kind for one size of the cluster, in milliseconds."""
    kinds = {kind: typical(parts) for kind, parts in starts.items()}
    title = f"{size:,} nodes: where the milliseconds go, means of the middle half of {len(starts[WITH])} VMs each"
    table = Table(title=title, box=box.SIMPLE)
    table.add_column("", no_wrap=True)
    for heading in (*kinds, "difference"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in kinds[WITH]:
        values = [parts.get(name) for parts in kinds.values()]
        difference = kinds[WITH][name] - kinds[WITHOUT].get(name, 0.0)
        cells = ["" if value is None else f"{value:.2f}" for value in values]
        table.add_row(name, *cells, f"{difference:+.2f}", style="bold" if name == TOTAL else None)
    return table
