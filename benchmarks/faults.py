"""Benchmark under faults: failed and late reviews beside clients that stall, and beside attacks.

It measures the complete webhook, without the Go peer. Reviews are sent at a fixed rate, whether or not earlier reviews
were answered. A client that stalls reconnects whenever the server closes its connection. The run takes minutes, so
`make bench` only prints how to start it.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import click
from attacks import ATTACKS, OTHER_PODS, attacking
from peer.build import BuildError
from rich import box
from rich.console import Console
from rich.table import Table
from rounds import command
from sides import NODES, OURS, REVIEW, TIMEOUT, Setup, Side, start_setup, write_snapshot
from swarm import KINDS, stalling_clients

from tests.support.builders import Object, pod, pod_anti_affinity

Row = tuple[str, dict[str, Any]]  # title and result

CONNECTIONS = 8
CALL_TIMEOUT = 10.0  # seconds; that of the load for each review
STALLS = ((), *((kind,) for kind in KINDS), KINDS)  # the kinds of clients that stall, of each row
PODS_WITH_TERMS, TERMS = 1_000, 27  # more terms than these are not kept


def progress(text: str) -> None:
    """Print a line to standard error, so that a long run shows what it does."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


@contextmanager
def sending_reviews(setup: Setup, side: Side, rate: float, seconds: float) -> Iterator[dict[str, Any]]:
    """Send reviews to a side for so many seconds. The yielded dict has the result after the block."""
    chosen = [f"-connections={CONNECTIONS}", f"-rate={rate:g}", "-warm-up=1s", f"-for={seconds:g}s"]
    result: dict[str, Any] = {}
    with subprocess.Popen(command(setup, side, REVIEW, *chosen), stdout=subprocess.PIPE, text=True) as child:
        try:
            yield result
            printed, _ = child.communicate(timeout=seconds + CALL_TIMEOUT + TIMEOUT)
        except BaseException:
            child.kill()
            raise
        result.update(json.loads(printed))


@dataclass(frozen=True, slots=True)
class Run:
    """A running server, and the options."""

    setup: Setup
    side: Side
    options: Options

    def chosen(self, *titles: str) -> Iterator[str]:
        """Yield the titles that match the option, and print each before its row begins."""
        for title in titles:
            if re.search(self.options.only, title):
                progress(title)
                yield title

    def beside_stalls(self) -> Iterator[Row]:
        """Yield the reviews alone, and beside each kind of clients that stall."""
        number = self.options.clients
        kinds_of = {" + ".join(f"{number} {kind}" for kind in kinds) or "no other clients": kinds for kinds in STALLS}
        for title in self.chosen(*kinds_of):
            with stalling_clients(self.side, kinds_of[title], number) as swarm, self.reviews() as result:
                pass
            yield title, result | {"begun": swarm.reconnects}

    def beside_attacks(self, *titles: str) -> Iterator[Row]:
        """Yield the reviews beside each attack."""
        for title in self.chosen(*titles):
            with attacking(self.side, title) as begun, self.reviews() as result:
                pass
            yield title, result | {"begun": begun()}

    def reviews(self) -> AbstractContextManager[dict[str, Any]]:
        """Send reviews during the block."""
        return sending_reviews(self.setup, self.side, self.options.rate, self.options.seconds)


def measure(setup: Setup, options: Options) -> Iterator[Row]:
    """Yield the results of all chosen rows."""
    with serving(setup, options, []) as run:
        attacks = run.beside_attacks(*(title for title in ATTACKS if title != OTHER_PODS))
        for title, result in chain(run.beside_stalls(), attacks):
            yield title, result | {"memory": run.side.own_memory()}
    if re.search(options.only, OTHER_PODS):
        with serving(setup, options, pods_with_terms()) as run:
            for title, result in run.beside_attacks(OTHER_PODS):
                yield title, result | {"memory": run.side.own_memory()}


@contextmanager
def serving(setup: Setup, options: Options, pods: Iterable[Object]) -> Iterator[Run]:
    """Run the server during the block, on the cluster and these pods."""
    progress("starting the server")
    with setup.serving(OURS, write_snapshot(setup.folder / "cluster.json", more=pods)) as side:
        yield Run(setup, side, options)


def pods_with_terms() -> Iterator[Object]:
    """Yield the pods of a tenant, whose anti-affinity terms can only be compared with each VM one after the other."""
    selector = {"matchExpressions": [{"key": "absent", "operator": "Exists"}]}
    # A label of all nodes, so that each pod might repel the VM from each node.
    term = {"topologyKey": "kubernetes.io/arch", "namespaceSelector": {}, "labelSelector": selector}
    for number in range(PODS_WITH_TERMS):
        yield pod(f"pod-{number}", "tenant", node=f"node-{number % NODES}", affinity=pod_anti_affinity(*[term] * TERMS))


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line."""

    seconds: float
    clients: int
    rate: float
    only: str


@click.command()
@click.option("--seconds", type=click.FloatRange(4), help="Duration of each part, usually 60.")
@click.option("--clients", default=500, show_default=True, help="Number of clients of each kind that stall.")
@click.option("--rate", default=100.0, show_default=True, help="Reviews per second.")
@click.option("--only", default="", help="Run only the rows whose title matches this pattern.")
def main(seconds: float | None, clients: int, rate: float, only: str) -> None:
    """Count the reviews that fail or are late beside clients that stall or attack."""
    if seconds is None:
        print("not run: it takes minutes. Run it with: .venv/bin/python benchmarks/faults.py --seconds 60")
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the server, a child process, inherits the limit
    results: dict[str, dict[str, Any]] = {}
    try:
        progress("building the load")
        with start_setup(("load",)) as setup:
            results.update(measure(setup, Options(seconds, clients, rate, only)))
    except BuildError as error:
        sys.exit(str(error))
    finally:
        report(results, seconds, rate)  # also of a run that ends early: the rows that it has measured


def report(results: dict[str, dict[str, Any]], seconds: float, rate: float) -> None:
    """Print a table of the rows, and what they have in common."""
    if not results:
        return
    table = Table(box=box.SIMPLE_HEAD)
    headings = ("beside", "requests", "failed", "over 100 ms", "p50, ms", "p99, ms", "max, ms", "reconnects", "MB")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "beside" else "right")
    for name, result in results.items():
        times = [f"{result[key]:.1f}" for key in ("p50", "p99", "max")]
        failed, reconnects = sum(result["failed"].values()), result.get("begun", 0)
        counts = [f"{result['requests']:,}", str(failed), str(result["late"])]
        table.add_row(name, *counts, *times, f"{reconnects:,}", f"{result['memory']:.0f}")
    echo = Console(width=140).print
    echo(table)
    echo(f"{seconds:g} s each, {rate:g} reviews/s; load average at the end: {os.getloadavg()[0]:.1f}")
    others = max(result["others"] for result in results.values())
    echo(f"other processes used up to {others:.0%} of the server's core")


if __name__ == "__main__":
    main()
