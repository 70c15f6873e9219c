"""Misbehaving peers of one port of the server, for benchmarks/faults.py: idle, half-open and trickling connections.

This module measures nothing: run as a script, it prints nothing.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any
from urllib.parse import urlsplit

from attacks import join_within
from sides import TIMEOUT, Side

# With handshakes of all 500 peers at once, the load's own core would limit the result.
CONCURRENT_HANDSHAKES = 50
HEAD = b"POST /mutate?timeout=10s HTTP/1.1\r\nHost: x\r\nX: "


@dataclass(slots=True)
class Swarm:
    """Misbehaving peers of one port. `connections` counts the connections of each kind.

    Without a `tls_context`, it is the plain port. `partial_hello` is what a half-open peer sends.
    """

    address: tuple[str, int]
    tls_context: ssl.SSLContext | None
    connections: Counter[str]
    partial_hello: bytes
    handshakes: asyncio.Semaphore

    async def idle(self) -> None:
        """Complete the handshake, then send nothing."""
        async with self.handshakes:
            reader, writer = await asyncio.open_connection(*self.address, ssl=self.tls_context)
        await self.hold_open("idle", reader, writer)

    async def half_open(self) -> None:
        """Send an incomplete ClientHello; to the plain port, an incomplete request."""
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
    # Not `wait_for`: until Python 3.12, it swallows a cancellation that arrives together with the result. The server
    # closes all trickling peers after 10 s, so a run of 8 s could end in that moment, and then hung for ever.
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await reader.read()
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


def swarm_of(side: Side, *, plain: bool) -> Swarm:
    """Return a swarm for the TLS port or the plain port of a side."""
    handshakes = asyncio.Semaphore(CONCURRENT_HANDSHAKES)
    parts = urlsplit(f"http://{side.plain}" if plain else side.url)
    address = str(parts.hostname), int(parts.port or 0)
    if plain:
        return Swarm(address, None, Counter(), HEAD, handshakes)
    tls_context = ssl.create_default_context(cafile=side.ca)
    return Swarm(address, tls_context, Counter(), half_client_hello(tls_context), handshakes)


async def run_swarm(swarm: Swarm, kinds: tuple[str, ...], peers: int, done: Event) -> None:
    """Run `peers` peers of each kind until `done` is set."""

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
    if tasks:
        await asyncio.wait(tasks, timeout=TIMEOUT)


@contextmanager
def misbehaving_peers(side: Side, kinds: tuple[str, ...], peers: int, *, plain: bool = False) -> Iterator[Counter[str]]:
    """Run peers during the block, all connected when it begins. Yields the count of their reconnects."""
    swarm, done = swarm_of(side, plain=plain), Event()
    thread = Thread(target=lambda: asyncio.run(run_swarm(swarm, kinds, peers, done)), name="peers", daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + TIMEOUT
        while sum(swarm.connections.values()) < peers * len(kinds):
            if time.monotonic() > deadline or not thread.is_alive():
                sys.exit(f"not all peers have connected: {swarm.connections}")
            time.sleep(0.05)
        swarm.connections.clear()
        yield swarm.connections
    finally:
        done.set()
        join_within(2 * TIMEOUT, thread)
