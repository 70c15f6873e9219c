"""Benchmark of scheduling time: seconds from the creation of a VM's pod to its binding, with and without the webhook.

The API server, default scheduler and webhook are real. kwok simulates 20 to 5,000 nodes. All claims are bound and all
share-managers run before the measurement. VMs start one at a time. Each round starts one VM with the webhook, one
without and, with --peer, one with the webhook in Go of benchmarks/serve.py, so the ratio holds on a machine whose speed
drifts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from statistics import median, quantiles

import click
from rich import box
from rich.console import Console
from rich.table import Table
from stage import progress, start_stage
from vm_starts import PEER, WITH, WITHOUT, Comparison, Timing

from tests.support.scenario import Scenario

SIZES, FULL = (20, 200, 1_000), (20, 200, 1_000, 5_000)
ROUNDS, WARM_UP = 100, 10


def in_turn(kinds: tuple[str, ...], number: int) -> tuple[str, ...]:
    """Return the kinds in the order of this round."""
    first = number % len(kinds)
    return kinds[first:] + kinds[:first]


def run_rounds(
    comparison: Comparison, kinds: tuple[str, ...], count: int, show_step: Callable[[str], None]
) -> dict[str, list[Timing]]:
    """Start VMs of each kind, in another order each time."""
    found: dict[str, list[Timing]] = {kind: [] for kind in kinds}
    for number in range(-WARM_UP, count):
        if number % 50 == 0:
            show_step(f"round {number} of {count}")
        for kind in in_turn(kinds, number):
            timing = comparison.start_vm(kind, number)
            if number >= 0:
                found[kind].append(timing)
    return found


def measure(
    sizes: tuple[int, ...], kinds: tuple[str, ...], count: int, show_step: Callable[[str], None]
) -> dict[int, dict[str, list[Timing]]]:
    """Return the timings of each kind by cluster size."""
    found = {}
    with ExitStack() as stack:
        stage = stack.enter_context(start_stage())
        webhook = stack.enter_context(stage.webhook("webhook"))
        webhook.register(share_managers=False, direct=True)
        # The webhook in Go is registered later.
        called = {kind: webhook if kind == WITH else None for kind in kinds}
        scenarios = {kind: Scenario(stage.plane, stage.longhorn, called[kind]) for kind in kinds}
        comparison = Comparison(stage, scenarios)
        stack.callback(comparison.close)
        for size in sizes:
            show_step(f"{size:,} nodes: creating them")
            comparison.grow(size)
            if size == sizes[0]:
                comparison.create_volumes()
                if PEER in kinds:
                    stack.enter_context(comparison.peer(webhook))
            found[size] = run_rounds(
                comparison, kinds, count, partial(lambda size, what: show_step(f"{size:,} nodes: {what}"), size)
            )
    return found


def timing_table(found: dict[int, dict[str, list[Timing]]], kinds: tuple[str, ...], count: int) -> Table:
    """Return the table of the timings in milliseconds. Ratios are to the VMs without a webhook."""
    title = f"{count} VMs of each kind, milliseconds, {' / '.join(kinds)}"
    table = Table(title=title, box=box.SIMPLE)
    for heading in ("nodes", "until stored", "then bound", "in all, p50", "ratio", "p99", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    for size, measured in found.items():
        timings = [measured[kind] for kind in kinds]
        row = [
            " / ".join(f"{1000 * median(value(timing) for timing in each):.1f}" for each in timings)
            for value in (lambda timing: timing.created, lambda timing: timing.bound - timing.created)
        ]
        for statistic in median, lambda values: quantiles(values, n=100)[98]:
            values = [1000 * statistic([timing.bound for timing in each]) for each in timings]
            row.append(" / ".join(f"{value:.0f}" for value in values))
            row.append(" / ".join(f"{value / values[0]:.2f}" for value in values[1:]))
        table.add_row(f"{size:,}", *row)
    return table


@click.command()
@click.option("--full", is_flag=True, help="Also measure 5,000 nodes, which takes minutes and 3 GB.")
@click.option("--rounds", "count", default=ROUNDS, show_default=True, type=click.IntRange(2), help="VMs of each kind.")
@click.option("--peer", is_flag=True, help="Also measure a webhook in Go.")
@click.option("--nodes", multiple=True, type=click.IntRange(1), help="Measure only this size. Can be repeated.")
def main(full: bool, count: int, peer: bool, nodes: tuple[int, ...]) -> None:
    """Time the placement of VMs on 20, 200 and 1,000 nodes, with the webhook and without."""
    kinds = (WITHOUT, PEER, WITH) if peer else (WITHOUT, WITH)
    with progress() as show_step:
        found = measure(tuple(sorted(nodes)) or (FULL if full else SIZES), kinds, count, show_step)
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(timing_table(found, kinds, count))


if __name__ == "__main__":
    main()
