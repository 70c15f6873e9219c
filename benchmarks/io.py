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
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from nfs.client import OpenFile
from nfs.relay import RunningRelay, running_relay
from nfs.report import RELAYED, SMALL_WORKLOADS, UNLIMITED, WORKLOADS, conditions, show, write_docs
from nfs.results import BANDWIDTHS, DISKS, NETWORKS, Network, Results
from nfs.server import EXPORT, FILE, obstacles, running_server
from nfs.workload import DISK_SIZE, Result, Workload, measure
from rich.progress import Progress

MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Setup:
    """A running server and relay."""

    server_port: int
    relay: RunningRelay


@contextmanager
def start_setup(place: Path, latency: float) -> Iterator[Setup]:
    """Start the server, with a disk in a new folder of `place`, and the relay. At the end, kill both by pid."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by a signal"))  # so that the folders are deleted too
    with TemporaryDirectory(prefix="benchmark-") as folder, TemporaryDirectory(prefix="benchmark-", dir=place) as disk:
        relay_cores = reserve_a_core()
        with running_server(Path(folder), Path(disk), DISK_SIZE, latency) as port, running_relay(port) as relay:
            os.sched_setaffinity(relay.child.pid, relay_cores)
            yield Setup(port, relay)


def reserve_a_core() -> set[int]:
    """Move this process, and thereby the server, off the last core, which the busy-waiting relay gets."""
    *others, last = sorted(os.sched_getaffinity(0))
    if others:
        os.sched_setaffinity(0, others)
    return {last}


def run_round(
    setup: Setup, number: int, seconds: float, workloads: Sequence[Workload], networks: Sequence[Network]
) -> Iterator[tuple[Workload, Network | None, Result]]:
    """Measure each workload in each network, in an order that alternates. No network means without the relay."""
    with closing(OpenFile(setup.server_port, EXPORT, FILE)) as file:
        yield RELAYED, None, measure(file, RELAYED, seconds)
    for workload in workloads:
        with closing(OpenFile(setup.relay.port, EXPORT, FILE)) as file:
            for network in networks if number % 2 == 0 else networks[::-1]:
                setup.relay.configure(network.round_trip, BANDWIDTHS[network.bandwidth])
                yield workload, network, measure(file, workload, seconds)
            setup.relay.configure(0.0, None)


def measure_disk(results: Results, folder: Path, latency: float, rounds: int, seconds: float) -> None:
    """Measure a disk of this latency. Only one in memory is measured with large operations and limits of bandwidth."""
    workloads, networks = (SMALL_WORKLOADS, UNLIMITED) if latency else (WORKLOADS, NETWORKS)
    with start_setup(folder, latency) as setup, Progress(transient=True) as bar:
        task = bar.add_task("", total=rounds * (1 + len(workloads) * len(networks)))
        for number in range(rounds):
            if not bar.console.is_terminal:
                print(f"disk +{latency * 1000:g} ms: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            for workload, network, result in run_round(setup, number, seconds, workloads, networks):
                bar.update(task, advance=1, description=f"round {number + 1}, {workload.name}")
                if network:
                    results.add(workload, network, result)
                else:
                    results.direct.append(result)


@click.command()
@click.option("--seconds", type=click.FloatRange(0.05, 5), help="Duration of each measurement, usually 0.1.")
@click.option("--rounds", type=click.IntRange(1, 200), default=30, show_default=True, help="Number of rounds.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=MEMORY,
    show_default=True,
    help="Where the server stores the NFS disk. The default is in memory.",
)
@click.option("--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write the results to this file.")
@click.option("--docs", is_flag=True, help="Write the figures and the picture into the documentation.")
def main(seconds: float | None, rounds: int, folder: Path, file: Path | None, docs: bool) -> None:
    """Measure what a network between a VM and its NFS server costs."""
    if seconds is None:
        print("not run: it takes minutes. Run it as root with: .venv/bin/python benchmarks/io.py --seconds 0.1")
        return
    if found := obstacles():
        sys.exit("\n".join(found))
    load, disks = os.getloadavg()[0], {latency: Results() for latency in DISKS}
    for latency, results in disks.items():
        measure_disk(results, folder, latency, rounds, seconds)
    if file:
        file.write_text(json.dumps({latency: each.to_json() for latency, each in disks.items()}, indent=1))
    sentences = conditions(disks[0], rounds, seconds, load)
    show(disks, sentences)
    if docs:
        write_docs(disks, sentences)


if __name__ == "__main__":
    main()
