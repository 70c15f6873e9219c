"""What the chart installs for a webhook that looks after its certificate: objects, rights, and replicas of `serve`."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import ssl
import time
from pathlib import Path

from certs.bundle import content
from certs.cluster import ca_bundles
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.process import Process
from tests.support.controlplane.rights import are_known
from tests.support.webhook_process import NAMESPACE, RBAC, REGISTRATIONS, Webhook, grant

# A pod says with this label at which door of the Service the API server is to call for it.
DOOR = "test/door"
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"


class Installation:
    """A Secret, a Service and a MutatingWebhookConfiguration under one name.

    The API server keeps a connection for 90 s and asks nobody anew whom it trusts on it. It keeps one set of them for
    each port of a Service: so the Service has several doors, with a webhook for each, and a pod that comes by a door
    that was not used yet has the API server shake hands.
    """

    def __init__(self, plane: ControlPlane, name: str, doors: int = 1) -> None:
        self.plane, self.name, self.doors, self.next_door = plane, name, doors, 0
        self.host = f"{name}.{NAMESPACE}.svc"
        self.secret, self.configuration = f"{SECRETS}/{name}-tls", f"{REGISTRATIONS}/{name}"
        self._services = f"/api/v1/namespaces/{NAMESPACE}/services"
        self._pods = f"/api/v1/namespaces/{name}/pods"

    def make(self) -> Installation:
        """Make the empty Secret, and the configuration, which trusts nobody."""
        self.plane.request("POST", SECRETS, {"metadata": {"name": f"{self.name}-tls"}, "type": "Opaque"})
        webhooks = [self._webhook(door) for door in range(self.doors)]
        self.plane.request("POST", REGISTRATIONS, {"metadata": {"name": self.name}, "webhooks": webhooks})
        return self

    def open(self) -> Installation:
        """Make a namespace for pods, and the Service."""
        self.plane.create_namespace(self.name)
        ports = [{"name": f"door-{door}", "port": 443 + door} for door in range(self.doors)]
        self.plane.request("POST", self._services, {"metadata": {"name": self.name}, "spec": {"ports": ports}})
        return self

    def call(self, *addresses: tuple[str, int]) -> None:
        """Have the API server's calls end at these addresses, in turn."""
        self.plane.route_service(NAMESPACE, self.name, *addresses)

    def unmake(self) -> None:
        """Take away what `make` made: first the configuration, so that no pod waits for us."""
        for path in self.configuration, self.secret:
            self.plane.request("DELETE", path)

    def close(self) -> None:
        """Take away what `open` made."""
        for path in f"{self._services}/{self.name}", f"/api/v1/namespaces/{self.name}":
            self.plane.request("DELETE", path)

    def field(self, name: str) -> bytes:
        """Return a field of the Secret, empty where there is none."""
        return content(self.plane.request("GET", self.secret), name)

    def published(self) -> set[bytes]:
        """Return the different `caBundle`s of the configuration: one, while all is well."""
        return set(ca_bundles(self.plane.request("GET", self.configuration)).values())

    def publish(self, *ca_bundles: bytes) -> None:
        """Set the `caBundle` of each webhook, as somebody from outside does it."""
        paths = (f"/webhooks/{door}/clientConfig/caBundle" for door in range(self.doors))
        texts = (base64.b64encode(one).decode() for one in ca_bundles)
        operations = [{"op": "add", "path": path, "value": text} for path, text in zip(paths, texts, strict=True)]
        self.plane.request("PATCH", self.configuration, operations)

    def vm_pod(self, door: int = 0) -> Object:
        """Return a pod for which the webhook is called at a door. No scheduler and no controller looks at it."""
        labels = {"kubevirt.io": "virt-launcher", DOOR: str(door)}
        metadata = {"generateName": "virt-launcher-vm-", "namespace": self.name, "labels": labels}
        return {"metadata": metadata, "spec": {"schedulerName": "none", "containers": [{"name": "a", "image": "a"}]}}

    def create(self, door: int = 0) -> None:
        """Create a pod, as a dry run: admission is the same. Raises ApiError."""
        self.plane.request("POST", f"{self._pods}?dryRun=All", self.vm_pod(door))

    def _webhook(self, door: int) -> Object:
        service = {"namespace": NAMESPACE, "name": self.name, "path": "/mutate", "port": 443 + door}
        return {
            "name": f"door-{door}.kubevirt-scheduler.io",
            "clientConfig": {"service": service},
            "objectSelector": {"matchLabels": {DOOR: str(door)}},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self.name}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "failurePolicy": "Fail",
            "timeoutSeconds": 10,  # what is asked here is whether it is trusted, not how fast it is
            "sideEffects": "NoneOnDryRun",
            "admissionReviewVersions": ["v1"],
        }


def account(plane: ControlPlane, name: str, *of: str, secret: bool = True, publishing: bool = True) -> Path:
    """Make a ServiceAccount with the chart's rights for the installations of these names; return its kubeconfig."""
    token = grant(plane, name)
    only = {"resourceNames": list(of), "verbs": ["get", "update"]}
    group = "admissionregistration.k8s.io"
    rule = {"apiGroups": [group], "resources": ["mutatingwebhookconfigurations"]} | only
    if publishing:
        plane.request("PATCH", f"{RBAC}/clusterroles/{name}", [{"op": "add", "path": "/rules/-", "value": rule}])
    if secret:
        rule = {"apiGroups": [""], "resources": ["secrets"]} | only | {"resourceNames": [f"{one}-tls" for one in of]}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
        subject = {"kind": "ServiceAccount", "namespace": NAMESPACE, "name": name}
        roles, bindings = (f"{RBAC}/namespaces/{NAMESPACE}/{kind}" for kind in ("roles", "rolebindings"))
        plane.request("POST", roles, {"metadata": {"name": name}, "rules": [rule]})
        plane.request("POST", bindings, {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]})
    plane.wait(lambda: are_known(plane, NAMESPACE, name), 20, f"the rights of {name}")
    return plane.write_kubeconfig(plane.folder / f"{name}-kubeconfig", token)


class Replica(Webhook):
    """One `serve` with options of its own. `with Replica(...)`, or `start` some and wait for each."""

    def __init__(self, plane: ControlPlane, name: str, kubeconfig: Path, *options: str) -> None:
        super().__init__(plane, name, kubeconfig, {}, tls=Path("none"))
        given = [one for one in self.process._arguments if not one.startswith("--tls-dir=")]
        self.process = Process(name, [*given, *options], self.process._health, self.folder)

    def __exit__(self, *_: object) -> None:
        # Told twice, it hurries: nobody is called any more who would need its last second.
        self.ask_to_end()
        super().__exit__()

    def crash(self) -> None:
        """End it and its worker as kill -9 does, and start it again."""
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL)
        self.process.kill()
        # In memory, and in a container gone with it.
        (folder,) = {Path(line["ca"]).parent for line in self.log() if "ca" in line}
        shutil.rmtree(folder)
        self.process.start()

    def shown(self, ca_bundle: bytes, host: str) -> bytes:
        """Shake hands as a client that trusts these CAs, and return the certificate in PEM. Raises SSLError."""
        trust = ssl.create_default_context(cadata=ca_bundle.decode())
        with (
            socket.create_connection(self.address, 5) as raw,
            trust.wrap_socket(raw, server_hostname=host) as connection,
        ):
            return ssl.DER_cert_to_PEM_cert(connection.getpeercert(binary_form=True) or b"").encode()


def seconds_until(plane: ControlPlane, done: object, limit: float, what: str) -> float:
    """Wait for something, and return how long that took."""
    begin = time.monotonic()
    plane.wait(done, limit, what)  # type: ignore[arg-type]
    return time.monotonic() - begin
