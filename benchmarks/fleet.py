"""Benchmark of the fleet: `report` on a snapshot, and the pass that counts the fleet for the metrics.

The snapshot has 5,000 VMs on 500 nodes, in all states. The first part runs the command itself, as an operator does. The
second part counts the same fleet from the webhook's caches, and prints for how long the pass holds the lock: meanwhile,
decisions wait.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from webhook.cluster.caches.store import Store
from webhook.cluster.fleet_counts import FleetCounter
from webhook.fleet.states import State
from webhook.placement.settings import Settings
from webhook.reading.snapshot import read

Object = dict[str, Any]

OPT_IN = "kubevirt-scheduler/co-schedule"
# Seconds for the report on 5,000 VMs. CPU time: by the clock, the figure depends on what else the machine does.
LIMIT = 10.0


def metadata(name: str, namespace: str = "", **rest: Any) -> Object:
    """Return the metadata of one object."""
    return {"name": name, "uid": f"uid-of-{name}"} | ({"namespace": namespace} if namespace else {}) | rest


def node(number: int) -> Object:
    """Return a node that runs KubeVirt."""
    labels = {"kubernetes.io/hostname": f"node-{number}", "kubevirt.io/schedulable": "true"}
    status = {
        "allocatable": {"cpu": "64", "memory": "256Gi", "pods": "250"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata(f"node-{number}", labels=labels), "status": status}


def pod(name: str, namespace: str, node_name: str, **rest: Any) -> Object:
    """Return a running pod."""
    resources = {"requests": {"cpu": "200m", "memory": "2Gi"}}
    spec = {"containers": [{"name": "main", "resources": resources}], "nodeName": node_name} | rest.pop("spec", {})
    meta = metadata(name, namespace, creationTimestamp="2026-08-01T12:00:00Z", **rest)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Running"}}


def vm_objects(number: int, nodes: int) -> Iterator[Object]:
    """Yield a VM, its VMI, its pod, its claim, the PV, and the share-manager with its pod."""
    name, namespace = f"vm-{number}", f"team-{number % 50}"
    here, storage = f"node-{number % nodes}", f"node-{(number if number % 3 else number + 7) % nodes}"
    annotations = {OPT_IN: "true"} if number % 4 else {}
    volume = {"name": "disk", "persistentVolumeClaim": {"claimName": f"disk-{number}"}}
    template = {"metadata": {"annotations": annotations}, "spec": {"volumes": [volume], "domain": {}}}
    yield {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": metadata(name, namespace, labels={"app": f"app-{number % 10}"}),
        "spec": {"runStrategy": "Always", "template": template},
    }
    if number % 10 == 9:  # stopped
        return
    yield {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": metadata(name, namespace),
        "spec": template["spec"],
        "status": {"nodeName": here},
    }
    yield pod(
        f"virt-launcher-{name}-abcde",
        namespace,
        here,
        labels={"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": f"uid-of-{name}"},
        annotations=annotations | {"kubevirt.io/domain": name},
        spec={"volumes": [volume], "nodeSelector": {"kubevirt.io/schedulable": "true"}},
    )
    modes = ["ReadWriteOnce" if number % 10 == 8 else "ReadWriteMany"]
    yield {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(f"disk-{number}", namespace),
        "spec": {"accessModes": modes, "volumeName": f"pvc-{number}"},
    }
    yield {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": metadata(f"pvc-{number}"),
        "spec": {
            "csi": {"driver": "driver.longhorn.io", "volumeHandle": f"pvc-{number}"},
            "claimRef": {"namespace": namespace, "name": f"disk-{number}"},
        },
    }
    if number % 10 == 7:  # unserved
        return
    labels = {"longhorn.io/component": "share-manager", "longhorn.io/share-manager": f"pvc-{number}"}
    yield pod(f"share-manager-pvc-{number}", "longhorn-system", storage, labels=labels)
    yield {
        "apiVersion": "longhorn.io/v1beta2",
        "kind": "ShareManager",
        "metadata": metadata(f"pvc-{number}", "longhorn-system"),
        "status": {"state": "running", "ownerID": storage},
    }


def snapshot(vms: int, nodes: int) -> Object:
    """Return a list of all objects of the cluster."""
    items = [node(number) for number in range(nodes)]
    items += [item for number in range(vms) for item in vm_objects(number, nodes)]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def time_report(file: Path, output: str) -> tuple[float, float]:
    """Run the command on the snapshot, and return its seconds by the clock and of CPU time."""
    command = [Path(sys.executable).with_name("kubevirt-scheduler"), "report", "--snapshot", file, "-o", output]
    begin, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
    seconds, total = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, total.ru_utime + total.ru_stime - used.ru_utime - used.ru_stime


def main() -> None:
    """Run both parts, and fail if the report takes too long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vms", type=int, default=5_000)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--write", type=Path, metavar="FILE", help="Only write the snapshot, as JSON.")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        file = options.write or Path(folder) / "cluster.json"
        file.write_text(json.dumps(snapshot(options.vms, options.nodes)))
        if options.write:
            return
        print(f"{options.vms} VMs, {options.nodes} nodes, {file.stat().st_size / 1e6:.0f} MB", flush=True)
        slowest = 0.0
        for output in ("table", "json"):
            seconds, cpu = time_report(file, output)
            slowest = max(slowest, cpu)
            print(f"report -o {output}: {seconds:.1f} s, {cpu:.1f} s of CPU time", flush=True)
        time_pass(file)
    if slowest > LIMIT:
        raise SystemExit(f"too slow: the limit is {LIMIT:.0f} s")


def time_pass(file: Path) -> None:
    """Count the fleet from the facts alone, as the webhook does for its metrics."""
    caches = StillCaches(read([file]).inventory.store)
    begin = time.perf_counter()
    counts = FleetCounter(caches, Settings(), time.monotonic).counts()
    seconds = time.perf_counter() - begin
    longest = max(caches.held)
    print(f"pass: {1000 * seconds:.0f} ms, {len(caches.held)} times under the lock, at most {1000 * longest:.1f} ms")
    print(", ".join(f"{state} {sum(counts.vms[state, flag] for flag in (True, False))}" for state in State))


class StillCaches:
    """Immutable caches that measure for how many seconds a query holds the lock."""

    def __init__(self, store: Store) -> None:
        self.store, self.held = store, list[float]()

    def synced(self) -> bool:
        """Return that the caches are synced."""
        return True

    def query(self, question: Callable[[Store], Any]) -> Any:
        """Query the store, and measure the time."""
        begin = time.perf_counter()
        answer = question(self.store)
        self.held.append(time.perf_counter() - begin)
        return answer


if __name__ == "__main__":
    main()
