"""Another mutating webhook, such as Kyverno, that the API server calls after ours: it applies a JSON patch to pods."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

from certs.authority import issue_ca, issue_leaf
from tests.support.controlplane.api import LOOPBACK, Object
from tests.support.scenario import Scenario
from tests.support.webhook_process import NAMESPACE, REGISTRATIONS


class SecondWebhook:
    """`with SecondWebhook(scenario, patch)`: from then on the scenario's pods get the patch."""

    def __init__(self, scenario: Scenario, patch: list[Object]) -> None:
        self._scenario, self._plane = scenario, scenario.plane
        # The API server calls webhooks in the order of their names.
        self._name = f"zz-{scenario.namespace}"
        self._ca = issue_ca(datetime.now(UTC))
        self._called = called = threading.Event()
        encoded = base64.b64encode(json.dumps(patch).encode()).decode()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                called.set()
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = {"uid": review["request"]["uid"], "allowed": True, "patchType": "JSONPatch", "patch": encoded}
                body = json.dumps({key: review[key] for key in ("apiVersion", "kind")} | {"response": answer}).encode()
                self.send_response_only(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        self._server.socket = self._tls().wrap_socket(self._server.socket, server_side=True)

    def __enter__(self) -> SecondWebhook:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        service = {"metadata": {"name": self._name}, "spec": {"ports": [{"port": 443}]}}
        self._plane.request("POST", f"/api/v1/namespaces/{NAMESPACE}/services", service)
        self._plane.route_service(NAMESPACE, self._name, (LOOPBACK, int(self._server.server_address[1])))
        self._plane.request("POST", REGISTRATIONS, self._configuration())
        self._plane.wait(self._is_called, 20, f"a call of {self._name}")
        return self

    def __exit__(self, *_: object) -> None:
        self._plane.request("DELETE", f"{REGISTRATIONS}/{self._name}")
        self._plane.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}/services/{self._name}")
        self._server.shutdown()
        self._server.server_close()

    def _is_called(self) -> bool:
        self._scenario.decision("no-such-claim")
        return self._called.is_set()

    def _configuration(self) -> Object:
        client = {"service": {"namespace": NAMESPACE, "name": self._name}}
        webhook = {
            "name": "second.example.org",
            "clientConfig": client | {"caBundle": base64.b64encode(self._ca.certificate).decode()},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self._scenario.namespace}},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        return {"metadata": {"name": self._name}, "webhooks": [webhook]}

    def _tls(self) -> ssl.SSLContext:
        leaf = issue_leaf(self._ca, [f"{self._name}.{NAMESPACE}.svc"], datetime.now(UTC))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with TemporaryDirectory() as folder:
            certificate, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
            certificate.write_bytes(leaf.certificate)
            key.write_bytes(leaf.key)
            context.load_cert_chain(certificate, key)
        return context
