"""Benchmark of reviews over TLS: this webhook beside a peer in Go with controller-runtime, which a user could write.

Both servers run at the same time and get load in turn, round by round, so the ratio holds on a machine whose speed
drifts. The servers share one core, and the load has another. This webhook is complete, with metrics, logs, checks and
Events, and follows a cluster. The peer has the same cluster in maps, follows no cluster and writes no Events.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from statistics import median

import click
from peer.build import BuildError
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rounds import MODES, Round, idle_memory, measure_starts, ratios, require_equal_answers, rounds
from sides import CLAIMS, NODES, OURS, PEER, Setup, start_setup, write_snapshot

# The title with the unit, the key in the result of a round, and the number of decimal places.
FIGURES = {
    "requests/s": ("per_second", 0),
    "p50, ms": ("p50", 2),
    "p99, ms": ("p99", 2),
    "CPU, µs per request": ("cpu", 0),
}
# Shares of a core. Above BUSY, the load may limit the result. Above DISTURBED, other processes disturb the servers.
BUSY, DISTURBED = 0.9, 0.05


def empty_table(title: str, *headings: str) -> Table:
    """Return an empty table with a first column of names and further columns of numbers."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def main_table(found: list[Round], names: tuple[str, ...]) -> Table:
    """Return the table of each mode's medians over the rounds, with the ratio ours / peer's."""
    title = "Medians; ratio: ours / peer's; low, high: of a single round"
    table = empty_table(title, *names, "ratio", "low", "high")
    for mode in MODES:
        table.add_row(f"[bold]{mode.name}[/]")
        for title, (key, places) in FIGURES.items():
            values = [
                median(each.found[key] for each in found if (each.mode, each.side) == (mode.name, name))
                for name in names
            ]
            cells = [f"{value:,.{places}f}" for value in values]
            table.add_row(f"  {title}", *cells, *(f"{ratio:.2f}" for ratio in ratios(found, mode.name, key)))
    return table


def rest_table(rest: dict[str, dict[str, float]], names: tuple[str, ...]) -> Table:
    """Return the table of the measurements outside the rounds: starts and memory."""
    table = empty_table("Starts and memory", *names, f"{OURS} : {PEER}")
    for title, values in rest.items():
        cells = [f"{values[name]:.2f}" if name in values else "" for name in names]
        table.add_row(title, *cells, f"{values[OURS] / values[PEER]:.2f}")
    return table


def measure(
    setup: Setup, names: tuple[str, ...], number: int, seconds: float
) -> tuple[list[Round], dict[str, dict[str, float]]]:
    """Start the sides, require equal answers, and run the rounds."""
    with ExitStack() as stack:
        bar = stack.enter_context(Progress(transient=True))
        task = bar.add_task("starting", total=number * len(MODES) * len(names))
        started = measure_starts(setup, (OURS, PEER), 5)
        rest = {
            "start on an empty cluster, s": {name: each["seconds"] for name, each in started.items()},
            "idle memory there, MB": {name: each["mb"] for name, each in started.items()},
        }
        snapshot = write_snapshot(setup.folder / "cluster.json")
        sides = [stack.enter_context(setup.serving(name, snapshot)) for name in names]
        rest[f"start with {CLAIMS:,} claims, s"] = {side.name: side.start_seconds for side in sides}
        rest[f"idle memory with {CLAIMS:,} claims, MB"] = {side.name: idle_memory(side) for side in sides}
        require_equal_answers(sides)
        found = []
        for each in rounds(setup, sides, number, seconds):
            found.append(each)
            bar.update(task, advance=1, description=f"round {each.number + 1} of {number}: {each.mode}")
        rest["memory after the load, MB"] = {side.name: idle_memory(side) for side in sides}
    return found, rest


def find_doubts(found: list[Round], setup: Setup) -> list[str]:
    """Return the reasons to distrust the figures."""
    reasons = [] if setup.cores.separate else ["the load and the servers shared the only core"]
    reasons += [
        f"{each.mode}, {each.side}, round {each.number + 1}: {each.found['failed']} failed"
        for each in found
        if each.found["failed"]
    ]
    busy = dict.fromkeys(f"{each.mode}, {each.side}" for each in found if each.found["load_cpu"] > BUSY)
    reasons += [f"{what}: the load used all of its own core" for what in busy]
    if disturbed := [each.found["others"] for each in found if each.found["others"] > DISTURBED]:
        share = f"{DISTURBED:.0%} of the servers' core, and up to {max(disturbed):.0%}"
        problem = f"in {len(disturbed)} of {len(found)} loads other processes used more than {share}"
        reasons.append(f"{problem}: CPU per request is still meaningful, requests/s and latencies hardly")
    return reasons


@click.command()
@click.option("--rounds", "number", default=5, show_default=True, type=click.IntRange(1), help="Number of rounds.")
@click.option(
    "--seconds",
    default=2.0,
    show_default=True,
    help="Measured duration of each load, after a warm-up of half a second.",
)
def main(number: int, seconds: float) -> None:
    """Measure reviews over TLS, beside the peer in Go."""
    names, console = (OURS, PEER), Console()
    before = os.getloadavg()[0]
    try:
        with start_setup() as setup:
            found, rest = measure(setup, names, number, seconds)
            doubts = find_doubts(found, setup)
    except BuildError as error:
        sys.exit(str(error))
    console.print(f"{number} rounds of {seconds:g} s; {CLAIMS:,} claims on {NODES} nodes")
    console.print(f"load average before: {before:.1f}; {sum(each.found['requests'] for each in found):,} requests")
    console.print(main_table(found, names), rest_table(rest, names))
    for doubt in doubts:
        console.print(f"[bold]Doubtful:[/] {doubt}", soft_wrap=True)
    if any(each.found["failed"] for each in found):
        sys.exit(1)


if __name__ == "__main__":
    main()
