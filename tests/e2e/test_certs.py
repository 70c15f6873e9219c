"""Three replicas manage one certificate while the API server calls them. They start together on an empty Secret."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise

import pytest

from certs.authority import split
from certs.cluster import ca_bundles
from certs.secret import decoded
from tests.support.command_line import run_cli
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.longhorn import Longhorn
from tests.support.measured import Measured
from tests.support.object_history import History
from tests.support.paths import ROOT
from tests.support.pod_stream import PodStream
from tests.support.webhook_process import NAMESPACE, REGISTRATIONS, RIGHTS, Webhook, create_service_account

pytestmark = pytest.mark.controlplane

NAME = "self-managed"
HOST = f"{NAME}.{NAMESPACE}.svc"
SECRETS, SERVICES = (f"/api/v1/namespaces/{NAMESPACE}/{kind}" for kind in ("secrets", "services"))
SECRET, CONFIGURATION = f"{SECRETS}/{NAME}-tls", f"{REGISTRATIONS}/{NAME}"
# Seconds. Short, because a renewal ends when the old certificate expires. But it is due when a third is left, and that
# third must be more than the time between two passes and SPREAD.
LIFETIME = 60
SPREAD = 2  # seconds
PORTS = 40
# Then the pods use the next port, so the API server does a TLS handshake. 40 ports last for 60 s.
SECONDS_PER_PORT = 1.5
PORT_LABEL = "test/port"  # of a pod: the Service port at which the API server calls the webhook, by its index
MAX_RATE = 50.0  # pods per second: leaves the rest of two cores to the control plane and the webhook
STARTS = 'kubevirt_scheduler_certificate_steps_total{step="start"}'
RIGHTS_OF_CERTIFICATES = (
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations", ("get", "update")),
    ("", "secrets", ("get", "update")),
)


def webhook_of(port: int) -> Object:
    service = {"namespace": NAMESPACE, "name": NAME, "path": "/mutate", "port": 443 + port}
    return {
        "name": f"port-{port}.kubevirt-scheduler.io",
        "clientConfig": {"service": service},
        "objectSelector": {"matchLabels": {PORT_LABEL: str(port)}},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAME}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "failurePolicy": "Fail",
        "timeoutSeconds": 10,  # long, because the tests check trust, not latency
        "sideEffects": "NoneOnDryRun",
        "admissionReviewVersions": ["v1"],
    }


def vm_pod(port: int = 0) -> Object:
    """Return a pod for which the API server calls the webhook at this port. No scheduler handles the pod."""
    labels = {"kubevirt.io": "virt-launcher", PORT_LABEL: str(port)}
    metadata = {"generateName": "virt-launcher-vm-", "namespace": NAME, "labels": labels}
    return {"metadata": metadata, "spec": {"schedulerName": "none", "containers": [{"name": "a", "image": "a"}]}}


class ReplicaGroup:
    """Three replicas. The API server calls `called`, but not `standby`.

    The API server reuses a connection until it has been idle for 90 s, without verifying the certificate again. It has
    a connection pool for each port of a Service. So the Service has several ports, with a webhook for each: a pod that
    selects an unused port makes the API server open a new connection.
    """

    def __init__(self, plane: ControlPlane, replicas: list[Webhook]) -> None:
        self.plane, self.replicas = plane, replicas
        *self.called, self.standby = replicas
        self._pods = f"/api/v1/namespaces/{NAME}/pods"

    def all_serve_the_secret(self) -> bool:
        """Return whether all replicas serve the leaf in the Secret to a client that trusts the published CAs."""
        return self._serve_the_secret(self.replicas)

    def called_serve_the_secret(self) -> bool:
        return self._serve_the_secret(self.called)

    def connections_opened(self) -> int:
        """Return how many connections the API server has opened so far. It closes those that are idle for 90 s."""
        return self.plane.connections_opened(*(one.address for one in self.called))

    def secret_field(self, name: str) -> bytes:
        """Return a decoded field of the Secret; empty if it is missing."""
        return decoded(self.plane.request("GET", SECRET).get("data"), name)

    def ca_bundles(self) -> set[bytes]:
        """Return the distinct `caBundle`s of the configuration. In a steady state, there is one."""
        return set(ca_bundles(self.plane.request("GET", CONFIGURATION)).values())

    def creates_a_pod(self) -> bool:
        """Create a pod as a dry run, which passes the same admission. Raises ApiError."""
        return bool(self.plane.request("POST", f"{self._pods}?dryRun=All", vm_pod()))

    def stream(self) -> PodStream:
        """Create pods that use the ports of the webhook's Service in turn."""

        def body(elapsed: float) -> str:
            return json.dumps(vm_pod(int(elapsed / SECONDS_PER_PORT) % PORTS))

        return PodStream(self.plane, self._pods, body, threads=4, rate=MAX_RATE)

    def _serve_the_secret(self, replicas: list[Webhook]) -> bool:
        (ca_bundle,), leaf = self.ca_bundles(), self.secret_field("tls.crt")
        return all(served_certificate(one, ca_bundle) == leaf for one in replicas)


def served_certificate(replica: Webhook, ca_bundle: bytes) -> bytes:
    """Connect as a client that trusts these CAs, and return the server's certificate in PEM. Raises SSLError."""
    trust = ssl.create_default_context(cadata=ca_bundle.decode())
    with (
        socket.create_connection(replica.address, 5) as raw,
        trust.wrap_socket(raw, server_hostname=HOST) as connection,
    ):
        return ssl.DER_cert_to_PEM_cert(connection.getpeercert(binary_form=True) or b"").encode()


def crash_and_restart(replica: Webhook) -> None:
    """Kill the process and its worker with SIGKILL, and start the process again."""
    for pid in replica.pids():
        os.kill(pid, signal.SIGKILL)
    replica.process.kill()
    replica.process.start()


@pytest.fixture(scope="module")
def group(plane: ControlPlane, longhorn: Longhorn) -> Iterator[ReplicaGroup]:
    del longhorn  # needed for its CRD
    token = create_service_account(plane, NAME, RIGHTS + RIGHTS_OF_CERTIFICATES)
    kubeconfig = plane.write_kubeconfig(plane.folder / f"{NAME}-kubeconfig", token)
    options = f"--tls-secret={NAMESPACE}/{NAME}-tls", f"--tls-name={HOST}", f"--webhook-configuration={NAME}"
    program = sys.executable, str(ROOT / "tests/e2e/short_lived_certificates.py"), str(LIFETIME), str(SPREAD)
    replicas = [
        Webhook(plane, f"{NAME}-{number}", kubeconfig, {}, arguments=options, program=program) for number in range(3)
    ]
    plane.create_namespace(NAME)
    ports = [{"name": f"port-{port}", "port": 443 + port} for port in range(PORTS)]
    webhooks = [webhook_of(port) for port in range(PORTS)]
    plane.request("POST", SERVICES, {"metadata": {"name": NAME}, "spec": {"ports": ports}})
    plane.request("POST", SECRETS, {"metadata": {"name": f"{NAME}-tls"}, "type": "Opaque"})
    plane.request("POST", REGISTRATIONS, {"metadata": {"name": NAME}, "webhooks": webhooks})
    with ExitStack() as stack:
        # The configuration first, so that no pod waits for a webhook that has stopped.
        for path in f"/api/v1/namespaces/{NAME}", f"{SERVICES}/{NAME}", SECRET, CONFIGURATION:
            stack.callback(plane.request, "DELETE", path)
        for each in replicas:
            stack.callback(each.stop)
            each.process.start()
        for each in replicas:
            each.process.wait_until_healthy()
        group = ReplicaGroup(plane, replicas)
        plane.wait(group.all_serve_the_secret, 20, "all replicas serve one leaf")
        assert sum(each.metric(STARTS) for each in replicas) == 1, "one replica issued the certificate"
        assert len(split(group.secret_field("ca.crt"))) == 1
        plane.route_service(NAMESPACE, NAME, *(each.address for each in group.called))
        plane.wait(group.creates_a_pod, 20, "the first successful webhook call")
        yield group


def test_a_renewal_fails_no_pod_creation_while_a_replica_is_killed(
    plane: ControlPlane, group: ReplicaGroup, measured: Measured
) -> None:
    with History(plane, REGISTRATIONS) as published, group.stream() as stream:
        stream.wait_for_more(50)
        old = group.secret_field("tls.crt")
        options = f"--secret={NAMESPACE}/{NAME}-tls", f"--webhook-configuration={NAME}"
        renewal = run_cli("certs", "renew", "--yes", *options, f"--kubeconfig={plane.kubeconfig}")
        crash_and_restart(group.standby)
        plane.wait(lambda: group.secret_field("tls.crt") != old, 30, "the next certificate is the serving one")
        plane.wait(group.called_serve_the_secret, 20, "the called replicas serve the new certificate")
        before = group.connections_opened()
        stream.wait_for_more(200)
        opened = group.connections_opened() - before
        group.standby.process.wait_until_healthy()
        plane.wait(group.all_serve_the_secret, 20, "all replicas serve the new certificate")
        plane.wait(lambda: old not in published.ca_bundles(NAME)[-1], LIFETIME + 10, "the old certificate is dropped")
        stream.wait_for_more(100)
    trusted = [set(split(each)) for each in published.ca_bundles(NAME)]
    assert all(len(earlier ^ later) == 1 for earlier, later in pairwise(trusted)), "one changes at a time"
    assert (renewal.exit_code, renewal.stderr) == (0, "")
    assert "  renew: every API server has had time to read the next certificate\n" in renewal.stdout
    count = len(set.union(*trusted)) - 1
    measured(
        f"{count} renewals of the certificate: {len(stream.failed)} of {stream.count} creations failed, "
        f"{stream.rate:.0f} a second; {opened} connections opened after the first one was served"
    )
    assert stream.failed == []
    assert opened >= 1
