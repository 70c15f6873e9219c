"""What a review costs over TLS: ours beside the webhook that a user would write instead, in Go with controller-runtime.

Both run at the same time, each asked in turn, round by round, so that the ratio holds on a machine whose speed drifts:
the servers on one core, the load on another. Ours is the whole product, with its metrics, logs, checks and events, and
follows a cluster (--snapshot: reads a file); the peer has the same cluster in maps, follows none and tells nobody.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import click
from peer.build import BuildError
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rounds import MODES, Round, all_sides, hold_the_same, ratios, rounds, settled, starts
from sides import CLAIMS, NODES, OURS, PEER, STOCK, Arena, Side, arena, write_snapshot

# What a round tells, its unit, and how many places are worth reading.
FIGURES = {
    "requests/s": ("per_second", 0),
    "p50, ms": ("p50", 2),
    "p99, ms": ("p99", 2),
    "CPU, µs per request": ("cpu", 0),
}
# From here on the load itself may be what is measured; and of the server's core others may not take more than that.
BUSY, DISTURBED = 0.9, 0.05


def headed(title: str, *headings: str) -> Table:
    """Return an empty table; its first column has names, the others numbers."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def main_table(found: list[Round], names: tuple[str, ...]) -> Table:
    """Return the figures of each mode: the medians over the rounds, and how ours relates to the peer's."""
    title = "Medians; ratio: ours by the peer's; low, high: in one round"
    table = headed(title, *names, "ratio", "low", "high")
    for mode in MODES:
        table.add_row(f"[bold]{mode.name}[/]")
        for title, (key, places) in FIGURES.items():
            values = [
                median(each.found[key] for each in found if (each.mode, each.side) == (mode.name, name))
                for name in names
            ]
            told = [f"{value:,.{places}f}" for value in values]
            table.add_row(f"  {title}", *told, *(f"{ratio:.2f}" for ratio in ratios(found, mode.name, key)))
    return table


def rest_table(rest: dict[str, dict[str, float]], names: tuple[str, ...]) -> Table:
    """Return what is measured outside of the rounds: starts and memory."""
    table = headed("Starts and memory", *names, f"{OURS} : {PEER}")
    for title, values in rest.items():
        told = [f"{values[name]:.2f}" if name in values else "" for name in names]
        table.add_row(title, *told, f"{values[OURS] / values[PEER]:.2f}")
    return table


def measure(
    place: Arena, names: tuple[str, ...], number: int, seconds: float
) -> tuple[list[Round], dict[str, dict[str, float]]]:
    """Start the sides, hold them to the same answer, and let them run side by side."""
    with ExitStack() as stack:
        bar = stack.enter_context(Progress(transient=True))
        task = bar.add_task("starting", total=number * len(MODES) * len(names))
        started = starts(place, (OURS, PEER), 5)
        rest = {
            "start on an empty cluster, s": {name: each["seconds"] for name, each in started.items()},
            "idle memory there, MB": {name: each["mb"] for name, each in started.items()},
        }
        snapshot = write_snapshot(place.folder / "cluster.json")
        sides: list[Side] = all_sides(place, stack, names, snapshot)
        rest[f"start with {CLAIMS:,} claims, s"] = {side.name: side.started for side in sides}
        rest[f"idle memory with {CLAIMS:,} claims, MB"] = {side.name: settled(side) for side in sides}
        hold_the_same(sides)
        found = []
        for each in rounds(place, sides, number, seconds):
            found.append(each)
            bar.update(task, advance=1, description=f"round {each.number + 1} of {number}: {each.mode}")
        rest["memory after the load, MB"] = {side.name: settled(side) for side in sides}
    return found, rest


def doubts(found: list[Round], place: Arena) -> list[str]:
    """Return what speaks against the figures."""
    told = [] if place.cores.apart else ["only one core: the load and the servers took it from each other"]
    told += [
        f"{each.mode}, {each.side}, round {each.number + 1}: {each.found['failed']} failed"
        for each in found
        if each.found["failed"]
    ]
    busy = dict.fromkeys(f"{each.mode}, {each.side}" for each in found if each.found["load_cpu"] > BUSY)
    told += [f"{what}: the load took all of its own core" for what in busy]
    if disturbed := [each.found["others"] for each in found if each.found["others"] > DISTURBED]:
        much = f"{DISTURBED:.0%} of the servers' core, and up to {max(disturbed):.0%}"
        where = f"in {len(disturbed)} of {len(found)} loads others took more than {much}"
        told.append(f"{where}: CPU per request still says something, requests/s and latencies little")
    return told


@click.command()
@click.option("--rounds", "number", default=5, show_default=True, type=click.IntRange(1), help="How many rounds.")
@click.option(
    "--seconds", default=2.0, show_default=True, help="Measured, of each load; half a second before it is not."
)
@click.option("--live/--snapshot", default=True, show_default=True, help="Whether ours follows a cluster.")
@click.option("--stock", is_flag=True, help="Beside them our decision in plain Flask behind stock gunicorn gthread.")
@click.option("--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Where to write all rounds.")
def main(number: int, seconds: float, live: bool, stock: bool, file: Path | None) -> None:
    """Measure what a review costs, beside the peer in Go."""
    names, console = (OURS, PEER, *[STOCK] * stock), Console()
    before = os.getloadavg()[0]
    try:
        with arena(live=live) as place:
            found, rest = measure(place, names, number, seconds)
            doubtful = doubts(found, place)
    except BuildError as error:
        sys.exit(str(error))
    kept: dict[str, Any] = {"live": live, "claims": CLAIMS, "nodes": NODES, "load_average_before": before}
    if file:
        file.write_text(json.dumps(kept | {"rest": rest, "rounds": [asdict(each) for each in found]}, indent=1))
    source = "a live catalog" if live else "a snapshot"
    console.print(f"{number} rounds of {seconds:g} s; {CLAIMS:,} claims on {NODES} nodes, from {source}")
    console.print(f"load average before: {before:.1f}; {sum(each.found['requests'] for each in found):,} requests")
    console.print(main_table(found, names), rest_table(rest, names))
    for doubt in doubtful:
        console.print(f"[bold]Doubtful:[/] {doubt}", soft_wrap=True)
    if any(each.found["failed"] for each in found):
        sys.exit(1)


if __name__ == "__main__":
    main()
