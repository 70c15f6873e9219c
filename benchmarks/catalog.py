"""Benchmark of the catalog: time and memory of its initial sync, and its lag behind the cluster.

The cluster is a separate process that serves list and watch, so only the catalog's own time and memory count. The
default run has up to 10,000 claims. --full adds 100,000 claims, and 5,000 nodes with 50,000 pods.
"""

import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from statistics import median, quantiles
from typing import Any

from cluster import Handler, serve
from rich.console import Console
from rich.table import Table

from webhook.cluster.client import MAX_PAGE, ClusterClient
from webhook.cluster.credentials import Api
from webhook.cluster.live_catalog import Live
from webhook.placement.review import read_untyped
from webhook.placement.settings import Settings

QUICK = [("claims", 1_000), ("claims", 10_000), ("pods", 5_000)]
FULL = [*QUICK, ("claims", 100_000), ("pods", 50_000)]
PODS_PER_NODE = 10
EVENTS, PROBES = 1_000, 50  # per second; the events include the probes
STORM = 10.0  # seconds
FILLER = "0123456789abcdef" * 3

# The catalog ignores managedFields but has to skip them. These are about as long as real ones.
MANAGED_FIELDS = [{"manager": "x", "operation": "Update", "fieldsV1": {f"f:{FILLER}{n}": {} for n in range(12)}}]


def metadata(name: str, namespace: str = "", **rest: Any) -> dict[str, Any]:
    """Return the metadata of one object, about as long as in a real cluster."""
    placed = {"namespace": namespace} if namespace else {}
    common = {"name": name, "uid": f"{name}-{FILLER}", "creationTimestamp": "2026-08-01T12:00:00Z"}
    return common | placed | rest | {"resourceVersion": "1", "managedFields": MANAGED_FIELDS}


def container(number: int) -> dict[str, Any]:
    """Return one container, about as long as in a real cluster."""
    environment = [{"name": f"SETTING_{n}", "value": FILLER} for n in range(10)]
    resources = {"requests": {"cpu": f"{100 * number}m", "memory": "256Mi"}, "limits": {"memory": "256Mi"}}
    probe = {"httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"}, "periodSeconds": 10}
    common = {"name": f"c{number}", "image": f"registry.example/{FILLER}", "env": environment}
    return common | {"resources": resources, "livenessProbe": probe, "readinessProbe": probe}


CSI = {"driver": "driver.longhorn.io", "volumeAttributes": {"a": FILLER}}
# In each template, # stands for the number of the object and @ for the number of its node.
TEMPLATES: dict[str, dict[str, Any]] = {
    "persistentvolumeclaims": {
        "metadata": metadata("disk-#", "vms", annotations={"volume.kubernetes.io/storage-provisioner": "longhorn"}),
        "spec": {"accessModes": ["ReadWriteMany"], "volumeName": f"pvc-{FILLER}-#", "storageClassName": "longhorn"},
        "status": {"phase": "Bound", "accessModes": ["ReadWriteMany"], "capacity": {"storage": "10Gi"}},
    },
    "persistentvolumes": {
        "metadata": metadata(f"pvc-{FILLER}-#"),
        "spec": {
            "csi": CSI | {"volumeHandle": f"pvc-{FILLER}-#"},
            "claimRef": {"namespace": "vms", "name": "disk-#", "uid": f"disk-#-{FILLER}"},
        },
        "status": {"phase": "Bound"},
    },
    "sharemanagers": {
        "metadata": metadata(f"pvc-{FILLER}-#", "longhorn-system", labels={"longhorn.io/share-manager": "x"}),
        "spec": {"image": f"longhornio/longhorn-share-manager:{FILLER}"},
        "status": {"ownerID": "node-@", "state": "running", "endpoint": f"nfs://10.0.0.1/{FILLER}-#"},
    },
    "nodes": {
        "metadata": metadata("node-@", labels={f"label-{n}": f"value-{n}" for n in range(30)} | {"host": "node-@"}),
        "spec": {"podCIDR": "10.0.0.0/24"},
        "status": {
            "conditions": [{"type": kind, "status": "True"} for kind in ("Made-up", "Another", "Ready")],
            "allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110", "devices.kubevirt.io/kvm": "1k"},
            "images": [{"names": [f"registry.example/{FILLER}:{n}"], "sizeBytes": 1} for n in range(50)],
        },
    },
    "pods": {
        "metadata": metadata("pod-#", "apps", labels={"app": "app-@", "tier": "web", "pod-template-hash": "hash-@"}),
        "spec": {
            "nodeName": "node-@",
            "containers": [container(1), container(2)],
            "volumes": [{"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
        },
        "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": FILLER, "status": "True"}] * 5},
    },
}
VM_POD = {
    "metadata": {"labels": {"kubevirt.io": "virt-launcher"}, "annotations": {"kubevirt-scheduler/co-schedule": "true"}},
    "spec": {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "disk-0"}}]},
}
REVIEW = {
    "uid": "1",
    "kind": {"group": "", "version": "v1", "kind": "Pod"},
    "operation": "CREATE",
    "namespace": "vms",
    "userInfo": {"username": "system:serviceaccount:kubevirt:kubevirt-controller"},
    "object": VM_POD,
    "dryRun": True,
}


def sizes(shape: str, size: int) -> dict[str, int]:
    """Return the number of objects of each kind in a cluster."""
    claims = dict.fromkeys(("persistentvolumeclaims", "persistentvolumes", "sharemanagers"), size)
    return {
        "claims": claims | {"nodes": 100},
        "pods": {"pods": size, "nodes": size // PODS_PER_NODE},
        "storm": claims | {"nodes": 500, "pods": size},
    }[shape]


class Objects(Sequence[bytes]):
    """The objects of a kind as JSON, rendered when they are read."""

    def __init__(self, plural: str, size: int) -> None:
        self._template, self._size = json.dumps(TEMPLATES[plural]).encode(), size
        self._on_a_node = 1 if plural == "nodes" else PODS_PER_NODE

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(self._size))]
        return self._template.replace(b"#", b"%d" % at).replace(b"@", b"%d" % (at // self._on_a_node))


class StormHandler(Handler):
    """Sends many events. ShareManager events are probes that carry the time."""

    def watch(self, plural: str, seconds: float) -> None:
        """Send events. As in a real cluster, 80 % of them are about pods."""
        rest = EVENTS - PROBES
        rates = {"pods": rest * 8 // 10, "nodes": rest // 10, "persistentvolumeclaims": rest // 10}
        if not (rate := (rates | {"sharemanagers": PROBES}).get(plural)):
            return super().watch(plural, seconds)
        start, objects = time.monotonic(), self.items[plural]
        for sent in count():
            time.sleep(max(0.0, start + sent / rate - time.monotonic()))
            item = objects[0 if plural == "sharemanagers" else sent % len(objects)]
            if plural == "sharemanagers":
                item = item.replace(b'"node-0"', b'"t%d"' % time.monotonic_ns())
            self.send_event(b'{"type":"MODIFIED","object":%b}\n' % item)
        return None


@contextmanager
def cluster(shape: str, size: int) -> Iterator[str]:
    """Run a cluster in a separate process, and yield its URL."""
    command = [sys.executable, __file__, "serve", shape, str(size)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield f"http://{process.stdout.readline().strip()}"
        finally:
            process.kill()


# The catalog, in a separate process


def resident() -> float:
    """Return the resident memory of this process in MB."""
    with open("/proc/self/statm") as file:  # noqa: PTH123 (a pseudo file, read once)
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def make_live(url: str) -> Live:
    """Return a catalog of the cluster, not yet started."""
    return Live(ClusterClient(Api(url)), Settings())


def sync(live: Live) -> None:
    """Start the catalog's threads, and wait for the initial sync."""
    live.start(threading.Event())
    while not live.synced():
        time.sleep(0.005)


def measure_sync(url: str, shape: str, size: int) -> None:
    """Read a cluster. Print seconds, MB, the number of objects, and the CPU time beside `json.loads`, as JSON."""
    gc.collect()
    before, started, live = resident(), time.perf_counter(), make_live(url)
    began = time.process_time()
    sync(live)
    seconds, cpu = time.perf_counter() - started, time.process_time() - began
    gc.collect()
    known, grown = sum(each.health.objects for each in live.reflectors), resident() - before
    print(json.dumps({"seconds": seconds, "mb": grown, "known": known, "ratio": cpu / seconds_to_load(shape, size)}))


def seconds_to_load(shape: str, size: int) -> float:
    """Return the CPU time in which `json.loads` decodes the same objects, page by page."""
    total = 0.0
    for plural, number in sizes(shape, size).items():
        for start in range(0, number, MAX_PAGE):
            page = b"[%b]" % b",".join(Objects(plural, number)[start : start + MAX_PAGE])
            before = time.process_time()
            json.loads(page)
            total += time.process_time() - before
    return total


def measure_lag(url: str) -> None:
    """Decide repeatedly during a storm of events, and print the lag of each decision behind the cluster as JSON."""
    live = make_live(url)
    sync(live)
    gc.collect()
    gc.freeze()
    lags, times, last = [], [], ""
    end = time.monotonic() + STORM + 1
    while time.monotonic() < end:
        started = time.monotonic_ns()
        node = live.inject(read_untyped(REVIEW, Settings())).decision.node or ""
        now = time.monotonic_ns()
        times.append((now - started) / 1e6)
        if node != last and node.startswith("t") and end - time.monotonic() < STORM:
            lags.append((now - int(node[1:])) / 1e6)
        last = node
        time.sleep(0.001)
    errors = sum(each.health.relists.total() - 1 for each in live.reflectors)
    print(json.dumps({"lags": lags, "decisions": times, "errors": errors}))


def run(*step: str) -> dict[str, Any]:
    """Run one measurement in a new process, and return its JSON."""
    command = [sys.executable, __file__, *step]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


# Output


def show_sync(console: Console, clusters: list[tuple[str, int]]) -> None:
    """Print time and memory of the initial sync."""
    table = Table(title="initial sync; each claim has a PV and a ShareManager, each node ten pods")
    for heading in ("cluster", "objects", "s", "MB", "CPU in json.loads"):
        table.add_column(heading, justify="left" if heading == "cluster" else "right")
    for shape, size in clusters:
        with cluster(shape, size) as url:
            found, number = run("sync", url, shape, str(size)), sum(sizes(shape, size).values())
        if found["known"] != number:
            sys.exit(f"the catalog does not have all objects of the cluster: {found}")
        row = f"{found['seconds']:.1f}", f"{found['mb']:.0f}", f"{found['ratio']:.2f}"
        table.add_row(f"{size:,} {shape}", f"{number:,}", *row)
    console.print(table)


def show_lag(console: Console, size: int) -> None:
    """Print the lag of decisions behind the cluster."""
    with cluster("storm", size) as url:
        found = run("lag", url)
    if len(found["lags"]) < 0.9 * PROBES * STORM:
        sys.exit(f"only {len(found['lags'])} of {PROBES * STORM:g} probes were seen: this machine is too slow")
    table = Table(title=f"{size:,} claims and pods, {EVENTS:,} events/s for {STORM:g} s; {found['errors']} errors; ms")
    for heading in ("what", "number", "p50", "p99", "longest"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for name, values in (
        ("from an event to a decision that sees it", found["lags"]),
        ("a decision", found["decisions"]),
    ):
        p99 = quantiles(values, n=100)[98]
        table.add_row(name, f"{len(values):,}", f"{median(values):.2f}", f"{p99:.2f}", f"{max(values):.2f}")
    console.print(table)


def main() -> None:
    """Measure and print, or run as one of the subprocesses."""
    match sys.argv[1:]:
        case ["serve", shape, size]:
            objects = {plural: Objects(plural, number) for plural, number in sizes(shape, int(size)).items()}
            serve(objects, StormHandler if shape == "storm" else Handler)
        case ["sync", url, shape, size]:
            measure_sync(url, shape, int(size))
        case ["lag", url]:
            measure_lag(url)
        case _:
            full, console = "--full" in sys.argv, Console()
            show_sync(console, FULL if full else QUICK)
            show_lag(console, 50_000 if full else 10_000)


if __name__ == "__main__":
    main()
