"""Clients that stall, for benchmarks/faults.py: idle, half-open and trickling connections.

This module measures nothing: run as a script, it prints nothing.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import count
from selectors import EVENT_READ, DefaultSelector
from threading import Event, Thread
from urllib.parse import urlsplit

from attacks import join_within
from sides import TIMEOUT, Side

KINDS = ("idle", "half-open", "trickling")
HEAD = b"POST /mutate?timeout=10s HTTP/1.1\r\nHost: x\r\nX: "


class Swarm:
    """Holds `number` connections of each kind. Reconnects those that the server closes, and counts them."""

    def __init__(self, side: Side, kinds: tuple[str, ...], number: int) -> None:
        parts = urlsplit(side.url)
        self._address, self._context = (str(parts.hostname), parts.port), ssl.create_default_context(cafile=side.ca)
        self._selector, self._trickling, self.reconnects = DefaultSelector(), set[socket.socket](), 0
        for kind in kinds:
            for _ in range(number):
                self._connect(kind)

    def _connect(self, kind: str) -> None:
        sock = socket.create_connection(self._address, TIMEOUT)
        if kind == "half-open":
            sock.sendall(_client_hello(self._context)[:150])
        else:
            sock = self._context.wrap_socket(sock, server_hostname="localhost")
        if kind == "trickling":
            sock.sendall(HEAD)
            self._trickling.add(sock)
        self._selector.register(sock, EVENT_READ, kind)

    def run(self, done: Event) -> None:
        """Send a byte on each trickling connection every second, and replace the closed ones."""
        begin = time.monotonic()
        for turn in count():  # ten a second, each for a tenth of the connections
            if done.is_set():
                return
            for key, _ in self._selector.select(0):  # the server sends nothing but the end
                self.close(key.fileobj)
                with suppress(OSError):
                    self._connect(key.data)
                self.reconnects += 1
            for sock in [*self._trickling][turn % 10 :: 10]:
                with suppress(OSError):
                    sock.send(b"x")
            time.sleep(max(0.0, begin + 0.1 * turn - time.monotonic()))

    def close(self, sock: socket.socket) -> None:
        """Close a connection."""
        self._selector.unregister(sock)
        self._trickling.discard(sock)
        sock.close()

    def close_all(self) -> None:
        """Close all connections."""
        for key in [*self._selector.get_map().values()]:
            self.close(key.fileobj)
        self._selector.close()


def _client_hello(context: ssl.SSLContext) -> bytes:
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


@contextmanager
def stalling_clients(side: Side, kinds: tuple[str, ...], number: int) -> Iterator[Swarm]:
    """Hold the connections during the block, all of them when it begins."""
    with ExitStack() as stack:
        swarm, done = Swarm(side, kinds, number), Event()
        stack.callback(swarm.close_all)
        thread = Thread(target=swarm.run, args=(done,), name="stalling clients", daemon=True)
        thread.start()
        stack.callback(partial(join_within, TIMEOUT, thread))
        stack.callback(done.set)
        yield swarm
