"""An HTTP server that answers JSON with JSON: a webhook of another project, or an extender of a scheduler."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.authority import issue_ca, issue_leaf
from tests.support.controlplane.api import LOOPBACK, Object


class JsonServer:
    """`with JsonServer(answer)`: answer each POST. With `tls`, it can be a `webhook` of a configuration."""

    def __init__(self, answer: Callable[[Object], Object], *, tls: bool = False) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.dumps(answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))).encode()
                self.send_response_only(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        self.address = LOOPBACK, self._server.server_port
        self._ca = self._serve_tls() if tls else b""

    def __enter__(self) -> JsonServer:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def webhook(self, name: str, namespace: str, resource: str = "pods") -> Object:
        """Return the webhook that the API server calls for each such object that is created in the namespace."""
        url, ca_bundle = f"https://localhost:{self.address[1]}/", base64.b64encode(self._ca).decode()
        return {
            "name": name,
            "clientConfig": {"url": url, "caBundle": ca_bundle},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resource]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "sideEffects": "NoneOnDryRun",
            "admissionReviewVersions": ["v1"],
        }

    def _serve_tls(self) -> bytes:
        ca = issue_ca(datetime.now(UTC))
        leaf, context = issue_leaf(ca, ["localhost"], datetime.now(UTC)), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with TemporaryDirectory() as folder:
            Path(folder, "tls.pem").write_bytes(leaf.certificate + leaf.key)
            context.load_cert_chain(Path(folder, "tls.pem"))
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        return ca.certificate
