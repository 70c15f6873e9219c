"""Setup of the benchmarks on a cluster: the tests' control plane and Longhorn double, the webhook, and a bar chart.

This module measures nothing: run as a script, it prints nothing.
"""

from __future__ import annotations

import signal
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from peer.build import peer_command, programs
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

# The package does not install the tests' support modules. They are imported from the repository.
sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support.controlplane import build
from tests.support.controlplane.api import LOOPBACK, Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.process import Process, free_ports, running
from tests.support.longhorn import Longhorn
from tests.support.scenario import Scenario
from tests.support.webhook_process import NAMESPACE, WEBHOOK_LABEL, Webhook, create_service_account

BAR_WIDTH = 168  # pixels of a full bar
STYLE = """
    text { font: 14px -apple-system, "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif; fill: #1f2328; }
    .card { fill: #ffffff; stroke: #d0d7de; }
    .title { font-size: 17px; font-weight: 600; }
    .bold { font-weight: 600; }
    .small { font-size: 12px; fill: #59636e; }
    .end { text-anchor: end; }
    .room { fill: #eaeef2; }
    .without { fill: #8c959f; }
    .half { fill: #54aeff; }
    .both { fill: #1a7f37; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3; }
      .card { fill: #0d1117; stroke: #30363d; }
      .small { fill: #9198a1; }
      .room { fill: #21262d; }
      .without { fill: #7d8590; }
      .half { fill: #1f6feb; }
      .both { fill: #3fb950; }
    }
"""


@dataclass(frozen=True, slots=True)
class Stage:
    """A control plane with Longhorn installed but not started. `kubeconfig` has the webhook's rights."""

    plane: ControlPlane
    longhorn: Longhorn
    kubeconfig: Path

    def webhook(self, name: str, **settings: str) -> Webhook:
        """Return a webhook that is neither started nor registered."""
        return Webhook(self.plane, name, self.kubeconfig, settings)

    @contextmanager
    def scenario(self, name: str, pins: bool, steers: bool, **settings: str) -> Iterator[Scenario]:
        """Yield a scenario in which the webhook pins VMs, steers share-managers, both or neither."""
        with ExitStack() as stack:
            if not (pins or steers):
                scenario = Scenario(self.plane, self.longhorn, None)
            else:
                webhook = stack.enter_context(self.webhook(name, steering=str(steers).lower(), **settings))
                # One registration covers VMs and share-managers, so a call for a VM shows that both are in effect.
                scenario = Scenario(self.plane, self.longhorn, webhook.register())
            stack.callback(scenario.close)
            if steers and not pins:
                path = f"/api/v1/namespaces/{scenario.namespace}"
                self.plane.request("PATCH", path, {"metadata": {"labels": {WEBHOOK_LABEL: None}}})
                self.plane.wait(lambda: not scenario.decision("no-such-claim"), 20, "the end of webhook calls for VMs")
            yield scenario


@contextmanager
def start_stage() -> Iterator[Stage]:
    """Start a control plane on loopback. At the end, kill it by pid and delete its files."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by a signal"))  # so that the folder is deleted too
    build.binaries()  # takes minutes on the first run of a machine and prints its own progress
    with TemporaryDirectory(prefix="benchmark-") as folder, ControlPlane(Path(folder)) as plane:
        plane.create_namespace(NAMESPACE)
        longhorn = Longhorn(plane)
        longhorn.install()
        kubeconfig = plane.write_kubeconfig(
            plane.folder / "webhook-kubeconfig", create_service_account(plane, "webhook")
        )
        yield Stage(plane, longhorn, kubeconfig)


@contextmanager
def running_longhorn(longhorn: Longhorn) -> Iterator[None]:
    """Run Longhorn's thread for the duration of the block."""
    longhorn.start()
    try:
        yield
    finally:
        longhorn.stop()


@contextmanager
def running_peer(plane: ControlPlane, tls: Path) -> Iterator[Object]:
    """Run the webhook in Go on the cluster as it is now. Yield the clientConfig of its registration.

    `tls` is the folder of its certificate.
    """
    https, http = free_ports(2)
    snapshot = plane.folder / "peer.json"
    snapshot.write_text(plane.kubectl("get", "pvc,pv,nodes,pods,sharemanagers.longhorn.io", "-A", "-o", "json"))
    command = peer_command(programs(("peer",))["peer"], snapshot, tls, https, http)
    bundle = b64encode((tls / "ca.crt").read_bytes()).decode()
    with running(Process("peer", command, f"http://{LOOPBACK}:{http}/metrics", plane.folder)):
        yield {"url": f"https://localhost:{https}/mutate", "caBundle": bundle}


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that prints the current step: as a status line on a terminal, otherwise line by line."""
    begin = time.monotonic()
    bar = Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), transient=True)
    task = bar.add_task("starting a control plane")

    def show_step(what: str) -> None:
        bar.update(task, description=what)
        if not bar.console.is_terminal:
            print(f"{time.monotonic() - begin:4.0f} s  {what}", file=sys.stderr, flush=True)

    with bar:
        yield show_step


def in_parallel(call: Callable[..., Any], arguments: Iterable[Any], threads: int = 4) -> list[Any]:
    """Call the function with each argument in a few threads, and return the results in order."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(call, arguments))


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the chart: a share for each column. `color` is a class of STYLE."""

    name: str
    color: str
    shares: tuple[float, ...]


def bar_chart(title: str, note: str, columns: dict[str, str], rows: list[Row], full: float = 1.0) -> str:
    """Return an SVG with a bar for each row and column, of which the longest one stands for the share `full`.

    `columns` maps each column's name to its explanation.
    """
    height = 124 + 44 * len(rows)
    shares = "; ".join(f"{row.name}: {', '.join(f'{share:.0%}' for share in row.shares)}" for row in rows)
    head = 'xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="title desc"'
    lines = [
        f'<svg {head} viewBox="0 0 880 {height}" width="880" height="{height}">',
        f'  <title id="title">{title}</title>',
        f'  <desc id="desc">{note.capitalize()}. {", ".join(columns)}: {shares}.</desc>',
        f"  <style>{STYLE}  </style>",
        f'  <rect class="card" x="0.5" y="0.5" width="879" height="{height - 1}" rx="10"/>',
        f'  <text class="title" x="24" y="40">{title}</text>',
        f'  <text class="small end" x="856" y="40">{note}</text>',
    ]
    for row_number, row in enumerate(rows):
        y = 116 + 44 * row_number
        lines.append(f'  <text class="end" x="140" y="{y + 17}">{row.name}</text>')
        for x, share in zip(range(156, 880, 236), row.shares, strict=False):
            lines.append(f'  <rect class="room" x="{x}" y="{y}" width="{BAR_WIDTH}" height="24" rx="3"/>')
            lines.append(
                f'  <rect class="{row.color}" x="{x}" y="{y}" width="{BAR_WIDTH * share / full:g}" height="24" rx="3"/>'
            )
            lines.append(f'  <text class="bold" x="{x + BAR_WIDTH + 8}" y="{y + 17}">{100 * share:.0f} %</text>')
    for x, (column, explained) in zip(range(156, 880, 236), columns.items(), strict=False):
        lines.append(f'  <text class="bold" x="{x}" y="80">{column}</text>')
        lines.append(f'  <text class="small" x="{x}" y="98">{explained}</text>')
    return "\n".join([*lines, "</svg>", ""])
