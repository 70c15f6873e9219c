"""What the chart installs for a webhook with a certificate: API objects, a ServiceAccount, and replicas of `serve`."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import ssl
import time
from collections.abc import Sequence
from pathlib import Path

from certs.cluster import ca_bundles
from certs.secret import decoded
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.process import Process
from tests.support.controlplane.rights import are_effective
from tests.support.webhook_process import NAMESPACE, PROGRAM, RBAC, REGISTRATIONS, Webhook, create_service_account

# The label of a pod that selects the Service port at which the API server calls the webhook, by the port's index.
PORT_LABEL = "test/port"
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"


class Installation:
    """A Secret, a Service and a MutatingWebhookConfiguration with the same name.

    The API server reuses a connection until it has been idle for 90 s, without verifying the certificate again. It has
    a connection pool for each port of a Service. So the Service has several ports, with a webhook for each: a pod that
    selects an unused port makes the API server open a new connection.

    A `port` parameter is the index of a Service port. `next_port` is the index at which the next stream of pods begins.
    """

    def __init__(self, plane: ControlPlane, name: str, port_count: int = 1) -> None:
        self.plane, self.name, self.port_count, self.next_port = plane, name, port_count, 0
        self.host = f"{name}.{NAMESPACE}.svc"
        self.secret_path, self.configuration_path = f"{SECRETS}/{name}-tls", f"{REGISTRATIONS}/{name}"
        self._services = f"/api/v1/namespaces/{NAMESPACE}/services"
        self._pods = f"/api/v1/namespaces/{name}/pods"

    def create_certificate_objects(self) -> Installation:
        """Create the empty Secret, and the configuration without a `caBundle`."""
        self.plane.request("POST", SECRETS, {"metadata": {"name": f"{self.name}-tls"}, "type": "Opaque"})
        webhooks = [self._webhook(port) for port in range(self.port_count)]
        self.plane.request("POST", REGISTRATIONS, {"metadata": {"name": self.name}, "webhooks": webhooks})
        return self

    def create_service(self) -> Installation:
        """Create the Service, and a namespace for pods."""
        self.plane.create_namespace(self.name)
        ports = [{"name": f"port-{port}", "port": 443 + port} for port in range(self.port_count)]
        self.plane.request("POST", self._services, {"metadata": {"name": self.name}, "spec": {"ports": ports}})
        return self

    def route(self, *addresses: tuple[str, int]) -> None:
        """Route the API server's calls of the Service to these addresses, in turn."""
        self.plane.route_service(NAMESPACE, self.name, *addresses)

    def delete_certificate_objects(self) -> None:
        """Delete the configuration, then the Secret. In this order, no pod waits for a webhook that has stopped."""
        for path in self.configuration_path, self.secret_path:
            self.plane.request("DELETE", path)

    def delete_service(self) -> None:
        """Delete the Service and the namespace for pods."""
        for path in f"{self._services}/{self.name}", f"/api/v1/namespaces/{self.name}":
            self.plane.request("DELETE", path)

    def secret_field(self, name: str) -> bytes:
        """Return a decoded field of the Secret; empty if it is missing."""
        return decoded(self.plane.request("GET", self.secret_path).get("data"), name)

    def ca_bundles(self) -> set[bytes]:
        """Return the distinct `caBundle`s of the configuration. In a steady state, there is one."""
        return set(ca_bundles(self.plane.request("GET", self.configuration_path)).values())

    def publish(self, *ca_bundles: bytes) -> None:
        """Set the `caBundle` of each webhook, like another client of the API server."""
        paths = (f"/webhooks/{port}/clientConfig/caBundle" for port in range(self.port_count))
        texts = (base64.b64encode(one).decode() for one in ca_bundles)
        operations = [{"op": "add", "path": path, "value": text} for path, text in zip(paths, texts, strict=True)]
        self.plane.request("PATCH", self.configuration_path, operations)

    def vm_pod(self, port: int = 0) -> Object:
        """Return a pod for which the API server calls the webhook at this port. No scheduler handles the pod."""
        labels = {"kubevirt.io": "virt-launcher", PORT_LABEL: str(port)}
        metadata = {"generateName": "virt-launcher-vm-", "namespace": self.name, "labels": labels}
        return {"metadata": metadata, "spec": {"schedulerName": "none", "containers": [{"name": "a", "image": "a"}]}}

    def create_pod(self, port: int = 0) -> None:
        """Create a pod as a dry run, which passes the same admission. Raises ApiError."""
        self.plane.request("POST", f"{self._pods}?dryRun=All", self.vm_pod(port))

    def _webhook(self, port: int) -> Object:
        service = {"namespace": NAMESPACE, "name": self.name, "path": "/mutate", "port": 443 + port}
        return {
            "name": f"port-{port}.kubevirt-scheduler.io",
            "clientConfig": {"service": service},
            "objectSelector": {"matchLabels": {PORT_LABEL: str(port)}},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self.name}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "failurePolicy": "Fail",
            "timeoutSeconds": 10,  # long, because the tests check trust, not latency
            "sideEffects": "NoneOnDryRun",
            "admissionReviewVersions": ["v1"],
        }


def create_kubeconfig(plane: ControlPlane, name: str) -> Path:
    """Create a ServiceAccount with the chart's rights on the installation `name`, and return its kubeconfig."""
    token = create_service_account(plane, name)
    limits = {"resourceNames": [name], "verbs": ["get", "update"]}
    group = "admissionregistration.k8s.io"
    rule = {"apiGroups": [group], "resources": ["mutatingwebhookconfigurations"]} | limits
    plane.request("PATCH", f"{RBAC}/clusterroles/{name}", [{"op": "add", "path": "/rules/-", "value": rule}])
    rule = {"apiGroups": [""], "resources": ["secrets"]} | limits | {"resourceNames": [f"{name}-tls"]}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    subject = {"kind": "ServiceAccount", "namespace": NAMESPACE, "name": name}
    roles, bindings = (f"{RBAC}/namespaces/{NAMESPACE}/{kind}" for kind in ("roles", "rolebindings"))
    plane.request("POST", roles, {"metadata": {"name": name}, "rules": [rule]})
    plane.request("POST", bindings, {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]})
    plane.wait(lambda: are_effective(plane, NAMESPACE, name), 20, f"the rights of {name}")
    return plane.write_kubeconfig(plane.folder / f"{name}-kubeconfig", token)


class Replica(Webhook):
    """One `serve` with its own options. Use as `with Replica(...)`, or start several processes, then wait for each."""

    def __init__(
        self, plane: ControlPlane, name: str, kubeconfig: Path, *options: str, program: Sequence[str] = (str(PROGRAM),)
    ) -> None:
        super().__init__(plane, name, kubeconfig, {}, tls=Path("none"))
        arguments = [one for one in self.process._arguments if not one.startswith("--tls-dir=")]
        position = arguments.index(str(PROGRAM))
        arguments[position : position + 1] = program
        self.process = Process(name, [*arguments, *options], self.process._health, self.folder)

    def crash_and_restart(self) -> None:
        """Kill the process and its worker with SIGKILL, and start the process again."""
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL)
        self.process.kill()
        # The folder of the certificate is in memory. In a container, it would vanish with the process.
        (folder,) = {Path(line["ca"]).parent for line in self.log() if "ca" in line}
        shutil.rmtree(folder)
        self.process.start()

    def served_certificate(self, ca_bundle: bytes, host: str) -> bytes:
        """Connect as a client that trusts these CAs, and return the server's certificate in PEM. Raises SSLError."""
        trust = ssl.create_default_context(cadata=ca_bundle.decode())
        with (
            socket.create_connection(self.address, 5) as raw,
            trust.wrap_socket(raw, server_hostname=host) as connection,
        ):
            return ssl.DER_cert_to_PEM_cert(connection.getpeercert(binary_form=True) or b"").encode()


def seconds_until(plane: ControlPlane, done: object, limit: float, what: str) -> float:
    """Wait until `done` returns a true value, and return the elapsed seconds."""
    begin = time.monotonic()
    plane.wait(done, limit, what)  # type: ignore[arg-type]
    return time.monotonic() - begin
