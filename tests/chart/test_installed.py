"""The installed chart: a forced upgrade, and the calls of `helm test` with a client CA."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import Result

from tests.support.authority import issue_ca
from tests.support.command_line import run_cli
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.programs import CLIENT_CA, CLIENT_NAMESPACE
from tests.support.helm_release import LONG_TIMEOUT, Release, Replicas

pytestmark = pytest.mark.controlplane

CONFIG_MAP, NAME = f"/api/v1/namespaces/{CLIENT_NAMESPACE}/configmaps", "api-server-client-ca"


def client_ca(*certificates: bytes) -> dict[str, str]:
    """The content of the ConfigMap."""
    return {"ca.crt": b"".join(certificates).decode()}


def own_ca(plane: ControlPlane) -> bytes:
    """The CA of the API server's certificate."""
    return (plane.folder / CLIENT_CA).read_bytes()


@pytest.fixture(scope="module")
def installed(plane: ControlPlane) -> Iterator[Replicas]:
    """One ready replica with `tls.clientCA`, for which the API server has a certificate."""
    plane.create_namespace(CLIENT_NAMESPACE)
    plane.request("POST", CONFIG_MAP, {"metadata": {"name": NAME}, "data": client_ca(own_ca(plane))})
    # With `Fail`, a missed call fails the pod creation instead of going unnoticed.
    release = Release(plane, CLIENT_NAMESPACE).install(
        f"--set=webhook.failurePolicy=Fail,replicas=1,tls.clientCA.configMap={NAME}", LONG_TIMEOUT
    )
    try:
        with Replicas(release) as replicas:
            yield replicas
    finally:
        release.uninstall()


@pytest.mark.parametrize(
    ("program", "forced"),
    [
        pytest.param("helm3", ["--force"], marks=pytest.mark.needs("helm3"), id="helm3"),
        pytest.param("helm", ["--force-replace", "--server-side=false"], id="helm4"),
    ],
)
def test_a_forced_upgrade_empties_the_ca_bundle_and_the_program_restores_it(
    plane: ControlPlane, installed: Replicas, program: str, forced: list[str]
) -> None:
    release = installed.release
    plane.wait(release.has_ca_bundle, 20, "the caBundle")
    (before,) = release.ca_bundles()
    release.upgrade("--reuse-values", *forced, program=program)
    plane.wait(lambda: release.has_ca_bundle() and before not in release.ca_bundles(), 20, "another caBundle")
    assert {plane.request("GET", release.secret)["data"]["ca.crt"]} == release.ca_bundles()


def run_calls(installed: Replicas, kubeconfig: Path, *arguments: str) -> Result:
    """Run the command of `helm test`, over a new connection of the API server."""
    installed.close_connections()
    configuration = f"--webhook-configuration={installed.release.fullname}"
    return run_cli("doctor", f"--kubeconfig={kubeconfig}", "--calls=0", configuration, *arguments)


def test_the_calls_pass_for_the_account_of_helm_test_only_and_follow_a_rotated_client_ca(
    plane: ControlPlane, installed: Replicas, tmp_path: Path
) -> None:
    """The replica is ready, so the probes need no certificate."""

    def change(*certificates: bytes) -> None:
        plane.request("PATCH", f"{CONFIG_MAP}/{NAME}", {"data": client_ca(*certificates)})

    first, second = own_ca(plane), issue_ca(datetime.now(UTC)).certificate
    kubeconfig = installed.release.test_kubeconfig(tmp_path / "kubeconfig")
    plane.wait(lambda: run_calls(installed, kubeconfig).exit_code == 0, 20, "a decision")
    assert installed.error_lines() == []
    assert run_calls(installed, plane.kubeconfig).exit_code == 1
    elsewhere = run_calls(installed, kubeconfig, "--namespace=kube-system")
    assert (elsewhere.exit_code, "cannot create resource" in elsewhere.stderr) == (2, True)
    change(second)
    # In one call of ten, the API server reports the failed write of its request ("use of closed network connection")
    # instead of the alert that it has read: net/http's Transport writes and reads in two goroutines.
    rejections = list[Result]()

    def has_reason() -> bool:
        rejections.append(run_calls(installed, kubeconfig))
        return "tls: unknown certificate authority" in rejections[-1].output

    plane.wait(has_reason, 20, "a rejected API server")
    assert rejections[-1].exit_code == 1
    assert "client certificates (tls.clientCA)" in rejections[-1].output
    change(first, second)
    plane.wait(lambda: run_calls(installed, kubeconfig).exit_code == 0, 20, "a decision with both CAs")
