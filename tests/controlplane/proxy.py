"""A CONNECT proxy that plays the Service network: the API server's calls to a cluster IP end at processes of ours."""

from __future__ import annotations

import selectors
import socket
import socketserver
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path

Address = tuple[str, int]


class EgressProxy:
    """Serve one Unix socket; `routes` maps the (host, port) that is asked for to those that answer, each in turn.

    As with kube-proxy, a connection stays where it began, also when its end is no longer among them.
    """

    def __init__(self, path: Path) -> None:
        self.routes: dict[Address, tuple[Address, ...]] = {}
        turns = count()

        def end_of(asked: Address) -> Address | None:
            ends = self.routes.get(asked)
            return ends[next(turns) % len(ends)] if ends else None

        class Connection(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                _tunnel(self.request, end_of)

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True
            # An API server opens a burst of connections; with the usual backlog of 5 some of them would be refused.
            request_queue_size = 128

        self._server = Server(str(path), Connection)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the listener; a tunnel ends with the API server, the other end of it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _tunnel(client: socket.socket, end_of: Callable[[Address], Address | None]) -> None:
    host, port = _asked_for(client)
    try:
        target = end_of((host, port))
        if target is None:
            raise ConnectionRefusedError(f"no route to {host}:{port}")
        server = socket.create_connection(target, timeout=5)
    except OSError as error:
        client.sendall(f"HTTP/1.1 502 {error}\r\nContent-Length: 0\r\n\r\n".encode())
        return
    with server:
        server.settimeout(None)
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        _relay(client, server)


def _asked_for(client: socket.socket) -> Address:
    head = b""
    # Byte by byte: what follows the head belongs to the tunnel and must not be read ahead.
    while not head.endswith(b"\r\n\r\n"):
        if not (byte := client.recv(1)):
            return "nobody", 0
        head += byte
    host, _, port = head.split()[1].decode().rpartition(":")
    return host.strip("[]"), int(port)


def _relay(one: socket.socket, other: socket.socket) -> None:
    """Copy both ways until either side ends: TLS ends its streams itself, so no half-closed state is worth keeping."""
    with selectors.DefaultSelector() as ready:
        ready.register(one, selectors.EVENT_READ, other)
        ready.register(other, selectors.EVENT_READ, one)
        try:
            while True:
                for key, _ in ready.select():
                    source: socket.socket = key.fileobj  # type: ignore[assignment]
                    if not (data := source.recv(65536)):
                        return
                    key.data.sendall(data)
        except OSError:
            return
