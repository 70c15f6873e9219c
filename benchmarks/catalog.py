"""How long the catalog takes to know a cluster, what it weighs, and how far behind the cluster its decisions are.

The cluster is a process of its own that speaks list and watch, so that only our own memory and time are counted. Beside
each measurement stands another reader of the same pages in the same run, so that the ratio holds on any machine:
`json.loads`, whose dicts are kept, and the typed models of the Kubernetes client. By default it ends at 10,000 claims;
--full goes on to 100,000, and to 5,000 nodes with 50,000 pods.
"""

import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from statistics import median, quantiles
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
from kubernetes.client import ApiClient, Configuration
from rich.console import Console
from rich.table import Table

from webhook.cluster.client import ClusterClient
from webhook.cluster.kinds import kinds
from webhook.cluster.live import Live
from webhook.placement.settings import Settings

QUICK = [("claims", 1_000), ("claims", 10_000), ("pods", 5_000)]
FULL = [*QUICK, ("claims", 100_000), ("pods", 50_000)]
PODS_PER_NODE = 10
EVENTS, PROBES = 1_000, 50  # a second, the probes among them
STORM = 10.0  # seconds
OTHER = "0123456789abcdef" * 3

# What stands in managedFields nobody reads, but it has to be skipped: about as long as real ones.
MANAGED = [{"manager": "x", "operation": "Update", "fieldsV1": {f"f:{OTHER}{n}": {} for n in range(12)}}]


def metadata(name: str, namespace: str = "", **rest: Any) -> dict[str, Any]:
    """Return the metadata of one object, with what a real one has."""
    placed = {"namespace": namespace} if namespace else {}
    made = {"name": name, "uid": f"{name}-{OTHER}", "creationTimestamp": "2026-08-01T12:00:00Z"}
    return made | placed | rest | {"resourceVersion": "1", "managedFields": MANAGED}


def container(number: int) -> dict[str, Any]:
    """Return one container, with what a real one has."""
    environment = [{"name": f"SETTING_{n}", "value": OTHER} for n in range(10)]
    resources = {"requests": {"cpu": f"{100 * number}m", "memory": "256Mi"}, "limits": {"memory": "256Mi"}}
    probe = {"httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"}, "periodSeconds": 10}
    made = {"name": f"c{number}", "image": f"registry.example/{OTHER}", "env": environment}
    return made | {"resources": resources, "livenessProbe": probe, "readinessProbe": probe}


# In each template stand # for the number of the object and @ for that of its node.
TEMPLATES: dict[str, dict[str, Any]] = {
    "persistentvolumeclaims": {
        "metadata": metadata("disk-#", "vms", annotations={"volume.kubernetes.io/storage-provisioner": "longhorn"}),
        "spec": {"accessModes": ["ReadWriteMany"], "volumeName": f"pvc-{OTHER}-#", "storageClassName": "longhorn"},
        "status": {"phase": "Bound", "accessModes": ["ReadWriteMany"], "capacity": {"storage": "10Gi"}},
    },
    "persistentvolumes": {
        "metadata": metadata(f"pvc-{OTHER}-#"),
        "spec": {
            "csi": {"driver": "driver.longhorn.io", "volumeHandle": f"pvc-{OTHER}-#", "volumeAttributes": {"a": OTHER}},
            "claimRef": {"namespace": "vms", "name": "disk-#", "uid": OTHER},
        },
        "status": {"phase": "Bound"},
    },
    "sharemanagers": {
        "metadata": metadata(f"pvc-{OTHER}-#", "longhorn-system", labels={"longhorn.io/share-manager": "x"}),
        "spec": {"image": f"longhornio/longhorn-share-manager:{OTHER}"},
        "status": {"ownerID": "node-@", "state": "running", "endpoint": f"nfs://10.0.0.1/{OTHER}-#"},
    },
    "nodes": {
        "metadata": metadata("node-@", labels={f"label-{n}": f"value-{n}" for n in range(30)} | {"host": "node-@"}),
        "spec": {"podCIDR": "10.0.0.0/24"},
        "status": {
            "conditions": [{"type": kind, "status": "False"} for kind in ("MemoryPressure", "DiskPressure")]
            + [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110", "devices.kubevirt.io/kvm": "1k"},
            "images": [{"names": [f"registry.example/{OTHER}:{n}"], "sizeBytes": 1} for n in range(50)],
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
        "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": OTHER, "status": "True"}] * 5},
    },
}
RENDERED = {plural: json.dumps(item).encode() for plural, item in TEMPLATES.items()}
VM_POD = {
    "metadata": {"labels": {"kubevirt.io": "virt-launcher"}, "annotations": {"kubevirt-scheduler/co-schedule": "true"}},
    "spec": {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "disk-0"}}]},
}
REVIEW = {
    "uid": "1",
    "kind": {"group": "", "version": "v1", "kind": "Pod"},
    "operation": "CREATE",
    "namespace": "vms",
    "object": VM_POD,
    "dryRun": True,
}


def sizes(what: str, size: int) -> dict[str, int]:
    """Return how many objects of each kind a cluster has."""
    if what == "claims":
        return {"persistentvolumeclaims": size, "persistentvolumes": size, "sharemanagers": size, "nodes": 100}
    if what == "pods":
        return {"pods": size, "nodes": size // PODS_PER_NODE}
    return {
        "persistentvolumeclaims": size,
        "persistentvolumes": size,
        "sharemanagers": size,
        "nodes": 500,
        "pods": size,
    }


def rendered(plural: str, number: int) -> bytes:
    """Return one object as the API server sends it."""
    node = number if plural == "nodes" else number // PODS_PER_NODE
    return RENDERED[plural].replace(b"#", b"%d" % number).replace(b"@", b"%d" % node)


# The cluster


class Handler(BaseHTTPRequestHandler):
    """Answers lists and watches of one cluster."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    numbers: dict[str, int]
    storm: bool

    def do_GET(self) -> None:
        """Answer a list or a watch."""
        url = urlsplit(self.path)
        query, plural = dict(parse_qsl(url.query)), url.path.rpartition("/")[2]
        if query.get("watch"):
            self._watch(plural)
        else:
            self._list(plural, int(query.get("continue", 0)), int(query["limit"]))

    def _list(self, plural: str, start: int, limit: int) -> None:
        last = self.numbers.get(plural, 0)
        end = min(start + limit, last)
        more = b'"continue":"%d",' % end if end < last else b""
        items = b",".join(rendered(plural, number) for number in range(start, end))
        body = b'{"metadata":{%b"resourceVersion":"1"},"items":[%b]}' % (more, items)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _watch(self, plural: str) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if not self.storm:
            threading.Event().wait()
        # Four of five events are about pods, as in a real cluster; those of ShareManagers carry the time.
        rest = EVENTS - PROBES
        rate = {"pods": rest * 8 // 10, "nodes": rest // 10, "persistentvolumeclaims": rest // 10}.get(plural, 0)
        self._storm(plural, PROBES if plural == "sharemanagers" else rate)

    def _storm(self, plural: str, rate: int) -> None:
        start = time.monotonic()
        for sent in count():
            if not rate:
                threading.Event().wait()
            time.sleep(max(0.0, start + sent / rate - time.monotonic()))
            item = rendered(plural, 0 if plural == "sharemanagers" else sent % self.numbers[plural])
            if plural == "sharemanagers":
                item = item.replace(b'"node-0"', b'"t%d"' % time.monotonic_ns())
            line = b'{"type":"MODIFIED","object":%b}\n' % item
            self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def serve(what: str, size: int) -> None:
    """Be the cluster, until killed."""
    Handler.numbers, Handler.storm = sizes(what, size), what == "storm"
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that has gone
    print(server.server_port, flush=True)
    server.serve_forever()


@contextmanager
def cluster(what: str, size: int) -> Iterator[str]:
    """Run a cluster in a process of its own."""
    command = [sys.executable, __file__, "serve", what, str(size)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


# Those who read it, each in a process of its own


def resident() -> float:
    """Return how much memory this process has, in MB."""
    with open("/proc/self/statm") as file:  # noqa: PTH123 (a pseudo file, read once)
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def live_on(url: str) -> Live:
    """Return a catalog of the cluster; quiet, as its logs are not what is measured."""
    return Live(ClusterClient(lambda: Configuration(host=url)), Settings())


def synced(live: Live) -> None:
    """Follow the cluster in threads, and wait until all is known."""
    live.start(threading.Event())
    while not live.synced():
        time.sleep(0.005)


def read_as_catalog(url: str) -> Any:
    """Read the cluster as the webhook does."""
    live = live_on(url)
    synced(live)
    return live.reflectors


def read_pages(url: str, keep: Callable[[str, bytes], Any]) -> list[Any]:
    """Read the same pages one after the other, and keep what is made of each."""
    connection, kept = ClusterClient(lambda: Configuration(host=url)), []
    for kind in kinds("longhorn-system"):
        more = ""
        while True:
            body = connection.get(f"{kind.path}?limit=500&continue={more or 0}")
            assert body
            kept.append(keep(kind.plural, body))
            more = msgspec.json.decode(body)["metadata"].get("continue", "")
            if not more:
                break
    return kept


def read_as_dicts(url: str) -> Any:
    """Read the cluster with the standard library, and keep it whole."""
    return read_pages(url, lambda _, body: json.loads(body))


def read_as_models(url: str) -> Any:
    """Read the cluster with the Kubernetes client's models; it has none for a ShareManager."""
    client = ApiClient(Configuration(host=url))
    names = {"persistentvolumeclaims": "V1PersistentVolumeClaimList", "persistentvolumes": "V1PersistentVolumeList"}
    names |= {"nodes": "V1NodeList", "pods": "V1PodList"}

    def keep(plural: str, body: bytes) -> Any:
        return client.deserialize(body.decode(), names.get(plural, "object"), "application/json")

    return read_pages(url, keep)


READERS = {"catalog": read_as_catalog, "dicts": read_as_dicts, "models": read_as_models}


def measure(reader: str, url: str) -> None:
    """Read a cluster, and print seconds and MB."""
    gc.collect()
    before, started = resident(), time.perf_counter()
    kept = READERS[reader](url)
    took = time.perf_counter() - started
    gc.collect()
    known = sum(each.health.objects for each in kept) if reader == "catalog" else None
    print(json.dumps({"seconds": took, "mb": resident() - before, "known": known}))


def measure_lag(_: str, url: str) -> None:
    """Decide again and again during a storm of events, and print how old what each decision knows is."""
    live = live_on(url)
    synced(live)
    gc.collect()
    gc.freeze()
    lags, times, last = [], [], ""
    end = time.monotonic() + STORM + 1
    while time.monotonic() < end:
        started = time.monotonic_ns()
        node = live.inject(REVIEW).decision.node or ""
        now = time.monotonic_ns()
        times.append((now - started) / 1e6)
        if node != last and node.startswith("t") and end - time.monotonic() < STORM:
            lags.append((now - int(node[1:])) / 1e6)
        last = node
        time.sleep(0.001)
    errors = sum(each.health.watch_errors + each.health.list_errors for each in live.reflectors)
    print(json.dumps({"lags": lags, "decisions": times, "errors": errors}))


def run(step: str, reader: str, url: str) -> dict[str, Any]:
    """Do one measurement in a fresh process."""
    command = [sys.executable, __file__, step, reader, url]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


# What is printed


@dataclass
class Row:
    """One cluster, and what it cost its readers."""

    what: str
    size: int
    found: dict[str, dict[str, float]]

    def cells(self) -> list[str]:
        """Return the row as it is printed."""
        ours, cells = self.found["catalog"], list[str]()
        for reader in ("dicts", "models"):
            other = self.found.get(reader)
            cells += [f"{ours[unit] / other[unit]:.2f}" if other else "" for unit in ("seconds", "mb")]
        number = sum(sizes(self.what, self.size).values())
        return [f"{self.size:,} {self.what}", f"{number:,}", f"{ours['seconds']:.1f}", f"{ours['mb']:.0f}", *cells]


def rows(todo: list[tuple[str, int]]) -> Iterator[Row]:
    """Measure one cluster after the other."""
    for what, size in todo:
        with cluster(what, size) as url:
            # The dicts of 100,000 claims would take gigabytes, the models minutes.
            readers = [
                name for name, most in (("catalog", 10**9), ("dicts", 10_000), ("models", 1_000)) if size <= most
            ]
            found = {reader: run("measure", reader, url) for reader in readers}
            if found["catalog"]["known"] != sum(sizes(what, size).values()):
                sys.exit(f"not the cluster that was to be known: {found}")
            yield Row(what, size, found)


def show_sync(console: Console, todo: list[tuple[str, int]]) -> None:
    """Print what it takes to know a cluster."""
    table = Table(title="to know a cluster; each claim with its PV and ShareManager, ten pods on each node")
    for heading in ("cluster", "objects", "s", "MB", "s : dicts", "MB : dicts", "s : models", "MB : models"):
        table.add_column(heading, justify="left" if heading == "cluster" else "right")
    for row in rows(todo):
        table.add_row(*row.cells())
    console.print(table)


def show_lag(console: Console, size: int) -> None:
    """Print how far decisions are behind."""
    with cluster("storm", size) as url:
        found = run("lag", "catalog", url)
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
    """Measure and print, or be one of the processes of it."""
    match sys.argv[1:]:
        case ["serve", what, size]:
            serve(what, int(size))
        case ["measure", reader, url]:
            measure(reader, url)
        case ["lag", reader, url]:
            measure_lag(reader, url)
        case _:
            full, console = "--full" in sys.argv, Console()
            show_sync(console, FULL if full else QUICK)
            show_lag(console, 50_000 if full else 10_000)


if __name__ == "__main__":
    main()
