"""A load balancer that sends each call of the API server to a random replica.

The routes of the control plane's proxy choose a replica for each connection, as kube-proxy does. An API server reuses
its newest idle connection, so calls in succession would mostly reach the same replica. This balancer ends TLS itself.
"""

from __future__ import annotations

import http.client
import random
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.support.controlplane.api import LOOPBACK
from tests.support.controlplane.proxy import Address

TIMEOUT = 30  # seconds
HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "host"}


class Balancer:
    """Serves the certificate in `tls`, and forwards each call to one of `targets`, which serve the same certificate."""

    def __init__(self, tls: Path, server_name: str, targets: tuple[Address, ...]) -> None:
        self.targets = targets
        self._server_name = server_name
        self._trust = ssl.create_default_context(cafile=str(tls / "ca.crt"))
        balancer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            timeout = None

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
                response, content = balancer._forward(self.path, body, headers)
                self.send_response_only(response.status)
                for name, value in response.getheaders():
                    if name.lower() not in HOP_BY_HOP:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        self._server = _Server(tls, Handler)
        self.address = LOOPBACK, int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _forward(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[http.client.HTTPResponse, bytes]:
        connection = _ReplicaConnection(random.choice(self.targets), self._server_name, self._trust)
        try:
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            return response, response.read()
        finally:
            connection.close()


class _ReplicaConnection(http.client.HTTPSConnection):
    """A connection to a replica, whose certificate names the Service instead of the address."""

    def __init__(self, target: Address, server_name: str, trust: ssl.SSLContext) -> None:
        super().__init__(*target, context=trust, timeout=TIMEOUT)
        self._names = trust, server_name

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        trust, server_name = self._names
        self.sock = trust.wrap_socket(self.sock, server_hostname=server_name)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, tls: Path, handler: type[BaseHTTPRequestHandler]) -> None:
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(tls / "tls.crt", tls / "tls.key")
        super().__init__((LOOPBACK, 0), handler)

    def get_request(self) -> tuple[ssl.SSLSocket, Address]:
        connection, client = super().get_request()
        # The thread of the connection does the handshake, with its first read.
        return self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), client

    def handle_error(self, request: object, client_address: object) -> None:
        """Be silent: the API server reports a call that failed."""
