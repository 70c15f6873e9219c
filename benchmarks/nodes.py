"""Benchmark of the disk path: an NFS disk from its server's node and from another node, on kernels of their own.

Three machines in user-mode Linux are on a bridge. The first one serves a file system with NFS Ganesha and Longhorn's
options. It and the second one mount it with the kernel's client, and use a file as `benchmark` does. The parameters:

- the server's disk: in memory, on a file, or on the third machine (`far`: a block device over the network, as a replica
  on another node is)
- what netem adds to the round trip of the server's link: the link from the client, and also the one to a far disk

Each pair of measurements, here and across, is interleaved and repeated, because other work runs on the machine. Compare
the ratios and the bytes. Run it as root: `tests/support/nodes/enter .venv/bin/python benchmarks/nodes.py`
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

import click

# The package does not install the tests' support modules. They are imported from the repository.
sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support.nodes.machine import NAMES, Machine, prepare
from tests.support.nodes.share_managers import GANESHA
from tests.support.nodes.system import system

DELAYS = (0.0, 0.1, 0.25, 0.5, 1.0)  # milliseconds
DISKS = ("memory", "file", "far")
# The device of each disk, in the server.
DEVICES = {
    "memory": "truncate -s 512M /share/volumes/disk; losetup --find --show /share/volumes/disk",
    "file": "truncate -s 512M /var/disk; losetup --find --show /var/disk",
    "far": "nbd-client -N disk {far} /dev/nbd0 -connections 1 >/dev/null; echo /dev/nbd0",
}
SERVE = """
mkdir -p /export/disk /run/ganesha /var/lib/nfs/ganesha
ln -sf /proc/self/mounts /etc/mtab
mkfs.ext4 -q -F {device}
mount {device} /export/disk
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
MOUNT = "mkdir -p /disk; mount -t nfs -o vers=4.1,noresvport,softerr,timeo=600,retrans=5 {server}:/disk /disk"
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
Key = tuple[str, float, str, int, str]  # disk, delay, size and kind, in flight, side


class Sides:
    """The server with one kind of disk, and its two clients."""

    def __init__(self, disk: str, folder: Path) -> None:
        root = {"ubd0": Path("/system/root.ext4")}
        self.here, self.across, self.far = (Machine(number, root, folder) for number in range(1, len(NAMES) + 1))
        for machine in self.here, self.across, self.far:
            machine.start()
        for machine in self.here, self.across, self.far:
            machine.wait_until_booted()
        if disk == "far":
            self.far.run(SERVE_FAR)
        device = self.here.run(DEVICES[disk].format(far=self.far.address)).splitlines()[-1]
        self.here.run(SERVE.format(device=device, config=GANESHA.replace("VOLUME", "disk")))
        for machine in self.here, self.across:
            machine.run(MOUNT.format(server=self.here.address))

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

    def measure(self, side: str, seconds: float) -> list[tuple[dict[str, object], dict[str, float]]]:
        """Return each measurement's parameters and its result. `others` are the bytes on the server's link."""
        machine = self.here if side == "here" else self.across
        output = machine.run(f"python3 /share/guest/guest.py sweep /disk/{side} {seconds}", 900)
        lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        return [(after, result) for result, after in zip(lines[1::2], lines[2::2], strict=True)]


@click.command()
@click.option("--rounds", default=3, show_default=True, help="How often each measurement is repeated.")
@click.option("--seconds", default=1.0, show_default=True, help="Of each measurement.")
@click.option("--disk", "disks", multiple=True, default=DISKS, show_default=True, type=click.Choice(DISKS))
@click.option("--delay", "delays", multiple=True, default=DELAYS, show_default=True, help="Milliseconds of netem.")
def main(rounds: int, seconds: float, disks: tuple[str, ...], delays: tuple[float, ...]) -> None:
    """Measure an NFS disk from its server's node and from another node."""
    if "NODE_NAMESPACES" not in os.environ:
        print("skipped: it needs `tests/support/nodes/enter .venv/bin/python benchmarks/nodes.py`", file=sys.stderr)
        return
    found: dict[Key, list[tuple[float, float, float]]] = defaultdict(list)
    round_trips: dict[tuple[str, float], list[float]] = defaultdict(list)
    with TemporaryDirectory() as folder:
        prepare(system(), Path(folder))
        for disk in disks:
            sides = Sides(disk, Path(folder))
            for number in range(rounds):
                for delay in delays:
                    print(f"disk {disk}, round {number + 1} of {rounds}, {delay} ms", file=sys.stderr, flush=True)
                    round_trips[disk, delay].append(sides.set_delay(delay))
                    for side in ("here", "across") if number % 2 == 0 else ("across", "here"):
                        for parameters, result in sides.measure(side, seconds):
                            name = f"{parameters['size']} {parameters['kind']}"
                            rate = result["operations"] / result["seconds"]
                            link = float(parameters["link"]) / result["operations"]  # type: ignore[arg-type]
                            key = disk, delay, name, int(str(parameters["in_flight"])), side
                            found[key].append((result["median"], rate, link))
            sides.stop()
    print_tables(found, round_trips)


def print_tables(
    found: dict[Key, list[tuple[float, float, float]]], round_trips: dict[tuple[str, float], list[float]]
) -> None:
    """Print the medians of all rounds, and the lowest and highest ratio of a round."""
    for (disk, delay), trips in round_trips.items():
        print(f"\n## disk {disk}, {delay} ms added: round trip {statistics.median(trips):.2f} ms\n")
        print(
            "| | in flight | here, ms | across, ms | bytes across for each | operations across / here | of the rounds |"
        )
        print("| --- | ---: | ---: | ---: | ---: | ---: | --- |")
        keys = [key for key in found if key[:2] == (disk, delay) and key[4] == "here"]
        for key in keys:
            here, across = found[key], found[(*key[:4], "across")]
            ratios = [there[1] / near[1] for near, there in zip(here, across, strict=True)]
            cells = [statistics.median(each[column] for each in rows) for rows, column in ((here, 0), (across, 0))]
            crossing = statistics.median(each[2] for each in across)
            local = statistics.median(each[2] for each in here)
            print(
                f"| {key[2]} | {key[3]} | {cells[0]:.2f} | {cells[1]:.2f} | {crossing:,.0f} ({local:,.0f} here) "
                f"| {statistics.median(ratios):.0%} | {min(ratios):.0%} to {max(ratios):.0%} |"
            )


if __name__ == "__main__":
    main()
