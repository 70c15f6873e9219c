"""A proxy between one client and the API server, through which a test injects faults. HTTP in front, HTTPS behind."""

from __future__ import annotations

import json
import selectors
import socket
import socketserver
import ssl
import threading
from contextlib import suppress
from pathlib import Path

from tests.support.controlplane.api import LOOPBACK, Api

END_OF_CHUNKS = b"0\r\n\r\n"


class FaultProxy:
    """Listen at `url` with plain HTTP, so that `end_watches` can end a watch cleanly, as an API server does."""

    def __init__(self, api: Api) -> None:
        self._connections: set[_Connection] = set()
        self._released = threading.Event()
        self._released.set()
        trust = ssl.create_default_context(cafile=str(api.ca))
        # TLS 1.3 sends session tickets at any time: readable bytes that contain no data for the client.
        trust.maximum_version = ssl.TLSVersion.TLSv1_2
        fault_proxy = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                connection = _Connection(self.request, fault_proxy._released)
                fault_proxy._connections.add(connection)
                with suppress(OSError):
                    connection.run((LOOPBACK, api.port), trust)
                fault_proxy._connections.discard(connection)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            request_queue_size = 128

        self._server = Server((LOOPBACK, 0), Handler)
        self.url = f"http://{LOOPBACK}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def write_kubeconfig(self, api: Api, path: Path, token: str) -> Path:
        """Write a kubeconfig for a client that connects through this proxy, and return its path."""
        config = json.loads(api.write_kubeconfig(path, token).read_text())
        config["clusters"][0]["cluster"] = {"server": self.url}
        path.write_text(json.dumps(config))
        return path

    def close_connections(self) -> None:
        """Close all current connections abruptly."""
        for connection in list(self._connections):
            connection.close()

    def hold_requests(self) -> None:
        """Accept requests, but don't forward them until `release_requests`."""
        self._released.clear()

    def release_requests(self) -> None:
        self._released.set()

    def end_watches(self) -> None:
        """End each watch as an API server does when the watch times out."""
        for connection in list(self._connections):
            if connection.is_watch:
                connection.end_response()

    def stop(self) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
        self.close_connections()
        self._thread.join()


class _Connection:
    def __init__(self, client: socket.socket, released: threading.Event) -> None:
        self.is_watch = False
        self._client = client
        self._released = released
        # Locked while a chunk is forwarded, so that `end_response` never splits a chunk.
        self._writing = threading.Lock()

    def run(self, target: tuple[str, int], trust: ssl.SSLContext) -> None:
        self._released.wait()
        with trust.wrap_socket(socket.create_connection(target, timeout=5), server_hostname=target[0]) as server:
            server.settimeout(None)
            with selectors.DefaultSelector() as ready:
                ready.register(self._client, selectors.EVENT_READ)
                ready.register(server, selectors.EVENT_READ)
                while all(self._forward(key.fileobj, server) for key, _ in ready.select()):
                    pass

    def _forward(self, source: object, server: ssl.SSLSocket) -> bool:
        if source is self._client:
            data = self._client.recv(65536)
            self.is_watch = b"watch=true" in data
            self._released.wait()
            server.sendall(data)
        else:
            data = server.recv(65536)
            while server.pending():
                data += server.recv(65536)
            with self._writing:
                self._client.sendall(data)
        return bool(data)

    def end_response(self) -> None:
        with self._writing:
            with suppress(OSError):  # the client has already closed the connection
                self._client.sendall(END_OF_CHUNKS)
            self.close()

    def close(self) -> None:
        with suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)
