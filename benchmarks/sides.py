"""The sides that the server benchmarks compare (this webhook, the Go peer), their core and cluster.

This module measures nothing: run as a script, it prints nothing.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from peer.build import PROGRAMS, peer_command, programs

# The package does not install the tests' support modules. They are imported from the repository.
sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support.authority import issue_ca, issue_leaf
from tests.support.builders import (
    Object,
    claim,
    node,
    pod,
    pod_anti_affinity,
    pod_term,
    share_manager,
    share_manager_pod,
    vmi,
    volume,
)
from tests.support.controlplane.process import free_ports

REVIEW = Path(__file__).parent.parent / "tests/data/reviews/vm-start.json"
CLAIMS, NODES = 10_000, 500
ANTI_AFFINITY_PODS = 1_000  # at most; pods with a required anti-affinity, which the node guard has to evaluate
ANTI_AFFINITY_NAMESPACE = "shop"
TIMEOUT = 30.0  # seconds for one start
OURS, PEER = "ours", "peer"

LABELS = {"kubernetes.io/arch": "amd64", "kubevirt.io/schedulable": "true", "machine-type.node.kubevirt.io/q35": "true"}
DEVICES = {f"devices.kubevirt.io/{name}": "1k" for name in ("kvm", "tun", "vhost-net")}
ALLOCATABLE = {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "1Ti"} | DEVICES


def objects(claims: int, nodes: int) -> Iterator[Object]:
    """Yield the cluster: the recorded VM, nodes, claims each with a PV, ShareManager and its pod, and other pods."""
    labels = json.loads(REVIEW.read_bytes())["request"]["object"]["metadata"]["labels"]
    yield vmi(uid=labels["kubevirt.io/created-by"])
    for number in range(nodes):
        yield node(f"node-{number}", labels=LABELS, allocatable=ALLOCATABLE)
    for number in range(claims):
        node_name, name = f"node-{number % nodes}", f"vol-disk{number}"
        yield claim(f"disk{number}")
        yield volume(f"disk{number}")
        yield share_manager(name, owner=node_name)
        yield share_manager_pod(name, node=node_name)
    for number in range(min(ANTI_AFFINITY_PODS, claims)):
        labels = {"app": f"app-{number % 50}"}
        node_name = f"node-{number % nodes}"
        spec = {"node": node_name, "affinity": pod_anti_affinity(pod_term(labels))}
        yield pod(f"web-{number}", ANTI_AFFINITY_NAMESPACE, labels=labels, **spec)


def write_snapshot(file: Path, claims: int = CLAIMS, nodes: int = NODES, more: Iterable[Object] = ()) -> Path:
    """Write the cluster as a List in JSON, like kubectl. At least one object is needed: a snapshot can't be empty."""
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*objects(claims, nodes), *more]}))
    return file


@dataclass(frozen=True, slots=True)
class Cores:
    """The core of the servers and the core of everything else. Both are the same if only one is usable."""

    server: int
    rest: int

    @classmethod
    def choose(cls) -> Cores:
        """Return the first and the last core that this process may use."""
        usable = sorted(os.sched_getaffinity(0))
        return cls(usable[0], usable[-1])

    @property
    def separate(self) -> bool:
        """Return whether the server has its core to itself, so that the load can't slow it down."""
        return self.server != self.rest


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Run the block and the processes it starts on one core. A child inherits the affinity of the starting thread."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True, slots=True)
class Side:
    """One of the compared servers, running: URL, CA file, processes, seconds that the start took, and log.

    `plain` is the address of its port for probes and metrics.
    """

    name: str
    url: str
    plain: str
    ca: Path
    pids: tuple[int, ...]
    start_seconds: float
    log: Path

    def memory(self) -> float:
        """Return the memory of its processes in MB. A page that several of them share counts once."""
        return sum(map(_memory, self.pids)) / 1000

    def own_memory(self) -> float:
        """Return the anonymous memory in MB. Other processes that map the same libraries don't affect it."""
        return sum(_memory(pid, "Pss_Anon:", "RssAnon:") for pid in self.pids) / 1000


def _memory(pid: int, name: str = "Pss:", fallback: str = "VmRSS:") -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # smaps_rollup is not readable everywhere
        lines, name = Path(f"/proc/{pid}/status").read_text().splitlines(), fallback
    return next(int(line.split()[1]) * 1.024 for line in lines if line.startswith(name))


def _process_tree(pid: int) -> tuple[int, ...]:
    """Return the pid of a process and of its descendants: gunicorn has a master and a worker."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").iterdir():
            with suppress(FileNotFoundError):  # the thread has just exited
                found += map(int, (task / "children").read_text().split())
    return tuple(found)


@contextmanager
def running_program(command: list[str], log: Path, core: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a program on a core during the block. Yields it with the first line that it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CO_SCHEDULE_")}
    # Append mode, so that a long run can truncate the log while the program writes.
    with ExitStack() as stack:
        file = stack.enter_context(log.open("a"))
        with on_core(core):
            child = stack.enter_context(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True, env=environment)
            )
        stack.callback(_terminate, child)
        assert child.stdout
        line = child.stdout.readline() if select.select([child.stdout], [], [], TIMEOUT)[0] else ""
        if not line:
            sys.exit(f"{command[0]} did not start:\n{log.read_text()[-2000:]}")
        yield child, line.strip()


def _terminate(child: subprocess.Popen[str]) -> None:
    child.terminate()
    try:
        child.wait(TIMEOUT)
    except subprocess.TimeoutExpired:
        child.kill()


@contextmanager
def side(name: str, command: list[str], folder: Path, core: int) -> Iterator[Side]:
    """Run a server during the block, which begins once the server has printed its ready line."""
    begin, log = time.monotonic(), folder / f"{name}.log"
    with running_program(command, log, core) as (child, line):
        start_seconds, ready = time.monotonic() - begin, json.loads(line)
        url = f"https://{ready['https']}/mutate?timeout=10s"
        yield Side(name, url, ready.get("http", ""), folder / "ca.crt", _process_tree(child.pid), start_seconds, log)


@dataclass(frozen=True, slots=True)
class Setup:
    """The folder, programs and cores of a run."""

    folder: Path
    tools: dict[str, Path]
    cores: Cores

    @contextmanager
    def serving(self, name: str, snapshot: Path) -> Iterator[Side]:
        """Run a side on the cluster of the snapshot during the block. Ours follows it, the peer reads the file."""
        with ExitStack() as stack:
            if name == OURS:
                cluster = [sys.executable, str(Path(__file__).with_name("cluster.py")), str(snapshot), str(self.folder)]
                _, address = stack.enter_context(running_program(cluster, self.folder / "cluster.log", self.cores.rest))
                command = self._ours(*address.split(":"))
            else:
                command = peer_command(self.tools["peer"], snapshot, self.folder, *free_ports(2))
            yield stack.enter_context(side(name, command, self.folder, self.cores.server))

    def _ours(self, host: str, port: str) -> list[str]:
        """Return the command that starts ours as in a pod, but with another folder for the service account."""
        (self.folder / "token").write_text("it")
        environment = ["KUBECONFIG=/none", f"KUBERNETES_SERVICE_HOST={host}", f"KUBERNETES_SERVICE_PORT={port}"]
        start = (
            "from functools import partial; from pathlib import Path\n"
            "from webhook.cli import main; from webhook.cluster import credentials\n"
            f"credentials.pod_api = partial(credentials.pod_api, folder=Path({str(self.folder)!r}))\n"
            "main()"
        )
        serve = ["serve", "--https-port=0", "--http-port=0", f"--tls-dir={self.folder}"]
        return ["env", *environment, sys.executable, "-c", start, *serve]


@contextmanager
def start_setup(needed: Sequence[str] = PROGRAMS) -> Iterator[Setup]:
    """Build the needed programs, issue a certificate, and move this process off the server's core."""
    # A normal exit, so that processes and folder are removed too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by a signal"))
    tools, cores = programs(needed), Cores.choose()
    with TemporaryDirectory(prefix="benchmark-") as name, on_core(cores.rest):
        folder, now = Path(name), datetime.now(UTC)
        ca = issue_ca(now)
        leaf = issue_leaf(ca, ["localhost", "127.0.0.1"], now)
        for file, content in ("tls.crt", leaf.certificate), ("tls.key", leaf.key), ("ca.crt", ca.certificate):
            (folder / file).write_bytes(content)
        yield Setup(folder, tools, cores)
