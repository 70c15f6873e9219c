"""What the benchmarks on a cluster share: the tests' real control plane, Longhorn's part, the real webhook, a picture.

It measures nothing itself: run alone, it prints nothing.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

# What the tests of the repository stand on is not installed with the package: it lies flat beside them.
sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support.controlplane import build
from tests.support.controlplane.api import ApiError, Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.longhorn import Longhorn
from tests.support.scenario import DECISION, HOSTNAME, KUBEVIRTS, ROOM, World
from tests.support.webhook_process import NAMESPACE, SERVED_BY, Webhook, grant

__all__ = [
    "DECISION",
    "HOSTNAME",
    "KUBEVIRTS",
    "ROOM",
    "ApiError",
    "Object",
    "Row",
    "Stage",
    "Webhook",
    "World",
    "acting",
    "at_once",
    "bars",
    "progress",
    "staged",
]


BAR = 168  # pixels, for all of 100 %
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
    """A control plane with Longhorn installed, not started; the kubeconfig is the webhook's own."""

    plane: ControlPlane
    longhorn: Longhorn
    kubeconfig: Path

    def webhook(self, name: str, **settings: str) -> Webhook:
        """Return a webhook that is neither started nor registered yet."""
        return Webhook(self.plane, name, self.kubeconfig, settings)

    @contextmanager
    def world(self, name: str, pins: bool, steers: bool) -> Iterator[World]:
        """Give a world in which a webhook of this name does so, once the API server calls it."""
        with ExitStack() as stack:
            if not (pins or steers):
                world = World(self.plane, self.longhorn, None)
            else:
                webhook = stack.enter_context(self.webhook(name, steering=str(steers).lower()))
                # That it is asked about VMs shows that it is about share-managers too: it is one registration.
                world = World(self.plane, self.longhorn, webhook.register())
            stack.callback(world.close)
            if steers and not pins:
                path = f"/api/v1/namespaces/{world.namespace}"
                self.plane.request("PATCH", path, {"metadata": {"labels": {SERVED_BY: None}}})
                self.plane.wait(lambda: not world.decision("no-such-claim"), 20, "a webhook not asked about VMs")
            yield world


@contextmanager
def staged() -> Iterator[Stage]:
    """Start a control plane on loopback, and end it, by pid, with all that it wrote."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # so that the folder goes, too
    build.binaries()  # minutes on the first run of a machine, with a progress of its own
    with TemporaryDirectory(prefix="benchmark-") as folder, ControlPlane(Path(folder)) as plane:
        plane.create_namespace(NAMESPACE)
        longhorn = Longhorn(plane)
        longhorn.install()
        kubeconfig = plane.write_kubeconfig(plane.folder / "webhook-kubeconfig", grant(plane, "webhook"))
        yield Stage(plane, longhorn, kubeconfig)


@contextmanager
def acting(longhorn: Longhorn) -> Iterator[None]:
    """Let Longhorn act, in its thread, for as long as this lasts."""
    longhorn.start()
    try:
        yield
    finally:
        longhorn.stop()


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Give a function that says what is being done: in one line on a terminal, else line by line."""
    begin = time.monotonic()
    bar = Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), transient=True)
    task = bar.add_task("starting a control plane")

    def say(what: str) -> None:
        bar.update(task, description=what)
        if not bar.console.is_terminal:
            print(f"{time.monotonic() - begin:4.0f} s  {what}", file=sys.stderr, flush=True)

    with bar:
        yield say


def at_once(call: Callable[..., Any], arguments: Iterable[Any], threads: int = 4) -> list[Any]:
    """Call with each argument, a few at a time, and return what each call returned, in their order."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(call, arguments))


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the picture: a share of 0 to 1 for each column; its color is a class of the style."""

    name: str
    color: str
    shares: tuple[float, ...]


def bars(title: str, note: str, columns: dict[str, str], rows: list[Row]) -> str:
    """Draw a bar for each row and column as an SVG; `columns` explains each column's name."""
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
            lines.append(f'  <rect class="room" x="{x}" y="{y}" width="{BAR}" height="24" rx="3"/>')
            lines.append(f'  <rect class="{row.color}" x="{x}" y="{y}" width="{BAR * share:g}" height="24" rx="3"/>')
            lines.append(f'  <text class="bold" x="{x + BAR + 8}" y="{y + 17}">{100 * share:.0f} %</text>')
    for x, (column, explained) in zip(range(156, 880, 236), columns.items(), strict=False):
        lines.append(f'  <text class="bold" x="{x}" y="80">{column}</text>')
        lines.append(f'  <text class="small" x="{x}" y="98">{explained}</text>')
    return "\n".join([*lines, "</svg>", ""])
