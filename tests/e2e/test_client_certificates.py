"""A real API server presents its client certificate (AdmissionConfiguration), and only then is it served."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from certs.authority import Issued, issue_ca, issue_leaf
from tests.support.client_certificates import replace
from tests.support.controlplane.api import ApiError
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.programs import CLIENTS, SERVICE_NAMESPACE
from tests.support.longhorn import Longhorn
from tests.support.webhook_process import NAMESPACE, REGISTRATIONS, Webhook

pytestmark = pytest.mark.controlplane

NAME = "client-certificates"
FIRST, SECOND = CLIENTS
ANONYMOUS = "no-client"  # the API server has no client certificate for the Service of this name
LABEL = "test/client"
SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"
CREATIONS = 40  # per step of the rotation


class ClientService:
    """A Service of the webhook, to which the API server presents one certificate, or none."""

    def __init__(self, plane: ControlPlane, name: str, webhook: Webhook) -> None:
        self.plane, self.name = plane, name
        plane.request("POST", SERVICES, {"metadata": {"name": name}, "spec": {"ports": [{"port": 443}]}})
        self._address = plane.route_service(NAMESPACE, name, webhook.address), 443

    def create_pod(self) -> None:
        """Create a pod as a dry run, over a new connection to the webhook. Raises ApiError if the call fails."""
        pod = {
            "metadata": {"generateName": "pod-", "labels": {LABEL: self.name}},
            "spec": {"containers": [{"name": "a", "image": "a"}]},
        }
        self.plane.close_connections(*self._address)
        self.plane.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", pod)


def configuration(ca: Issued, *names: str) -> dict[str, object]:
    """A configuration with one webhook for each Service. `Fail` makes each failed call an error."""
    webhooks = [
        {
            "name": f"{name}.kubevirt-scheduler.io",
            "clientConfig": {
                "service": {"namespace": NAMESPACE, "name": name, "path": "/mutate"},
                "caBundle": base64.b64encode(ca.certificate).decode(),
            },
            "objectSelector": {"matchLabels": {LABEL: name}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "failurePolicy": "Fail",
            "timeoutSeconds": 10,
            "sideEffects": "NoneOnDryRun",
            "admissionReviewVersions": ["v1"],
        }
        for name in names
    ]
    return {"metadata": {"name": NAME}, "webhooks": webhooks}


@pytest.fixture(scope="module")
def client_ca(tmp_path_factory: pytest.TempPathFactory, plane: ControlPlane) -> Path:
    file = tmp_path_factory.mktemp("client-ca") / "ca.crt"
    replace(file, ca_of(plane, FIRST))
    return file


def ca_of(plane: ControlPlane, name: str) -> bytes:
    """The CA of the certificate that the API server presents to this Service."""
    return (plane.folder / f"{name}-ca.crt").read_bytes()


@pytest.fixture(scope="module")
def services(
    plane: ControlPlane, longhorn: Longhorn, kubeconfig: Path, client_ca: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, ClientService]]:
    """The Services of one webhook that accepts only clients with a certificate of the CA in `client_ca`."""
    del longhorn  # needed for its CRD
    assert SERVICE_NAMESPACE == NAMESPACE
    names, folder, ca = (FIRST, SECOND, ANONYMOUS), tmp_path_factory.mktemp("tls"), issue_ca(datetime.now(UTC))
    leaf = issue_leaf(ca, [f"{name}.{NAMESPACE}.svc" for name in names], datetime.now(UTC))
    for file, content in ("tls.crt", leaf.certificate), ("tls.key", leaf.key), ("ca.crt", ca.certificate):
        (folder / file).write_bytes(content)
    with ExitStack() as stack:
        arguments = (f"--client-ca-file={client_ca}",)
        webhook = stack.enter_context(Webhook(plane, NAME, kubeconfig, {}, tls=folder, arguments=arguments))
        found = {name: ClientService(plane, name, webhook) for name in names}
        for name in names:
            stack.callback(plane.request, "DELETE", f"{SERVICES}/{name}")
        plane.request("POST", REGISTRATIONS, configuration(ca, *names))
        # The webhook's own `__exit__` deletes the configuration, which has its name.
        plane.wait(lambda: rejection(found[ANONYMOUS]), 20, "the API server knows the configuration")
        yield found


def rejection(service: ClientService) -> str:
    """The API server's words on a call that failed; empty if it succeeded.

    The alert can arrive while the API server still writes. Then its client may report that the connection is closed
    instead of the alert. Such a call is repeated.
    """
    words = ""
    for _ in range(CREATIONS):
        try:
            service.create_pod()
        except ApiError as error:
            words = str(error)
        else:
            return ""
        if "remote error: tls" in words:
            break
    return words


def test_an_api_server_with_a_client_certificate_is_served(services: dict[str, ClientService]) -> None:
    services[FIRST].create_pod()


def test_an_api_server_without_a_client_certificate_is_not_served(services: dict[str, ClientService]) -> None:
    assert "remote error: tls: certificate required" in rejection(services[ANONYMOUS])


def test_an_api_server_with_a_certificate_of_another_ca_is_not_served(services: dict[str, ClientService]) -> None:
    assert "remote error: tls: unknown certificate authority" in rejection(services[SECOND])


def test_a_rotation_of_the_client_ca_fails_no_call(
    plane: ControlPlane, services: dict[str, ClientService], client_ca: Path
) -> None:
    """Each call is on a new connection. The API server's second certificate is of the new CA."""
    old, new = ca_of(plane, FIRST), ca_of(plane, SECOND)
    for content, presented in ((old, FIRST), (old + new, FIRST), (old + new, SECOND), (new, SECOND)):
        replace(client_ca, content)
        for _ in range(CREATIONS):
            services[presented].create_pod()
    assert "remote error: tls: unknown certificate authority" in rejection(services[FIRST])
    replace(client_ca, old)
