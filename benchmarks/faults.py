"""How many reviews fail or come late beside hundreds of peers that misbehave, and while the certificate changes.

Ours alone, the whole product. The reviews come at a fixed rate, whether the one before was answered or not; the peers
begin again whenever they are ended. It takes its time, so `make bench` is only told how to run it.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import ssl
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import urlsplit

import click
from peer.build import BuildError
from rich import box
from rich.console import Console
from rich.table import Table
from rounds import command
from sides import OURS, PATIENCE, REVIEW, Arena, Side, arena, write_snapshot

from certs.authority import Issued, issue_ca, issue_leaf

CONNECTIONS = 8
AT_ONCE = 50  # peers that begin at the same time; all 500 at once would be measured by the load's own core
HEAD = b"POST /mutate?timeout=10s HTTP/1.1\r\nHost: x\r\nX: "


@dataclass(slots=True)
class Swarm:
    """Peers of one server, in one thread of their own. `begun` counts how often each kind began."""

    address: tuple[str, int]
    trusting: ssl.SSLContext
    begun: Counter[str]
    hello: bytes
    opening: asyncio.Semaphore

    async def idle(self) -> None:
        """Shake hands, and say nothing more."""
        async with self.opening:
            reader, writer = await asyncio.open_connection(*self.address, ssl=self.trusting)
        await self.stay("idle", reader, writer)

    async def half_open(self) -> None:
        """Say half a hello."""
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(self.hello)
        await self.stay("half-open", reader, writer)

    async def trickling(self) -> None:
        """Send a request's head, one byte a second."""
        async with self.opening:
            reader, writer = await asyncio.open_connection(*self.address, ssl=self.trusting)
        writer.write(HEAD)
        await self.stay("trickling", reader, writer, said=b"x")

    async def stay(
        self, kind: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, said: bytes = b""
    ) -> None:
        """Stay until the other side ends it."""
        self.begun[kind] += 1
        try:
            while not await ended_within(1.0 if said else None, reader):
                writer.write(said)
        finally:
            writer.transport.abort()


async def ended_within(seconds: float | None, reader: asyncio.StreamReader) -> bool:
    """Wait for the other side's end, or until the time is over, if there is any."""
    with suppress(TimeoutError):
        await asyncio.wait_for(reader.read(), seconds)
        return True
    return False


KINDS: dict[str, Callable[[Swarm], Coroutine[Any, Any, None]]] = {
    "idle": Swarm.idle,
    "half-open": Swarm.half_open,
    "trickling": Swarm.trickling,
}


def half_a_hello(trusting: ssl.SSLContext) -> bytes:
    """Return the first half of what a client says first."""
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        trusting.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()[:150]


async def swarm(side: Side, kinds: tuple[str, ...], peers: int, found: list[Swarm], done: Event) -> None:
    """Keep so many peers of each kind there."""
    parts, trusting = urlsplit(side.url), ssl.create_default_context(cafile=side.ca)
    address = str(parts.hostname), int(parts.port or 0)
    made = Swarm(address, trusting, Counter(), half_a_hello(trusting), asyncio.Semaphore(AT_ONCE))
    found.append(made)

    async def again(kind: str) -> None:
        while True:
            try:
                await KINDS[kind](made)
            except OSError:
                await asyncio.sleep(0.1)

    tasks = [asyncio.create_task(again(kind)) for kind in kinds for _ in range(peers)]
    await asyncio.to_thread(done.wait)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def beside(side: Side, kinds: tuple[str, ...], peers: int) -> Iterator[Counter[str]]:
    """Have peers there, all of them from the first moment on; how often they began is known at the end."""
    found: list[Swarm] = []
    done = Event()
    thread = Thread(target=lambda: asyncio.run(swarm(side, kinds, peers, found, done)))
    thread.start()
    try:
        last = time.monotonic() + PATIENCE
        while not found or sum(found[0].begun.values()) < peers * len(kinds):
            if time.monotonic() > last:
                sys.exit(f"the peers are not there: {found and found[0].begun}")
            time.sleep(0.05)
        found[0].begun.clear()
        yield found[0].begun
    finally:
        done.set()
        thread.join()


@contextmanager
def calling(place: Arena, side: Side, rate: float, seconds: float, *options: str) -> Iterator[dict[str, Any]]:
    """Call a side for so many seconds; what came of it is there after the block."""
    chosen = [f"-connections={CONNECTIONS}", f"-rate={rate:g}", "-warm-up=1s", f"-for={seconds:g}s", *options]
    result: dict[str, Any] = {}
    with subprocess.Popen(command(place, side, REVIEW, *chosen), stdout=subprocess.PIPE, text=True) as child:
        yield result
        assert child.stdout
        result.update(json.loads(child.stdout.read()))


def write_pair(folder: Path, ca: Issued) -> None:
    """Put a new certificate and its key into a folder; each file is replaced by one rename."""
    leaf = issue_leaf(ca, ["localhost", "127.0.0.1"], datetime.now(UTC))
    for name, content in ("tls.key", leaf.key), ("tls.crt", leaf.certificate), ("ca.crt", ca.certificate):
        (folder / f"{name}.new").write_bytes(content)
        (folder / f"{name}.new").rename(folder / name)


def serial(side: Side) -> str:
    """Return the serial number of the certificate that a new connection is shown."""
    parts = urlsplit(side.url)
    trusting = ssl.create_default_context(cafile=side.ca)
    with (
        socket.create_connection((str(parts.hostname), int(parts.port or 0)), PATIENCE) as sock,
        trusting.wrap_socket(sock, server_hostname="localhost") as connection,
    ):
        return str((connection.getpeercert() or {})["serialNumber"])


def swap(side: Side, folder: Path, ca: Issued, times: int, pause: float) -> float:
    """Change the certificate again and again; return the seconds until the slowest change was served."""
    slowest = 0.0
    for _ in range(times):
        before = serial(side)
        write_pair(folder, ca)
        begin = time.monotonic()
        while serial(side) == before:
            time.sleep(0.01)
        slowest = max(slowest, time.monotonic() - begin)
        time.sleep(pause)
    return slowest


def measure(place: Arena, peers: int, seconds: float, rate: float, swaps: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what came of the reviews: alone, beside each kind of peer and beside all, and during changes."""
    ca = issue_ca(datetime.now(UTC))
    write_pair(place.folder, ca)
    with place.serving(OURS, write_snapshot(place.folder / "cluster.json")) as side:
        for kinds in ((), *((kind,) for kind in KINDS), tuple(KINDS)):
            with beside(side, kinds, peers) as begun, calling(place, side, rate, seconds) as found:
                pass
            told = " + ".join(f"{peers} {kind}" for kind in kinds) or "nobody else"
            yield told, found | {"begun": dict(begun), "memory": side.own_memory()}
        for name, options in ("kept connections", ()), ("new connections", ("-fresh",)):
            with calling(place, side, rate, seconds, *options) as found:
                slowest = swap(side, place.folder, ca, swaps, max(0.0, (seconds - 2) / swaps - 0.1))
            yield f"{swaps} certificates, {name}", found | {"slowest": slowest, "memory": side.own_memory()}


@click.command()
@click.option("--seconds", type=click.FloatRange(4), help="How long each part takes; 60 are usual.")
@click.option("--peers", default=500, show_default=True, help="How many of each kind.")
@click.option("--rate", default=100.0, show_default=True, help="Reviews per second.")
@click.option("--swaps", default=50, show_default=True, help="How often the certificate changes.")
@click.option("--live/--snapshot", default=True, show_default=True, help="Whether it follows a cluster.")
@click.option("--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Where to write what was found.")
def main(  # noqa: PLR0913, PLR0917 (as many as there are options)
    seconds: float | None, peers: int, rate: float, swaps: int, live: bool, file: Path | None
) -> None:
    """Count the reviews that fail or come late beside misbehaving peers."""
    if seconds is None:
        print("not run: it takes minutes. Run it with: .venv/bin/python benchmarks/faults.py --seconds 60")
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the server, our child, has as many
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("beside", "reviews", "failed", "over 100 ms", "p50, ms", "p99, ms", "max, ms", "begun anew", "MB"):
        table.add_column(heading, justify="left" if heading == "beside" else "right")
    results: dict[str, dict[str, Any]] = {}
    try:
        with arena(live=live) as place:
            for name, found in measure(place, peers, seconds, rate, swaps):
                results[name] = found
                times = [f"{found[key]:.1f}" for key in ("p50", "p99", "max")]
                failed, begun = sum(found["failed"].values()), sum(found.get("begun", {}).values())
                counts = [f"{found['requests']:,}", str(failed), str(found["late"])]
                table.add_row(name, *counts, *times, f"{begun:,}", f"{found['memory']:.0f}")
    except BuildError as error:
        sys.exit(str(error))
    if file:
        file.write_text(json.dumps(results, indent=1))
    say = Console(width=140).print
    say(table)
    say(f"{seconds:g} s each, {rate:g} reviews/s; load of the machine at the end: {os.getloadavg()[0]:.1f}")
    slowest = max(found.get("slowest", 0.0) for found in results.values())
    others = max(found["others"] for found in results.values())
    say(f"the slowest change of the certificate was served after {slowest * 1000:.0f} ms")
    say(f"of the server's core others took up to {others:.0%}")


if __name__ == "__main__":
    main()
