"""Benchmark of the disk path: an NFS disk from its server's node and from another node, on kernels of their own.

Three machines in user-mode Linux are on a bridge. The first one serves file systems with NFS Ganesha and Longhorn's
options. It and the second one mount them with the kernel's client, and use a file as `benchmark` does. The parameters:

- the disk behind the server: in memory, on a file, or on the third machine (`far`: a block device over the network, as
  a replica on another node is)
- what netem adds to each round trip between the server and the other machines: from the client, and to the far disk

Reads find nothing in the server's page cache, which is emptied all the time. Other work may run on the machine. So all
measurements of a delay are interleaved and repeated. A latency comes from the fastest tenth of the operations in the
best round, and a rate from the best round: what other programs disturbed least. Run it as root:
`tests/support/nodes/enter .venv/bin/python benchmarks/nodes.py`
"""

from __future__ import annotations

import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import click
from stage import Row, bar_chart

# The package does not install the tests' support modules. They are imported from the repository.
sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support.nodes.machine import NAMES, Guest, Machine, prepare
from tests.support.nodes.share_managers import GANESHA
from tests.support.nodes.system import system

CHART = Path(__file__).parent.parent / "docs/images/bytes.svg"
DELAYS = (0.0, 0.1, 0.25, 0.5, 1.0)  # milliseconds
DISKS = ("memory", "file", "far")
# The device of each disk, in the server.
DEVICES = {
    "memory": "truncate -s 512M /share/volumes/disk; losetup --find --show /share/volumes/disk",
    "file": "truncate -s 512M /var/disk; losetup --find --show /var/disk",
    "far": "nbd-client -N disk {far} /dev/nbd0 -connections 1 >/dev/null; echo /dev/nbd0",
}
EXPORT = """
mkdir -p /export/{name}
mkfs.ext4 -q -F {device}
mount {device} /export/{name}
"""
SERVE = """
mkdir -p /run/ganesha /var/lib/nfs/ganesha
ln -sf /proc/self/mounts /etc/mtab
cat >/run/ganesha.conf <<'END'
{config}
END
ganesha.nfsd -L /run/ganesha.log -f /run/ganesha.conf -p /run/ganesha.pid >/dev/null 2>&1 </dev/null
"""
# Its disk is in memory.
SERVE_FAR = """
truncate -s 512M /share/volumes/far
mkdir -p /etc/nbd-server
printf '[generic]\\nuser = root\\ngroup = root\\n[disk]\\nexportname = /share/volumes/far\\n' >/etc/nbd-server/config
nbd-server -C /etc/nbd-server/config >/dev/null 2>&1 </dev/null
"""
MOUNT = """
mkdir -p /disks/{name}
mount -t nfs -o vers=4.1,noresvport,softerr,timeo=600,retrans=5 {server}:/{name} /disks/{name}
"""
# The server's page cache would answer most reads of a file of 128 MiB.
FORGET = """
setsid /bin/bash -c 'while sleep 0.1; do echo 1 >/proc/sys/vm/drop_caches; done' >/dev/null 2>&1 </dev/null &
"""
# The median round trip of a packet, from the client to the server's shell.
ROUND_TRIP = """
import socket, statistics, sys, time
found = []
for _ in range(100):
    start = time.perf_counter()
    socket.create_connection((sys.argv[1], 2049)).close()
    found.append(1000 * (time.perf_counter() - start))
print(statistics.median(found))
"""
OPERATIONS = tuple(product(("4 KiB", "1 MiB"), ("write", "read"), (1, 8)))  # size, kind, in flight
SIDES = ("here", "across")


class Case(NamedTuple):
    """What is measured."""

    delay: float
    disk: str
    size: str
    kind: str
    in_flight: int
    side: str


class Result(NamedTuple):
    """What one measurement has shown. The hops' bytes are for each byte that the guest read or wrote."""

    early: float  # milliseconds of an operation: the 10th percentile
    rate: float  # operations a second
    first_hop: float  # from the client to the server
    second_hop: float  # from the server to its disk


def exports(names: tuple[str, ...]) -> str:
    """Return Ganesha's configuration with an export for each name."""
    options, _, export = GANESHA.partition("EXPORT {")
    found = [options]
    for number, name in enumerate(names, 1):
        numbered = export.replace("Export_Id = 1", f"Export_Id = {number}").replace("= 1.0", f"= {number}.0")
        found.append(f"EXPORT {{{numbered.replace('VOLUME', name)}")
    return "".join(found)


class Machines:
    """The server with its disks, its two clients (it is one of them), and the machine of the far disk."""

    def __init__(self, disks: tuple[str, ...], folder: Path) -> None:
        root = {"ubd0": Path("/system/root.ext4")}
        self.here, self.across, self.far = (Machine(number, root, folder) for number in range(1, len(NAMES) + 1))
        for machine in self.here, self.across, self.far:
            machine.start()
        for machine in self.here, self.across, self.far:
            machine.wait_until_booted()
        self.far.run(SERVE_FAR)
        for disk in disks:
            device = self.here.run(DEVICES[disk].format(far=self.far.address)).splitlines()[-1]
            self.here.run(EXPORT.format(name=disk, device=device))
        self.here.run(SERVE.format(config=exports(disks)))
        for disk, machine in product(disks, (self.here, self.across)):
            machine.run(MOUNT.format(name=disk, server=self.here.address))
        self.here.run(FORGET)
        self._guests = {"here": Guest(self.here), "across": Guest(self.across)}

    def stop(self) -> None:
        """Switch the machines off, and forget what they had written."""
        for machine in self.here, self.across, self.far:
            machine.cut_power()

    def set_delay(self, milliseconds: float) -> float:
        """Delay what the server sends to other machines, and return the median round trip from the client to it."""
        self.here.run("tc qdisc delete dev vec0 root 2>/dev/null || true")
        if milliseconds:
            self.here.run(f"tc qdisc add dev vec0 root netem limit 100000 delay {milliseconds}ms")
        return float(self.across.run_python(ROUND_TRIP, self.here.address))

    def measure(self, case: Case, seconds: float) -> Result:
        """Measure one case."""
        before = self.across.link_bytes(), self.far.link_bytes()
        arguments = f"/disks/{case.disk}/{case.side}", case.size, case.kind, str(seconds), str(case.in_flight)
        found = self._guests[case.side].ask(*arguments)
        after = self.across.link_bytes(), self.far.link_bytes()
        hops = [(late - early) / found["data"] for early, late in zip(before, after, strict=True)]
        return Result(found["early"], found["operations"] / found["seconds"], *hops)


def cases(delay: float, disks: tuple[str, ...], turn: int) -> Iterator[Case]:
    """Yield the cases of a delay: those that are compared follow each other, in turns."""
    places = list(product(disks, SIDES))
    for size, kind, in_flight in OPERATIONS:
        for disk, side in places if turn % 2 == 0 else reversed(places):
            yield Case(delay, disk, size, kind, in_flight, side)


@click.command()
@click.option("--rounds", default=3, show_default=True, help="How often each measurement is repeated.")
@click.option("--seconds", default=1.0, show_default=True, help="Of each measurement.")
@click.option("--disk", "disks", multiple=True, default=DISKS, show_default=True, type=click.Choice(DISKS))
@click.option("--delay", "delays", multiple=True, default=DELAYS, show_default=True, help="Milliseconds of netem.")
@click.option("--draw", is_flag=True, help="Draw the chart of the docs, from the bytes without netem.")
def main(rounds: int, seconds: float, disks: tuple[str, ...], delays: tuple[float, ...], *, draw: bool) -> None:
    """Measure an NFS disk from its server's node and from another node."""
    if "NODE_NAMESPACES" not in os.environ:
        print("skipped: it needs `tests/support/nodes/enter .venv/bin/python benchmarks/nodes.py`", file=sys.stderr)
        return
    found: dict[Case, list[Result]] = defaultdict(list)
    trips: dict[float, list[float]] = defaultdict(list)
    with TemporaryDirectory() as folder:
        prepare(system(), Path(folder))
        machines = Machines(disks, Path(folder))
        for place in product(disks, SIDES):  # fill the disks
            machines.measure(Case(0.0, place[0], "1 MiB", "write", 1, place[1]), 0.1)
        for number, delay in product(range(rounds), delays):
            load = f"{os.getloadavg()[0]:.0f}"
            print(f"round {number + 1} of {rounds}, {delay} ms, load {load}", file=sys.stderr, flush=True)
            trips[delay].append(machines.set_delay(delay))
            for case in cases(delay, disks, number):
                found[case].append(machines.measure(case, seconds))
        machines.stop()
    for delay in delays:
        print_table(delay, disks, found, statistics.median(trips[delay]))
    if draw:
        CHART.write_text(chart(found, delays[0]))


def print_table(delay: float, disks: tuple[str, ...], found: dict[Case, list[Result]], trip: float) -> None:
    """Print latencies, rates and bytes, and what each hop costs."""
    print(f"\n## {delay} ms added: round trip {trip:.2f} ms\n")
    print("| disk, operation, in flight | here, ms | across, ms | here, /s | across, /s | first hop | second hop |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for disk, (size, kind, count) in product(disks, OPERATIONS):
        sides = [found[Case(delay, disk, size, kind, count, side)] for side in SIDES]
        cells = [f"{latency(side):.2f}" for side in sides]
        cells += [f"{best_rate(side):,.0f}" for side in sides]
        cells += [", ".join(f"{median(side, hop):.2f}" for side in sides) for hop in ("first_hop", "second_hop")]
        print(f"| {disk}, {size} {kind}, {count} | {' | '.join(cells)} |")
    if {"memory", "far"} <= set(disks):
        print("\n| ms | with both hops | without the first | without the second | without both |")
        print("| --- | ---: | ---: | ---: | ---: |")
        places = ("far", "across"), ("far", "here"), ("memory", "across"), ("memory", "here")
        for size, kind, count in OPERATIONS:
            results = [found[Case(delay, disk, size, kind, count, side)] for disk, side in places]
            print(f"| {size} {kind}, {count} | {' | '.join(f'{latency(each):.2f}' for each in results)} |")


def latency(results: list[Result]) -> float:
    """Return the milliseconds of the best round."""
    return min(each.early for each in results)


def best_rate(results: list[Result]) -> float:
    """Return the operations a second of the best round."""
    return max(each.rate for each in results)


def median(results: list[Result], field: str) -> float:
    """Return the median of a field over all rounds."""
    return statistics.median(getattr(each, field) for each in results)


def chart(found: dict[Case, list[Result]], delay: float) -> str:
    """Return the picture of the bytes that cross the network at each hop, one operation at a time."""
    columns = {"4 KiB write": "", "4 KiB read": "", "1 MiB write": ""}
    rows = []
    for name, side, hop, color in (
        ("without, hop 1", "across", "first_hop", "without"),
        ("without, hop 2", "across", "second_hop", "without"),
        ("with, hop 1", "here", "first_hop", "both"),
        ("with, hop 2", "here", "second_hop", "both"),
    ):
        results = [found[Case(delay, "far", *each.rsplit(" ", 1), 1, side)] for each in columns]  # type: ignore[arg-type]
        rows.append(Row(name, color, tuple(median(each, hop) for each in results)))
    note = "for each byte of the disk, with one replica on a third node"
    title = "What crosses the network without the webhook and with it"
    return bar_chart(title, note, columns, rows, max(max(row.shares) for row in rows))


if __name__ == "__main__":
    main()
