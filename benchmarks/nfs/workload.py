"""Workloads on an NFS disk, and their results."""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass
from statistics import median, quantiles

from .client import COUNT_OF_READ, COUNT_OF_WRITE, NfsError, OpenFile, opaque

DISK_SIZE = 32 * 1024 * 1024  # bytes
SMALL, LARGE = 4 * 1024, 1024 * 1024  # bytes


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of one size and kind, `depth` at a time: small ones at random offsets, large ones in sequence."""

    writes: bool
    size: int
    depth: int

    @property
    def name(self) -> str:
        """Return the name, as tables show it."""
        size = "4 KiB" if self.size == SMALL else "1 MiB"
        return f"{size} {'write' if self.writes else 'read'}, depth {self.depth}"


@dataclass(frozen=True, slots=True)
class Result:
    """Operations per second, and seconds per operation.

    The operations per second are those of the median batch, so a moment in which other work has the core doesn't count.
    """

    per_second: float
    p50: float
    p99: float


def measure(file: OpenFile, workload: Workload, seconds: float) -> Result:
    """Run a workload for so many seconds, and until each request has its reply."""
    payload, count_at = opaque(os.urandom(workload.size)), COUNT_OF_WRITE if workload.writes else COUNT_OF_READ
    blocks = DISK_SIZE // workload.size
    offsets = list(range(0, DISK_SIZE, workload.size))
    if workload.size == SMALL:
        random.Random(1).shuffle(offsets)
    sent_at, done_at, latencies = [0.0] * workload.depth, [time.perf_counter()], list[float]()

    def send(slot: int, number: int) -> None:
        offset = offsets[number % blocks]
        sent_at[slot] = time.perf_counter()
        if workload.writes:
            file.write(slot, offset, payload)
        else:
            file.read(slot, offset, workload.size)

    for slot in range(workload.depth):
        send(slot, slot)
    sent = workload.depth
    while len(latencies) < sent:
        slot, count = file.receive(count_at)
        now = time.perf_counter()
        done_at.append(now)
        latencies.append(now - sent_at[slot])
        if count != workload.size:
            raise NfsError(f"{workload.name}: the server transferred {count} bytes instead of {workload.size}")
        if now < done_at[0] + seconds:
            send(slot, sent)
            sent += 1
    p50, p99 = (quantiles(latencies, n=100)[at] for at in (49, 98)) if len(latencies) > 1 else latencies * 2
    return Result(pace(done_at, 2 * workload.depth), p50, p99)


def pace(done_at: list[float], batch: int) -> float:
    """Return the operations per second of the median batch, from the times of the start and of each reply."""
    batch = min(batch, len(done_at) - 1)
    return batch / median(end - begin for begin, end in zip(done_at, done_at[batch:], strict=False))


def best(rounds: list[Result]) -> Result:
    """Return the best value of each figure: other work on the machine only ever slows a round."""
    return Result(
        max(each.per_second for each in rounds), min(each.p50 for each in rounds), min(each.p99 for each in rounds)
    )
