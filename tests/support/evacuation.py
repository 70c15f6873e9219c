"""KubeVirt's answer to evictions, and its evacuation controller, on a real API server. They do what its source says.

pkg/virt-api/webhooks/validating-webhook/admitters/pod-eviction-admitter.go: by the eviction strategy of the VMI, the
eviction of its pod is admitted, or denied with status 429. The denial of one that shall migrate also marks the VMI.
pkg/virt-controller/watch/drain/evacuation/evacuation.go: a marked VMI without an unfinished migration gets one.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from certs.authority import issue_ca, issue_leaf
from tests.support.controlplane.api import LOOPBACK, Object
from tests.support.migration_controller import FINAL
from tests.support.reconcile_loop import ReconcileLoop
from tests.support.scenario import Scenario

REGISTRATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
RULE: Object = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/eviction"]}
MIGRATES = ("LiveMigrate", "LiveMigrateIfPossible")


class Evacuation:
    """`with Evacuation(scenario)`: answer the evictions of a scenario's VMs, and migrate those that are marked."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario, self._plane = scenario, scenario.plane
        group = f"/apis/kubevirt.io/v1/namespaces/{scenario.namespace}"
        self._vmis, self._migrations = f"{group}/virtualmachineinstances", f"{group}/virtualmachineinstancemigrations"
        self._loop = ReconcileLoop(f"evacuation-{scenario.namespace}", self._reconcile)
        self._server = ThreadingHTTPServer((LOOPBACK, 0), self._handler())

    def __enter__(self) -> Evacuation:
        ca = issue_ca(datetime.now(UTC))
        leaf, folder = issue_leaf(ca, ["localhost"], datetime.now(UTC)), self._plane.folder
        (folder / "evacuation.pem").write_bytes(leaf.certificate + leaf.key)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(folder / "evacuation.pem")
        self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, name="evacuation-webhook", daemon=True).start()
        url = f"https://localhost:{self._server.server_port}/"
        webhook = {
            "name": "virt-launcher-eviction-interceptor.kubevirt.io",
            "clientConfig": {"url": url, "caBundle": base64.b64encode(ca.certificate).decode()},
            "rules": [RULE],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self._scenario.namespace}},
            "sideEffects": "NoneOnDryRun",
            "admissionReviewVersions": ["v1"],
        }
        metadata = {"name": f"evacuation-{self._scenario.namespace}"}
        self._plane.request("POST", REGISTRATIONS, {"metadata": metadata, "webhooks": [webhook]})
        self._loop.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.stop()
        self._plane.request("DELETE", f"{REGISTRATIONS}/evacuation-{self._scenario.namespace}")
        self._server.shutdown()
        self._server.server_close()

    def denial(self, pod: str) -> str:
        """Return why the eviction of a pod is denied, empty if it is admitted. Mark a VMI that shall migrate."""
        found = self._scenario.get(pod)
        metadata = found["metadata"]
        if metadata.get("labels", {}).get("kubevirt.io") != "virt-launcher" or found["status"].get("phase") in FINAL:
            return ""
        vmi = self._plane.request("GET", f"{self._vmis}/{metadata['annotations']['kubevirt.io/domain']}")
        strategy, name = vmi["spec"].get("evictionStrategy", "None"), vmi["metadata"]["name"]
        if strategy not in MIGRATES or (strategy == "LiveMigrateIfPossible" and not _is_migratable(vmi)):
            return ""
        if not _is_migratable(vmi):
            return f"VMI {name} is configured with an eviction strategy but is not live-migratable"
        node = found["spec"]["nodeName"]
        if vmi["status"].get("evacuationNodeName"):
            return f'Evacuation in progress: Eviction triggered evacuation of VMI "{name}"'
        if vmi["status"]["nodeName"] != node:
            return "Eviction request for target Pod"
        self._plane.request("PATCH", f"{self._vmis}/{name}/status", {"status": {"evacuationNodeName": node}})
        return f'Eviction triggered evacuation of VMI "{name}"'

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        evacuation = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
                problem = evacuation.denial(request["name"])
                response = {"uid": request["uid"], "allowed": not problem}
                response |= {"status": {"code": 429, "message": problem}} if problem else {}
                review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
                body = json.dumps(review).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def _reconcile(self) -> None:
        migrations = self._plane.request("GET", self._migrations)["items"]
        unfinished = {
            each["spec"]["vmiName"] for each in migrations if each.get("status", {}).get("phase") not in FINAL
        }
        for vmi in self._plane.request("GET", self._vmis)["items"]:
            name, status = vmi["metadata"]["name"], vmi.get("status", {})
            marked = status.get("evacuationNodeName")
            if marked and marked != status["nodeName"]:
                self._plane.request("PATCH", f"{self._vmis}/{name}/status", {"status": {"evacuationNodeName": None}})
            elif marked and name not in unfinished:
                metadata = {"generateName": "kubevirt-evacuation-"}
                kind = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration"}
                self._plane.request("POST", self._migrations, kind | {"metadata": metadata, "spec": {"vmiName": name}})


def _is_migratable(vmi: Object) -> bool:
    conditions = vmi["status"].get("conditions", [])
    return any((each["type"], each["status"]) == ("LiveMigratable", "True") for each in conditions)
