"""Trials of loopback NFS without memory: whether a node that is client and server hangs, and what ends it.

A machine of 512 MB in user-mode Linux serves an NFS disk with Ganesha and Longhorn's options, and mounts it itself. A
guest writes to it, through the page cache or with O_DIRECT. Then a process allocates memory until the OOM killer stops
it, again and again. In half of the trials, Ganesha has no CAP_SYS_RESOURCE, and so no PR_SET_IO_FLUSHER.
The server's disk is a file behind a loop device, or behind a server of block devices in user space on the same node, as
Longhorn's engine is.

A trial hangs if the guest completes no write for a minute. Run it as root:
`tests/support/nodes/enter .venv/bin/python benchmarks/loopback.py`
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click

# The package does not install the tests' support modules. They are imported from the repository.
sys.path.insert(0, str(Path(__file__).parent.parent))

from nodes import EXPORT, MOUNT, SERVE

from tests.support.nodes.machine import STATE, Machine, prepare
from tests.support.nodes.share_managers import GANESHA
from tests.support.nodes.system import system

MEMORY = "512M"
# Seconds without a write: what the guest's log may show at any time, a hang, and a hang that is not waited for.
PAUSE, HANG, PATIENCE = 5.0, 60.0, 300.0
LOG = STATE / "share/node-1/guest.log"
DEVICES = {
    "loop": "losetup --find --show /var/disk",
    "user": """
mkdir -p /etc/nbd-server
printf '[generic]\\nuser = root\\ngroup = root\\n[disk]\\nexportname = /var/disk\\n' >/etc/nbd-server/config
nbd-server -C /etc/nbd-server/config >/dev/null 2>&1 </dev/null
nbd-client -N disk 127.0.0.1 /dev/nbd0 >/dev/null
echo /dev/nbd0
""",
}
# Its threads inherit the flags PF_MEMALLOC_NOIO and PF_LOCAL_THROTTLE, which PR_SET_IO_FLUSHER sets.
FLAGS = """
import pathlib, sys
files = pathlib.Path("/proc", sys.argv[1]).glob("task/*/stat")
found = [int(each.read_text().rpartition(")")[2].split()[6]) for each in files]
print(sum(each & 0x180000 == 0x180000 for each in found), len(found))
"""
# Writes 1 MiB at a time, over 200 MiB again and again, and reports each write that took long, and each second.
GUEST = """
import mmap, os, sys, time
buffer = mmap.mmap(-1, 1 << 20)
buffer.write(os.urandom(1 << 20))
file = os.open("/disks/nfs/guest", os.O_RDWR | os.O_CREAT | (os.O_DIRECT | os.O_SYNC if sys.argv[1] == "direct" else 0))
log = os.open("/share/node-1/guest.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
count, reported = 0, time.monotonic()
while True:
    os.pwrite(file, buffer, count % 200 << 20)
    count += 1
    if time.monotonic() > reported + 1:
        reported = time.monotonic()
        os.write(log, b"%d\\n" % count)
"""
# Like each process of a pod without requests, and like Longhorn's share-manager, it is the OOM killer's first choice.
EAT = """
import mmap, time
open("/proc/self/oom_score_adj", "w").write("1000")
held = []
while True:
    held.append(mmap.mmap(-1, 1 << 20))
    held[-1].write(b"x" * (1 << 20))
    time.sleep(0.005)
"""
# Started as a whole before the memory is short: the machine may then lose its network, and with it the shell.
TRIAL = """
python3 -c "$1" {writes} &
echo -500 >/proc/$!/oom_score_adj  # a VM with requests
sleep 10
for number in 1 2 3 4 5; do
    python3 -c "$2"
    sleep 3
done
wait
"""
# Longhorn replaces a server that the OOM killer has chosen.
REPLACE = "while sleep 3; do pgrep -x ganesha.nfsd || {serve}; done"


@dataclass(frozen=True, slots=True)
class Trial:
    """What one trial showed."""

    hung: bool
    longest: float  # seconds without a write
    kills: int
    outcome: str


def run_trial(folder: Path, device: str, writes: str, flusher: bool, seconds: float) -> Trial:
    """Run one trial on a new machine."""
    for each in folder.glob("disks/*"):
        each.unlink()
    for each in folder.glob("node-1/*"):
        each.unlink()
    machine = Machine(1, {"ubd0": Path("/system/root.ext4")}, folder, memory=MEMORY)
    machine.start()
    machine.wait_until_booted()
    try:
        start(machine, device, flusher)
        arguments = f"trial {shlex.quote(GUEST)} {shlex.quote(EAT)} >/share/node-1/trial.log 2>&1 </dev/null"
        machine.run(f"setsid /bin/bash -c {shlex.quote(TRIAL.format(writes=writes))} {arguments} &")
        return watch(folder, seconds)
    finally:
        machine.cut_power()


def start(machine: Machine, device: str, flusher: bool) -> None:
    """Start the server, and mount its share on the same machine."""
    path = machine.run(f"truncate -s 400M /var/disk\n{DEVICES[device]}").splitlines()[-1]
    config = GANESHA.replace("VOLUME", "nfs")
    if not flusher:
        config = config.replace("NFS_Core_Param {", "NFS_Core_Param { allow_set_io_flusher_fail = true; ")
    serve = EXPORT.format(name="nfs", device=path) + SERVE.format(config=config)
    if not flusher:
        serve = serve.replace("ganesha.nfsd", "setpriv --bounding-set=-sys_resource ganesha.nfsd")
    machine.run(serve)
    machine.run(MOUNT.format(name="nfs", server=machine.address))
    command = serve.strip().splitlines()[-1]
    machine.run(f"setsid /bin/bash -c {shlex.quote(REPLACE.format(serve=command))} >/dev/null 2>&1 </dev/null &")
    server = machine.run("pgrep -x ganesha.nfsd")
    machine.run(f"echo 1000 >/proc/{server}/oom_score_adj")  # Longhorn's share-manager requests nothing
    having, threads = machine.run_python(FLAGS, server).split()
    assert (having == threads) is flusher, f"{having} of {threads} threads have the flags of PR_SET_IO_FLUSHER"


def watch(folder: Path, seconds: float) -> Trial:
    """Watch the guest's log from outside for so many seconds, and as long as the guest hangs."""
    began = last = time.monotonic()
    longest, size, hung = 0.0, 0, False
    while hung or time.monotonic() < began + seconds or time.monotonic() > last + PAUSE:
        now, found = time.monotonic(), LOG.stat().st_size if LOG.exists() else 0
        if found != size:
            size, longest, last = found, max(longest, now - last), now
            if hung:
                break
        hung = hung or now - last > HANG
        if now - last > PATIENCE:
            break
        time.sleep(0.2)
    longest = max(longest, time.monotonic() - last)
    console = (folder / "node-1/console.log").read_text(errors="replace")
    killed = [line for line in console.splitlines() if "Killed process" in line or "Out of memory" in line]
    victims = sorted({line.partition("(")[2].partition(")")[0] for line in killed if "(" in line})
    if not hung:
        return Trial(False, longest, len(killed), f"killed: {', '.join(victims) or 'nothing'}")
    resumed = "resumed by itself" if time.monotonic() - last < 1 else "did not resume within 5 minutes"
    return Trial(True, longest, len(killed), f"{resumed}; killed: {', '.join(victims) or 'nothing'}")


@click.command()
@click.option("--trials", default=5, show_default=True, help="Of each combination.")
@click.option("--seconds", default=90.0, show_default=True, help="Of each trial.")
@click.option("--device", "devices", multiple=True, default=tuple(DEVICES), type=click.Choice(tuple(DEVICES)))
def main(trials: int, seconds: float, devices: tuple[str, ...]) -> None:
    """Take the memory of a node that is client and server of one NFS disk."""
    if "NODE_NAMESPACES" not in os.environ:
        print("skipped: it needs `tests/support/nodes/enter .venv/bin/python benchmarks/loopback.py`", file=sys.stderr)
        return
    with TemporaryDirectory() as name:
        folder = Path(name)
        prepare(system(), folder)
        for number in range(trials):
            for device, writes, flusher in itertools.product(devices, ("buffered", "direct"), (True, False)):
                trial = run_trial(folder, device, writes, flusher, seconds)
                fields = {"trial": number, "device": device, "writes": writes, "flusher": flusher}
                fields |= {"hung": trial.hung, "longest": round(trial.longest, 1), "kills": trial.kills}
                print(json.dumps(fields | {"outcome": trial.outcome}), flush=True)


if __name__ == "__main__":
    main()
