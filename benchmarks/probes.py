"""Probes of the server's plain port, timed, for benchmarks/faults.py.

This module measures nothing: run as a script, it prints nothing.
"""

from __future__ import annotations

import http.client
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import quantiles
from threading import Event, Thread
from typing import Any

from attacks import join_within
from sides import TIMEOUT, Side

LATE = 0.1  # seconds
PROBE_TIMEOUT = 5.0  # seconds; that of the chart's liveness probe
PAUSE = 0.02  # seconds between two probes


def get(side: Side, path: str, timeout: float = TIMEOUT) -> tuple[int, str]:
    """GET a path of the plain port over a new connection. Return the status and the body."""
    connection = http.client.HTTPConnection(side.plain, timeout=timeout)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def metric(side: Side, name: str) -> float:
    """Return the value of a metric without labels, 0 if it is missing."""
    lines = get(side, "/metrics")[1].splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} ")), 0.0)


@dataclass(slots=True)
class Probes:
    """The outcome of probes: how many seconds each took, and the failures by cause."""

    took: list[float] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)

    def probe(self, side: Side, path: str) -> None:
        """Send one probe, as the kubelet does, and record its outcome."""
        begin = time.monotonic()
        try:
            status, _ = get(side, path, PROBE_TIMEOUT)
        except (OSError, http.client.HTTPException) as error:
            self.failed[type(error).__name__] += 1
            return
        if status == 200:
            self.took.append(time.monotonic() - begin)
        else:
            self.failed[f"status {status}"] += 1

    def result(self) -> dict[str, Any]:
        """Return the result in milliseconds, with the keys that the load prints."""
        took = sorted(each * 1000 for each in self.took) or [0.0]
        p99 = quantiles(took, n=100, method="inclusive")[98] if len(took) > 1 else took[0]
        late = sum(each > LATE * 1000 for each in took)
        spread = {"p50": took[len(took) // 2], "p99": p99, "max": took[-1]}
        return {"requests": len(self.took), "failed": dict(self.failed), "late": late, "others": 0.0} | spread


@contextmanager
def probing(side: Side) -> Iterator[Probes]:
    """Probe `/healthz` and `/readyz` alternately during the block, and scrape `/metrics` beside it without a pause."""
    probes, done = Probes(), Event()

    def probe() -> None:
        while not done.wait(PAUSE):
            for path in "/healthz", "/readyz":
                probes.probe(side, path)

    def scrape() -> None:
        scrapes = Probes()
        while not done.is_set():
            scrapes.probe(side, "/metrics")

    threads = [Thread(target=target, name=target.__name__, daemon=True) for target in (probe, scrape)]
    for thread in threads:
        thread.start()
    try:
        yield probes
    finally:
        done.set()
        join_within(2 * TIMEOUT, *threads)
