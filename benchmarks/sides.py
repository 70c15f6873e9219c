"""The sides that the benchmarks of the server compare: ours and the Go peer, each on one core, and their cluster.

It measures nothing itself: run alone, it prints nothing.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from peer.build import programs

# What the tests of the repository stand on is not installed with the package: it lies flat beside them.
sys.path.insert(0, str(Path(__file__).parent.parent))

from certs.authority import issue_ca, issue_leaf
from tests.support.builders import Object, apart, claim, node, pod, pod_term, share_manager, share_manager_pod, volume
from tests.support.controlplane.process import free_ports

REVIEW = Path(__file__).parent.parent / "tests/data/reviews/vm-start.json"
CLAIMS, NODES = 10_000, 500
ALONE = 1_000  # pods of others at most, each of which wants no second of its kind on its node: the guard asks for those
PATIENCE = 30.0  # seconds, for one start
OURS, PEER, STOCK = "ours", "peer", "stock"

LABELS = {"kubernetes.io/arch": "amd64", "kubevirt.io/schedulable": "true", "machine-type.node.kubevirt.io/q35": "true"}
DEVICES = {f"devices.kubevirt.io/{name}": "1k" for name in ("kvm", "tun", "vhost-net")}
ROOM = {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "1Ti"} | DEVICES


def objects(claims: int, nodes: int) -> Iterator[Object]:
    """Yield the cluster: each claim with its PV, its ShareManager and its share-manager pod; beside them other pods."""
    for number in range(nodes):
        yield node(f"node-{number}", labels=LABELS, allocatable=ROOM)
    for number in range(claims):
        effective_node, name = f"node-{number % nodes}", f"vol-disk{number}"
        yield claim(f"disk{number}")
        yield volume(f"disk{number}")
        yield share_manager(name, owner=effective_node)
        yield share_manager_pod(name, node=effective_node)
    for number in range(min(ALONE, claims)):
        labels = {"app": f"app-{number % 50}"}
        effective_node = f"node-{number % nodes}"
        yield pod(f"web-{number}", "shop", labels=labels, node=effective_node, affinity=apart(pod_term(labels)))


def write_snapshot(file: Path, claims: int = CLAIMS, nodes: int = NODES) -> Path:
    """Write the cluster as kubectl does, in JSON. Not one without any object: no snapshot is empty."""
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects(claims, nodes))}))
    return file


@dataclass(frozen=True, slots=True)
class Cores:
    """Where the server runs, and where all the rest does: the same where there is only one."""

    server: int
    rest: int

    @classmethod
    def found(cls) -> Cores:
        """Take two of those that we may use."""
        usable = sorted(os.sched_getaffinity(0))
        return cls(usable[0], usable[-1])

    @property
    def apart(self) -> bool:
        """Say whether the load can't slow down the server."""
        return self.server != self.rest


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Let what is started here run on one core: a child inherits it from the thread that starts it."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True, slots=True)
class Side:
    """A server that is ready: where it listens, which processes it is, and how many seconds its start took."""

    name: str
    url: str
    ca: Path
    pids: tuple[int, ...]
    started: float
    log: Path

    def memory(self) -> float:
        """Return what its processes have in memory, in MB; a page that several share counts once."""
        return sum(map(_memory, self.pids)) / 1000

    def own_memory(self) -> float:
        """Return what they have written themselves, in MB: who else maps the same libraries does not change it."""
        return sum(_memory(pid, "Pss_Anon:", "RssAnon:") for pid in self.pids) / 1000

    def files(self) -> int:
        """Return how many file descriptors its processes have open."""
        return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in self.pids)


def _memory(pid: int, name: str = "Pss:", otherwise: str = "VmRSS:") -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # not readable everywhere
        lines, name = Path(f"/proc/{pid}/status").read_text().splitlines(), otherwise
    return next(int(line.split()[1]) * 1.024 for line in lines if line.startswith(name))


def _family(pid: int) -> tuple[int, ...]:
    """Return a process and all below it: gunicorn has a master and its worker."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").iterdir():
            with suppress(FileNotFoundError):  # a thread that has just ended
                found += map(int, (task / "children").read_text().split())
    return tuple(found)


@contextmanager
def process(command: list[str], log: Path, core: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a program on a core, and give it with the first line that it prints; it ends with the block."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("CO_SCHEDULE_")}
    # Appended to, so that a long run may cut the log off while it is written.
    with ExitStack() as stack:
        file = stack.enter_context(log.open("a"))
        with on_core(core):
            child = stack.enter_context(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True, env=ours)
            )
        stack.callback(_end, child)
        assert child.stdout
        line = child.stdout.readline() if select.select([child.stdout], [], [], PATIENCE)[0] else ""
        if not line:
            sys.exit(f"{command[0]} did not start:\n{log.read_text()[-2000:]}")
        yield child, line.strip()


def _end(child: subprocess.Popen[str]) -> None:
    child.terminate()
    try:
        child.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        child.kill()


@contextmanager
def side(name: str, command: list[str], folder: Path, core: int) -> Iterator[Side]:
    """Start a server, and give it when it says that it is ready."""
    begin, log = time.monotonic(), folder / f"{name}.log"
    with process(command, log, core) as (child, line):
        took, ready = time.monotonic() - begin, json.loads(line)
        url = f"https://{ready['https']}/mutate?timeout=10s"
        yield Side(name, url, Path(ready["ca"]), _family(child.pid), took, log)


@dataclass(frozen=True, slots=True)
class Arena:
    """A folder, the built programs and the cores; `live`: ours follows a cluster and does not read the file itself."""

    folder: Path
    tools: dict[str, Path]
    cores: Cores
    live: bool

    @contextmanager
    def serving(self, name: str, snapshot: Path) -> Iterator[Side]:
        """Start a side on a cluster."""
        commands: dict[str, Callable[[Path], list[str]]] = {PEER: self._peer, STOCK: self._stock, OURS: self._ours}
        with ExitStack() as stack:
            if name == OURS and self.live:
                cluster = [str(self.tools["cluster"]), "-snapshot", str(snapshot)]
                _, url = stack.enter_context(process(cluster, self.folder / "cluster.log", self.cores.rest))
                command = [*self._ours(None), "--kubeconfig", str(self._kubeconfig(url))]
            else:
                command = commands[name](snapshot)
            yield stack.enter_context(side(name, command, self.folder, self.cores.server))

    def _ours(self, snapshot: Path | None) -> list[str]:
        program = str(Path(sys.executable).with_name("kubevirt-scheduler"))
        known = ["--snapshot", str(snapshot)] if snapshot else []
        return [program, "serve", "--https-port=0", "--http-port=0", f"--tls-dir={self.folder}", *known]

    def _peer(self, snapshot: Path) -> list[str]:
        https, http = free_ports(2)
        listen = [f"-https-port={https}", f"-http-port={http}", f"-tls-dir={self.folder}"]
        return [str(self.tools["peer"]), f"-snapshot={snapshot}", *listen]

    def _stock(self, snapshot: Path) -> list[str]:
        return [sys.executable, str(Path(__file__).parent / "peer/stock.py"), str(snapshot), str(self.folder)]

    def _kubeconfig(self, url: str) -> Path:
        content = {
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": {"server": url}}],
            "users": [{"name": "it", "user": {}}],
        }
        file = self.folder / f"kubeconfig-{url.rpartition(':')[2]}"
        file.write_text(yaml.safe_dump(content))
        return file


@contextmanager
def arena(*, live: bool) -> Iterator[Arena]:
    """Build the programs, make a certificate, and stay away from the server's core ourselves."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # so that processes and folder go, too
    tools, cores = programs(), Cores.found()
    with TemporaryDirectory(prefix="benchmark-") as name, on_core(cores.rest):
        folder, now = Path(name), datetime.now(UTC)
        ca = issue_ca(now)
        leaf = issue_leaf(ca, ["localhost", "127.0.0.1"], now)
        for file, content in ("tls.crt", leaf.certificate), ("tls.key", leaf.key), ("ca.crt", ca.certificate):
            (folder / file).write_bytes(content)
        yield Arena(folder, tools, cores, live)
