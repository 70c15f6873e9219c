"""The installed chart with `tls.clientCA`: a real API server with a client certificate is served, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from certs.authority import issue_ca
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.programs import CLIENT_CA, CLIENT_NAMESPACE
from tests.support.helm_release import LONG_TIMEOUT, Release, Replicas
from webhook.commands.doctor.command import doctor

pytestmark = pytest.mark.controlplane

CONFIG_MAP = f"/api/v1/namespaces/{CLIENT_NAMESPACE}/configmaps"
NAME = "api-server-client-ca"


def client_ca(*certificates: bytes) -> dict[str, str]:
    """The content of the ConfigMap."""
    return {"ca.crt": b"".join(certificates).decode()}


def own_ca(plane: ControlPlane) -> bytes:
    """The CA of the API server's certificate."""
    return (plane.folder / CLIENT_CA).read_bytes()


@pytest.fixture
def installed(plane: ControlPlane) -> Iterator[Replicas]:
    """One ready replica, for which the API server has a certificate."""
    plane.create_namespace(CLIENT_NAMESPACE)
    plane.request("POST", CONFIG_MAP, {"metadata": {"name": NAME}, "data": client_ca(own_ca(plane))})
    release = Release(plane, CLIENT_NAMESPACE).install(
        f"--set=webhook.failurePolicy=Fail,replicas=1,tls.clientCA.configMap={NAME}", LONG_TIMEOUT
    )
    try:
        with Replicas(release) as replicas:
            plane.wait(release.has_ca_bundle, 20, "the caBundle of both webhooks")
            yield replicas
    finally:
        release.uninstall()


def run_calls(installed: Replicas, kubeconfig: Path) -> Result:
    """Run the command of `helm test`, over a new connection of the API server."""
    installed.close_connections()
    configuration = installed.release.fullname
    arguments = [f"--kubeconfig={kubeconfig}", "--calls=0", f"--webhook-configuration={configuration}"]
    return CliRunner().invoke(doctor, arguments)


def test_the_calls_pass_with_a_client_ca_that_is_rotated_without_a_restart(
    plane: ControlPlane, installed: Replicas, tmp_path: Path
) -> None:
    """The replica is ready, so the probes need no certificate either."""

    def change(*certificates: bytes) -> None:
        plane.request("PATCH", f"{CONFIG_MAP}/{NAME}", {"data": client_ca(*certificates)})

    first, second = own_ca(plane), issue_ca(datetime.now(UTC)).certificate
    kubeconfig = installed.release.test_kubeconfig(tmp_path / "kubeconfig")
    plane.wait(lambda: run_calls(installed, kubeconfig).exit_code == 0, 20, "a decision")
    change(second)
    plane.wait(lambda: run_calls(installed, kubeconfig).exit_code == 1, 20, "a rejected API server")
    rejected = run_calls(installed, kubeconfig)
    assert "tls: unknown certificate authority" in rejected.output
    assert "client certificates (tls.clientCA)" in rejected.output
    change(first, second)
    plane.wait(lambda: run_calls(installed, kubeconfig).exit_code == 0, 20, "a decision with both CAs")
