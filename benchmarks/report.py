"""Benchmark of `report` on a fleet of 5,000 VMs on 500 nodes, of which 40 % run apart from their storage.

Each row is the CPU time of one process that reads the fleet from a snapshot, and its ratio to a process that only
loads the same file with `json.load`, before and after it: the speed of a machine may change within seconds. The rounds
alternate. As after an installation, Python's bytecode is cached.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import fmean, median
from tempfile import TemporaryDirectory

# The package does not install the tests' support modules. They are imported from the repository.
sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support.builders import Object, claim, node, share_manager, share_manager_pod, volume
from tests.support.fleet import vm, vm_pod
from tests.support.migrations import migratable

VMS, NODES, ROUNDS = 5_000, 500, 3
LOAD = "import json, sys; json.load(open(sys.argv[1]))"
REPORT = "from webhook.cli import main; main()"
OUTPUTS = "wide", "name", "json", "yaml", "html"


def objects() -> Iterator[Object]:
    """Yield the nodes, and of each VM its claim, PV, ShareManager and pods, the VM and the VMI."""
    for number in range(NODES):
        name, allocatable = f"node-{number:03}", {"cpu": "64", "memory": "256Gi", "pods": "250"}
        labels = {"kubevirt.io/schedulable": "true", "kubernetes.io/hostname": name}
        yield node(name, labels=labels, allocatable=allocatable)
    for number in range(VMS):
        name, disk, storage = f"vm-{number}", f"disk{number}", f"node-{number % NODES:03}"
        where = f"node-{(number + 7) % NODES:03}" if number % 5 < 2 else storage
        yield from (claim(disk), volume(disk), share_manager(f"vol-{disk}", owner=storage))
        yield share_manager_pod(f"vol-{disk}", node=storage)
        for each in (vm(name), vm_pod(name, where, labels={}), migratable(name, where)):
            yield json.loads(json.dumps(each).replace('"disk1"', f'"{disk}"'))


def seconds(bytecode: str, *command: str) -> float:
    """Return the CPU seconds of a process. `bytecode` is the folder of the cache."""
    environment = os.environ | {"PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
    before = getrusage(RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", *command], check=True, stdout=subprocess.DEVNULL, env=environment)
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print a table."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "fleet.json")
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*objects()]}))
        print(f"{VMS} VMs on {NODES} nodes, {file.stat().st_size / 1e6:.1f} MB")
        load = partial(seconds, folder, LOAD, str(file))
        command = "report", "-A", "--snapshot", str(file), "-o"
        rows: dict[str, list[tuple[float, float]]] = {output: [] for output in OUTPUTS}
        before = load()
        for _, output in product(range(ROUNDS), OUTPUTS):
            cost, after = seconds(folder, REPORT, *command, output), load()
            rows[output].append((cost, cost / fmean((before, after))))
            before = after
    for output, each in rows.items():
        cost, ratio = map(median, zip(*each, strict=True))
        print(f"{output:10} {cost:5.2f} s of CPU, {ratio:5.1f} times json.load")


if __name__ == "__main__":
    main()
