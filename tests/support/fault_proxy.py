"""The cable between one client and the API server, which a test can cut: plain HTTP in front, TLS behind."""

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


class Cable:
    """Listens at `url`. Plain, so that a watch can be ended in good order, as an API server ends one in its time."""

    def __init__(self, api: Api) -> None:
        self._connections: set[_Connection] = set()
        self._whole = threading.Event()
        self._held = threading.Event()
        self._held.set()
        self._whole.set()
        trust = ssl.create_default_context(cafile=str(api.ca))
        # TLS 1.3 sends session tickets when it likes: bytes to read in which there is nothing for the client.
        trust.maximum_version = ssl.TLSVersion.TLSv1_2
        cable = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                if not cable._whole.is_set():
                    return
                connection = _Connection(self.request, cable._held)
                cable._connections.add(connection)
                with suppress(OSError):
                    connection.run((LOOPBACK, api.port), trust)
                cable._connections.discard(connection)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            request_queue_size = 128

        self._server = Server((LOOPBACK, 0), Handler)
        self.url = f"http://{LOOPBACK}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def write_kubeconfig(self, api: Api, path: Path, token: str) -> Path:
        """Write the kubeconfig of whoever goes through the cable, and return its path."""
        config = json.loads(api.write_kubeconfig(path, token).read_text())
        config["clusters"][0]["cluster"] = {"server": self.url}
        path.write_text(json.dumps(config))
        return path

    def cut(self) -> None:
        """End all connections in the middle, and each new one at once, until `mend`."""
        self._whole.clear()
        self.sever()

    def mend(self) -> None:
        self._whole.set()

    def sever(self) -> None:
        """End all connections in the middle, once."""
        for connection in list(self._connections):
            connection.close()

    def hold(self) -> None:
        """Take requests, and pass none of them on until `let_go`."""
        self._held.clear()

    def let_go(self) -> None:
        self._held.set()

    def end_watches(self) -> None:
        """End each watch as an API server does when its time is up."""
        for connection in list(self._connections):
            if connection.watches:
                connection.end()

    def stop(self) -> None:
        self.cut()
        self._held.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Connection:
    def __init__(self, client: socket.socket, let_go: threading.Event) -> None:
        self.watches = False
        self._client = client
        self._let_go = let_go
        # Held while a chunk is passed on, so that none is ended in its middle.
        self._writing = threading.Lock()

    def run(self, target: tuple[str, int], trust: ssl.SSLContext) -> None:
        self._let_go.wait()
        with trust.wrap_socket(socket.create_connection(target, timeout=5), server_hostname=target[0]) as server:
            server.settimeout(None)
            with selectors.DefaultSelector() as ready:
                ready.register(self._client, selectors.EVENT_READ)
                ready.register(server, selectors.EVENT_READ)
                while all(self._pass_on(key.fileobj, server) for key, _ in ready.select()):
                    pass

    def _pass_on(self, source: object, server: ssl.SSLSocket) -> bool:
        if source is self._client:
            data = self._client.recv(65536)
            self.watches = b"watch=true" in data
            self._let_go.wait()
            server.sendall(data)
        else:
            data = server.recv(65536)
            while server.pending():
                data += server.recv(65536)
            with self._writing:
                self._client.sendall(data)
        return bool(data)

    def end(self) -> None:
        with self._writing:
            with suppress(OSError):  # it has gone by itself
                self._client.sendall(END_OF_CHUNKS)
            self.close()

    def close(self) -> None:
        with suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)
