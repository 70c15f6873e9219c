"""How far a reader must walk to follow five events: the calls, the functions, the files, and the changes of room.

The walks are a review of a VM start, a watch event of a pod, a report on the example cluster, a renewal of the serving
certificate, and the release of a stuck pin. Each runs once before it is counted, so imports and caches don't count.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

import msgspec
from click.testing import CliRunner
from rich.console import Console
from rich.table import Table

# The package does not install the tests' support modules. They are imported from the repository.
sys.path.insert(0, str(Path(__file__).parent.parent))

from certs.controller import CertificateController
from certs.files import InMemory
from tests.cluster.live_caches import reflector, sync_caches
from tests.support import fake_certificate_cluster as fakes
from tests.support.builders import node, pinned_vm_pod, storage, virtual_machine, vmi
from tests.support.fake_api_server import ApiServer
from tests.support.fake_clock import FakeClock
from webhook.cli import commands
from webhook.cluster.backend import Backend
from webhook.cluster.client import ClusterClient
from webhook.cluster.credentials import Api
from webhook.cluster.live_catalog import Live
from webhook.cluster.releaser import Releaser
from webhook.placement.settings import Settings
from webhook.serving.review.reviewer import Reviewer
from webhook.serving.telemetry.metrics import Metrics

ROOT = Path(__file__).parent.parent
Walk = Callable[[], object]
LABELS = {"kubernetes.io/arch": "amd64", "kubevirt.io/schedulable": "true", "machine-type.node.kubevirt.io/q35": "true"}
START = datetime.fromisoformat("2026-01-01T00:00:00+00:00")


class Counts:
    """Counts the calls of the project's functions, without lambdas and comprehensions."""

    def __init__(self) -> None:
        self.calls = self.changes = 0
        self.functions: set[Any] = set()

    def trace(self, frame: FrameType, event: str, _argument: object) -> None:
        """Count one event of the profiler. A generator that resumes is no call."""
        code = frame.f_code
        if event != "call" or (code in self.functions and code.co_flags & 0x20 and frame.f_lasti > 10):
            return
        if (room := room_of(frame)) and not code.co_name.startswith("<"):
            self.calls += 1
            self.functions.add(code)
            caller = frame.f_back
            while caller and not room_of(caller):
                caller = caller.f_back
            self.changes += caller is not None and room_of(caller) != room

    def files(self) -> set[str]:
        """Return the files of the functions."""
        return {code.co_filename for code in self.functions}


def room_of(frame: FrameType) -> str:
    """Return the room of a frame's function, empty outside of the project."""
    path = frame.f_code.co_filename.removeprefix(f"{ROOT}/").split("/")
    return path[0] if path[0] == "certs" else path[1] if path[0] == "webhook" and len(path) > 2 else ""


def count(walk: Walk) -> Counts:
    """Run a walk twice, and count the second time."""
    walk()
    counts = Counts()
    sys.setprofile(counts.trace)
    try:
        walk()
    finally:
        sys.setprofile(None)
    return counts


@contextmanager
def synced(*items: Any) -> Iterator[tuple[Live, ClusterClient, FakeClock]]:
    """Provide the synced caches of a cluster with these objects."""
    with ApiServer() as server:
        server.put(*storage(), *items)
        clock, cluster = FakeClock(), ClusterClient(Api(server.url))
        live = Live(cluster, Settings(), clock)
        sync_caches(live, server)
        yield live, cluster, clock


@contextmanager
def stuck_pin() -> Iterator[Walk]:
    """Provide a function that releases a VM whose pod is pinned to a cordoned node."""
    with synced(node(unschedulable=True), pinned_vm_pod(), virtual_machine(), vmi()) as (live, cluster, clock):
        releaser = Releaser(cluster, live, Settings(), lambda: True, lambda *_: None, clock)
        releaser.step()

        def release() -> None:
            clock.now += 31
            for each in live.reflectors:
                each.health.last_contact = clock.now
            releaser.step()

        yield release


def walks(stack: ExitStack) -> dict[str, Walk]:
    """Return the walks by name."""
    live, _, _ = stack.enter_context(synced(node(labels=LABELS)))
    review = (ROOT / "tests/data/reviews/vm-start.json").read_bytes()
    reviewer = Reviewer(Backend(live.inject, synced=live.synced), Settings(), Metrics(Settings().action))
    pod = msgspec.Raw(msgspec.json.encode(pinned_vm_pod("another", vm="another")))
    releases = iter([stack.enter_context(stuck_pin()) for _ in range(2)])
    now = [START]
    controller = CertificateController(
        fakes.FakeCertificateCluster(),
        secret=(fakes.NAMESPACE, fakes.NAME),
        configuration=fakes.CONFIGURATION,
        names=fakes.NAMES,
        served=InMemory(),
        now=lambda: now[0],
    )
    controller.run_pass()

    def renew() -> None:
        now[0] += timedelta(days=20)
        controller.run_pass()

    report = ["report", "-A", "--snapshot", str(ROOT / "examples/cluster.yaml")]
    return {
        "review": lambda: reviewer.answer(review, monotonic(), 3.0),
        "watch event": lambda: reflector(live, "pods")._apply("MODIFIED", pod),  # noqa: SLF001 (one event, without the list before it)
        "report": lambda: CliRunner().invoke(commands, report),
        "renewal": renew,
        "release": lambda: next(releases)(),  # noqa: PLW0108 (another one each time)
    }


def main() -> None:
    """Print the counts of each walk."""
    table = Table("walk", "calls", "functions", "files", "changes of room")
    with ExitStack() as stack:
        for name, walk in walks(stack).items():
            found = count(walk)
            numbers = found.calls, len(found.functions), len(found.files()), found.changes
            table.add_row(name, *(f"{number:,}" for number in numbers))
    Console().print(table)


if __name__ == "__main__":
    main()
