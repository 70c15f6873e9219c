"""A CONNECT proxy in place of the Service network: connects the API server's calls to cluster IPs to local servers."""

from __future__ import annotations

import selectors
import socket
import socketserver
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

Address = tuple[str, int]


class EgressProxy:
    """A proxy on a Unix socket. `routes` maps a requested (host, port) to its targets, which it uses round robin.

    As with kube-proxy, an open connection stays with its target, even if the target is removed from the routes.
    """

    def __init__(self, path: Path) -> None:
        self.routes: dict[Address, tuple[Address, ...]] = {}
        self.connections_opened: Counter[Address] = Counter()  # by target
        self._tunnels: dict[socket.socket, Address] = {}
        self._tunnel_closed = threading.Condition()
        turns = count()

        def next_target(requested: Address) -> Address | None:
            targets = self.routes.get(requested)
            target = targets[next(turns) % len(targets)] if targets else None
            if target:
                self.connections_opened[target] += 1
            return target

        tunnels, tunnel_closed = self._tunnels, self._tunnel_closed

        class Connection(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                requested = _read_requested_address(self.request)
                tunnels[self.request] = requested
                try:
                    _tunnel(self.request, requested, next_target)
                finally:
                    with tunnel_closed:
                        del tunnels[self.request]
                        tunnel_closed.notify_all()

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True
            # An API server opens bursts of connections, of which the default backlog of 5 would refuse some.
            request_queue_size = 128

        self._server = Server(str(path), Connection)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close_connections(self, requested: Address) -> None:
        """Close the tunnels to this address as their servers would, and return when the API server has closed them too.

        No call may be in flight on them. The API server's next call needs a new TLS handshake.
        """
        closing = [client for client, to in list(self._tunnels.items()) if to == requested]
        for client in closing:
            with suppress(OSError):  # already closed
                client.shutdown(socket.SHUT_WR)
        with self._tunnel_closed:
            assert self._tunnel_closed.wait_for(lambda: not any(client in self._tunnels for client in closing), 20)

    def stop(self) -> None:
        """Stop the listener. A tunnel closes when its client, the API server, exits."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _tunnel(client: socket.socket, requested: Address, next_target: Callable[[Address], Address | None]) -> None:
    try:
        target = next_target(requested)
        if target is None:
            raise ConnectionRefusedError(f"no route to {requested[0]}:{requested[1]}")
        server = socket.create_connection(target, timeout=5)
    except OSError as error:
        client.sendall(f"HTTP/1.1 502 {error}\r\nContent-Length: 0\r\n\r\n".encode())
        return
    with server:
        server.settimeout(None)
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        _relay(client, server)


def _read_requested_address(client: socket.socket) -> Address:
    head = b""
    # Byte by byte, because the bytes after the head belong to the tunnel.
    while not head.endswith(b"\r\n\r\n"):
        if not (byte := client.recv(1)):
            return "unknown", 0
        head += byte
    host, _, port = head.split()[1].decode().rpartition(":")
    return host.strip("[]"), int(port)


def _relay(one: socket.socket, other: socket.socket) -> None:
    """Copy both ways until either side closes. TLS has its own close, so half-closed TCP needs no support."""
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
