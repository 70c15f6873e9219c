"""Benchmark of an NFS disk over a network: operations per second and latency against the round-trip time.

The server is nfs-ganesha, as in Longhorn's share-manager. A relay in front of it adds a round-trip time and limits the
bandwidth. Each result is the best of several rounds, and is compared with the undelayed one of the same run. The
benchmark leaves out:

- Longhorn's engine and replicas, whose own traffic does not depend on the VM's node.
- The kernel's NFS client, its page cache and read-ahead, and QEMU.
- Packet loss and congestion, and a network interface's interrupts.

It installs nothing, uses only loopback, and ends the processes that it starts. The run takes minutes and needs root and
two Debian packages, so `make bench` only prints how to start it.
"""

from __future__ import annotations

# This file does not shadow the standard library's `io`, which Python loads before any script.
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from nfs.chart import Series, line_chart
from nfs.client import OpenFile
from nfs.relay import RunningRelay, running_relay
from nfs.results import BANDWIDTHS, NETWORKS, NO_LIMIT, ROUND_TRIPS, UNDELAYED, Network, Results
from nfs.server import FILE, obstacles, running_server
from nfs.workload import DISK_SIZE, LARGE, SMALL, Result, Workload, best, measure
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

MEMORY, DISK = "memory", "disk"  # the exports: a folder in memory, whose storage costs no time, and one on a disk
SHARED_MEMORY = Path("/dev/shm")
WORKLOADS = (
    *(Workload(writes, SMALL, depth, MEMORY) for depth in (1, 8) for writes in (True, False)),
    *(Workload(writes, LARGE, 1, MEMORY) for writes in (True, False)),
    *(Workload(True, SMALL, depth, DISK) for depth in (1, 8)),
)
RELAYED = Workload(False, SMALL, 1, MEMORY)  # measured without the relay too
COLORS = {
    (MEMORY, SMALL, 1): "first",
    (MEMORY, SMALL, 8): "second",
    (MEMORY, LARGE, 1): "third",
    (DISK, SMALL, 1): "fourth",
    (DISK, SMALL, 8): "fifth",
}


@dataclass(frozen=True, slots=True)
class Setup:
    """A running server and relay."""

    server_port: int
    relay: RunningRelay


@contextmanager
def start_setup(disk: Path | None) -> Iterator[Setup]:
    """Start the server and the relay. At the end, kill them by pid and delete the files."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # so that the folders are deleted too
    with ExitStack() as stack:
        temporary = [
            Path(stack.enter_context(TemporaryDirectory(prefix="benchmark-", dir=place)))
            for place in (None, SHARED_MEMORY, disk)
        ]
        folder, memory, on_disk = temporary
        relay_cores = reserve_a_core()
        port = stack.enter_context(running_server(folder, {MEMORY: memory, DISK: on_disk}, DISK_SIZE))
        relay = stack.enter_context(running_relay(port))
        os.sched_setaffinity(relay.child.pid, relay_cores)
        yield Setup(port, relay)


def reserve_a_core() -> set[int]:
    """Move this process, and thereby the server, off the last core, which the busy-waiting relay gets."""
    *others, last = sorted(os.sched_getaffinity(0))
    if others:
        os.sched_setaffinity(0, others)
    return {last}


def run_round(setup: Setup, number: int, seconds: float) -> Iterator[tuple[Workload, Network | None, Result]]:
    """Measure each workload in each network, in an order that alternates. No network means without the relay."""
    with closing(OpenFile(setup.server_port, RELAYED.export, FILE)) as file:
        yield RELAYED, None, measure(file, RELAYED, seconds)
    for workload in WORKLOADS:
        with closing(OpenFile(setup.relay.port, workload.export, FILE)) as file:
            for network in NETWORKS if number % 2 == 0 else NETWORKS[::-1]:
                setup.relay.configure(network.round_trip, BANDWIDTHS[network.bandwidth])
                yield workload, network, measure(file, workload, seconds)
            setup.relay.configure(0.0, None)


def show(results: Results) -> None:
    """Print a row for each workload and bandwidth."""
    table = Table(box=box.SIMPLE_HEAD, title="operations/s · p50 without the round trip, then their ratio · p50")
    for heading in ("workload", "bandwidth", *(f"{each * 1000:g} ms" for each in ROUND_TRIPS)):
        table.add_column(heading, justify="left" if heading in {"workload", "bandwidth"} else "right")
    for workload in WORKLOADS:
        for bandwidth in BANDWIDTHS:
            name = f"{workload.name}{', on disk' * (workload.export == DISK)}" if bandwidth == NO_LIMIT else ""
            networks = [Network(each, bandwidth) for each in ROUND_TRIPS]
            table.add_row(name, bandwidth, *(_cell(results, workload, network) for network in networks))
    Console(width=150).print(table)


def _cell(results: Results, workload: Workload, network: Network) -> str:
    result = results.result(workload, network)
    operations = f"{result.per_second:,.0f}" if network == UNDELAYED else f"{results.ratio(workload, network):.2f}"
    return f"{operations} · {result.p50 * 1000:.2f} ms"


def show_accuracy(results: Results) -> None:
    """Print the delay of the relay itself, and how exactly it adds a round-trip time."""
    own = results.result(RELAYED, UNDELAYED).p50 - best(results.direct).p50
    added = [f"{results.added(RELAYED, Network(each)) * 1e6:.0f} for {each * 1e6:.0f}" for each in ROUND_TRIPS[1:]]
    print(f"the relay itself adds {own * 1e6:.0f} µs to {RELAYED.name}, in each column")
    print(f"added round-trip time, measured for set: {', '.join(added)} µs")


def draw(results: Results, file: Path) -> None:
    """Write the picture that the documentation shows."""
    lines = [
        Series(
            f"{workload.name}{', on disk' * (workload.export == DISK)}",
            COLORS[workload.export, workload.size, workload.depth],
            not workload.writes,
            [
                (results.ratio(workload, network), results.result(workload, network).p50 * 1000)
                for network in map(Network, ROUND_TRIPS)
            ],
        )
        for workload in WORKLOADS
    ]
    note = "Against the round trip in ms; operations of those without it; nfs-ganesha on loopback, no bandwidth limit"
    file.write_text(line_chart("What the network costs an NFS disk", note, ROUND_TRIPS, lines))


@click.command()
@click.option("--seconds", type=click.FloatRange(0.05, 5), help="Duration of each measurement, usually 0.1.")
@click.option("--rounds", type=click.IntRange(1, 200), default=30, show_default=True, help="Number of rounds.")
@click.option(
    "--disk", type=click.Path(path_type=Path, file_okay=False, exists=True), help="A folder on the disk to measure."
)
@click.option("--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write the results to this file.")
@click.option("--picture", type=click.Path(path_type=Path, dir_okay=False), help="Write the picture to this SVG file.")
def main(seconds: float | None, rounds: int, disk: Path | None, file: Path | None, picture: Path | None) -> None:
    """Measure what a network between a VM and its NFS server costs."""
    if seconds is None:
        print("not run: it takes minutes. Run it as root with: .venv/bin/python benchmarks/io.py --seconds 0.1")
        return
    if found := obstacles():
        sys.exit("\n".join(found))
    results, load = Results(), os.getloadavg()[0]
    with start_setup(disk) as setup, Progress(transient=True) as bar:
        task = bar.add_task("", total=rounds * (1 + len(WORKLOADS) * len(NETWORKS)))
        for number in range(rounds):
            for workload, network, result in run_round(setup, number, seconds):
                bar.update(task, advance=1, description=f"round {number + 1}, {workload.name}")
                if network:
                    results.add(workload, network, result)
                else:
                    results.direct.append(result)
    if file:
        file.write_text(json.dumps(results.to_json(), indent=1))
    show(results)
    show_accuracy(results)
    print(f"{rounds} rounds of {seconds:g} s; load average {load:.1f} before, {os.getloadavg()[0]:.1f} after")
    if picture:
        draw(results, picture)


if __name__ == "__main__":
    main()
