"""A CONNECT proxy that plays the Service network: the API server's calls to a cluster IP end at processes of ours."""

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
    """Serve one Unix socket; `routes` maps the (host, port) that is asked for to those that answer, each in turn.

    As with kube-proxy, a connection stays where it began, also when its end is no longer among them.
    """

    def __init__(self, path: Path) -> None:
        self.routes: dict[Address, tuple[Address, ...]] = {}
        self.dialled: Counter[Address] = Counter()  # how often somebody was led to an end
        self._tunnels: dict[socket.socket, Address] = {}
        self._ended = threading.Condition()
        turns = count()

        def end_of(asked: Address) -> Address | None:
            ends = self.routes.get(asked)
            end = ends[next(turns) % len(ends)] if ends else None
            if end:
                self.dialled[end] += 1
            return end

        tunnels, ended = self._tunnels, self._ended

        class Connection(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                asked = _asked_for(self.request)
                tunnels[self.request] = asked
                try:
                    _tunnel(self.request, asked, end_of)
                finally:
                    with ended:
                        del tunnels[self.request]
                        ended.notify_all()

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True
            # An API server opens a burst of connections; with the usual backlog of 5 some of them would be refused.
            request_queue_size = 128

        self._server = Server(str(path), Connection)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def hang_up(self, asked: Address) -> None:
        """End the tunnels to this host and port as their servers would; return when the API server has let go of them.

        No call may be under way on them. Its next one shakes hands anew.
        """
        ending = [client for client, to in list(self._tunnels.items()) if to == asked]
        for client in ending:
            with suppress(OSError):  # it has ended by itself
                client.shutdown(socket.SHUT_WR)
        with self._ended:
            assert self._ended.wait_for(lambda: not any(client in self._tunnels for client in ending), 20)

    def stop(self) -> None:
        """End the listener; a tunnel ends with the API server, the other end of it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _tunnel(client: socket.socket, asked: Address, end_of: Callable[[Address], Address | None]) -> None:
    try:
        target = end_of(asked)
        if target is None:
            raise ConnectionRefusedError(f"no route to {asked[0]}:{asked[1]}")
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
