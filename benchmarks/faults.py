"""Benchmark under faults: failed and late reviews beside misbehaving peers, attacks, and certificate changes.

It measures the complete webhook, without the Go peer. Reviews are sent at a fixed rate, whether or not earlier reviews
were answered. A misbehaving peer reconnects whenever the server closes its connection. The run takes minutes, so
`make bench` only prints how to start it.
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
from attacks import ATTACKS, attacking
from peer.build import BuildError
from rich import box
from rich.console import Console
from rich.table import Table
from rounds import command
from sides import OURS, REVIEW, TIMEOUT, Setup, Side, start_setup, write_snapshot

from certs.authority import Issued, issue_ca, issue_leaf

CONNECTIONS = 8
# With handshakes of all 500 peers at once, the load's own core would limit the result.
CONCURRENT_HANDSHAKES = 50
HEAD = b"POST /mutate?timeout=10s HTTP/1.1\r\nHost: x\r\nX: "


@dataclass(slots=True)
class Swarm:
    """Misbehaving peers of one server, in one thread. `connections` counts the connections of each kind."""

    address: tuple[str, int]
    tls_context: ssl.SSLContext
    connections: Counter[str]
    partial_hello: bytes
    handshakes: asyncio.Semaphore

    async def idle(self) -> None:
        """Complete the TLS handshake, then send nothing."""
        async with self.handshakes:
            reader, writer = await asyncio.open_connection(*self.address, ssl=self.tls_context)
        await self.hold_open("idle", reader, writer)

    async def half_open(self) -> None:
        """Send an incomplete ClientHello."""
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(self.partial_hello)
        await self.hold_open("half-open", reader, writer)

    async def trickling(self) -> None:
        """Send a request head, then one byte per second."""
        async with self.handshakes:
            reader, writer = await asyncio.open_connection(*self.address, ssl=self.tls_context)
        writer.write(HEAD)
        await self.hold_open("trickling", reader, writer, payload=b"x")

    async def hold_open(
        self, kind: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, payload: bytes = b""
    ) -> None:
        """Hold the connection until the server closes it. Sends `payload` every second, if not empty."""
        self.connections[kind] += 1
        try:
            while not await closed_within(1.0 if payload else None, reader):
                writer.write(payload)
        finally:
            writer.transport.abort()


async def closed_within(seconds: float | None, reader: asyncio.StreamReader) -> bool:
    """Return whether the server closes the connection within so many seconds. None means no limit."""
    with suppress(TimeoutError):
        await asyncio.wait_for(reader.read(), seconds)
        return True
    return False


KINDS: dict[str, Callable[[Swarm], Coroutine[Any, Any, None]]] = {
    "idle": Swarm.idle,
    "half-open": Swarm.half_open,
    "trickling": Swarm.trickling,
}


def half_client_hello(tls_context: ssl.SSLContext) -> bytes:
    """Return the first half of a ClientHello."""
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        tls_context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()[:150]


async def run_swarm(side: Side, kinds: tuple[str, ...], peers: int, swarms: list[Swarm], done: Event) -> None:
    """Run `peers` peers of each kind until `done` is set. Appends the swarm to `swarms`."""
    parts, tls_context = urlsplit(side.url), ssl.create_default_context(cafile=side.ca)
    address = str(parts.hostname), int(parts.port or 0)
    swarm = Swarm(
        address, tls_context, Counter(), half_client_hello(tls_context), asyncio.Semaphore(CONCURRENT_HANDSHAKES)
    )
    swarms.append(swarm)

    async def reconnect(kind: str) -> None:
        while True:
            try:
                await KINDS[kind](swarm)
            except OSError:
                await asyncio.sleep(0.1)

    tasks = [asyncio.create_task(reconnect(kind)) for kind in kinds for _ in range(peers)]
    await asyncio.to_thread(done.wait)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def misbehaving_peers(side: Side, kinds: tuple[str, ...], peers: int) -> Iterator[Counter[str]]:
    """Run peers during the block, all connected when it begins. Yields the count of their reconnects."""
    swarms: list[Swarm] = []
    done = Event()
    thread = Thread(target=lambda: asyncio.run(run_swarm(side, kinds, peers, swarms, done)))
    thread.start()
    try:
        deadline = time.monotonic() + TIMEOUT
        while not swarms or sum(swarms[0].connections.values()) < peers * len(kinds):
            if time.monotonic() > deadline:
                sys.exit(f"not all peers have connected: {swarms and swarms[0].connections}")
            time.sleep(0.05)
        swarms[0].connections.clear()
        yield swarms[0].connections
    finally:
        done.set()
        thread.join()


@contextmanager
def sending_reviews(setup: Setup, side: Side, rate: float, seconds: float, *options: str) -> Iterator[dict[str, Any]]:
    """Send reviews to a side for so many seconds. The yielded dict has the result after the block."""
    chosen = [f"-connections={CONNECTIONS}", f"-rate={rate:g}", "-warm-up=1s", f"-for={seconds:g}s", *options]
    result: dict[str, Any] = {}
    with subprocess.Popen(command(setup, side, REVIEW, *chosen), stdout=subprocess.PIPE, text=True) as child:
        yield result
        assert child.stdout
        result.update(json.loads(child.stdout.read()))


def write_certificate(folder: Path, ca: Issued) -> None:
    """Write a new certificate and its key into a folder. Replaces each file with one rename."""
    leaf = issue_leaf(ca, ["localhost", "127.0.0.1"], datetime.now(UTC))
    for name, content in ("tls.key", leaf.key), ("tls.crt", leaf.certificate), ("ca.crt", ca.certificate):
        (folder / f"{name}.new").write_bytes(content)
        (folder / f"{name}.new").rename(folder / name)


def serial(side: Side) -> str:
    """Return the serial number of the certificate that a new connection gets."""
    parts = urlsplit(side.url)
    tls_context = ssl.create_default_context(cafile=side.ca)
    with (
        socket.create_connection((str(parts.hostname), int(parts.port or 0)), TIMEOUT) as sock,
        tls_context.wrap_socket(sock, server_hostname="localhost") as connection,
    ):
        return str((connection.getpeercert() or {})["serialNumber"])


def replace_certificates(side: Side, folder: Path, ca: Issued, times: int, pause: float) -> float:
    """Replace the certificate `times` times. Returns the longest time in seconds until a new certificate was served."""
    slowest = 0.0
    for _ in range(times):
        before = serial(side)
        write_certificate(folder, ca)
        begin = time.monotonic()
        while serial(side) == before:
            time.sleep(0.01)
        slowest = max(slowest, time.monotonic() - begin)
        time.sleep(pause)
    return slowest


def measure(setup: Setup, peers: int, seconds: float, rate: float, swaps: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the results of the reviews: alone, beside each kind of peer and attack, and during certificate changes."""
    ca = issue_ca(datetime.now(UTC))
    write_certificate(setup.folder, ca)
    with setup.serving(OURS, write_snapshot(setup.folder / "cluster.json")) as side:
        for kinds in ((), *((kind,) for kind in KINDS), tuple(KINDS)):
            with (
                misbehaving_peers(side, kinds, peers) as reconnects,
                sending_reviews(setup, side, rate, seconds) as result,
            ):
                pass
            title = " + ".join(f"{peers} {kind}" for kind in kinds) or "nobody else"
            yield title, result | {"begun": dict(reconnects), "memory": side.own_memory()}
        for name in ATTACKS:
            with attacking(side, name) as begun, sending_reviews(setup, side, rate, seconds) as result:
                pass
            yield name, result | {"begun": dict(begun), "memory": side.own_memory()}
        for name, options in ("kept connections", ()), ("new connections", ("-fresh",)):
            with sending_reviews(setup, side, rate, seconds, *options) as result:
                slowest = replace_certificates(side, setup.folder, ca, swaps, max(0.0, (seconds - 2) / swaps - 0.1))
            yield f"{swaps} certificates, {name}", result | {"slowest": slowest, "memory": side.own_memory()}


@click.command()
@click.option("--seconds", type=click.FloatRange(4), help="Duration of each part, usually 60.")
@click.option("--peers", default=500, show_default=True, help="Number of peers of each kind.")
@click.option("--rate", default=100.0, show_default=True, help="Reviews per second.")
@click.option("--swaps", default=50, show_default=True, help="Number of certificate changes.")
@click.option("--live/--snapshot", default=True, show_default=True, help="Follow a cluster, or read a snapshot.")
@click.option("--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write the results to this file.")
def main(  # noqa: PLR0913, PLR0917 (one parameter for each option)
    seconds: float | None, peers: int, rate: float, swaps: int, live: bool, file: Path | None
) -> None:
    """Count the reviews that fail or are late beside misbehaving peers."""
    if seconds is None:
        print("not run: it takes minutes. Run it with: .venv/bin/python benchmarks/faults.py --seconds 60")
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the server, a child process, inherits the limit
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("beside", "reviews", "failed", "over 100 ms", "p50, ms", "p99, ms", "max, ms", "reconnects", "MB"):
        table.add_column(heading, justify="left" if heading == "beside" else "right")
    results: dict[str, dict[str, Any]] = {}
    try:
        with start_setup(live=live) as setup:
            for name, result in measure(setup, peers, seconds, rate, swaps):
                results[name] = result
                times = [f"{result[key]:.1f}" for key in ("p50", "p99", "max")]
                failed, reconnects = sum(result["failed"].values()), sum(result.get("begun", {}).values())
                counts = [f"{result['requests']:,}", str(failed), str(result["late"])]
                table.add_row(name, *counts, *times, f"{reconnects:,}", f"{result['memory']:.0f}")
    except BuildError as error:
        sys.exit(str(error))
    if file:
        file.write_text(json.dumps(results, indent=1))
    echo = Console(width=140).print
    echo(table)
    echo(f"{seconds:g} s each, {rate:g} reviews/s; load average at the end: {os.getloadavg()[0]:.1f}")
    slowest = max(result.get("slowest", 0.0) for result in results.values())
    others = max(result["others"] for result in results.values())
    echo(f"the slowest certificate change took effect after {slowest * 1000:.0f} ms")
    echo(f"other processes used up to {others:.0%} of the server's core")


if __name__ == "__main__":
    main()
