"""The installed chart: process, service account, Service, certificate, and a VM placed next to its storage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.controlplane.plane import ControlPlane
from tests.support.helm_release import LONG_TIMEOUT, Release, Replicas
from tests.support.object_history import History
from tests.support.scenario import CO_SCHEDULED, Scenario
from tests.support.webhook_process import REGISTRATIONS
from webhook.commands.doctor.command import doctor

pytestmark = pytest.mark.controlplane


@pytest.fixture(scope="module")
def installed(plane: ControlPlane) -> Iterator[Replicas]:
    """One ready replica."""
    # With `Fail`, a missed call fails the pod creation instead of going unnoticed.
    release = Release(plane, "chart-installed").install("--set=webhook.failurePolicy=Fail,replicas=1", LONG_TIMEOUT)
    try:
        with Replicas(release) as replicas:
            yield replicas
    finally:
        release.uninstall()


def test_the_installed_chart_issues_a_certificate_and_places_a_vm(
    plane: ControlPlane, plain_scenario: Scenario, installed: Replicas
) -> None:
    plane.wait(installed.release.has_ca_bundle, 20, "the caBundle of both webhooks")
    plain_scenario.add_nodes(8)
    _, node = plain_scenario.add_attached_volume()

    def pinned() -> bool:
        pod = plane.request("POST", f"{plain_scenario.pods}?dryRun=All", plain_scenario.vm_pod("vm1", "disk1"))
        return bool(pod["metadata"]["annotations"].get(CO_SCHEDULED) == node)

    plane.wait(pinned, 20, "a decision based on the share-manager")
    assert plain_scenario.wait_running(plain_scenario.start_vm("vm1", "disk1")) == node
    assert installed.error_lines() == []


def test_a_webhook_added_by_an_upgrade_gets_its_ca_bundle(plane: ControlPlane, installed: Replicas) -> None:
    release = installed.release
    plane.wait(release.has_ca_bundle, 20, "the caBundle")
    # A GET could come too late to see the empty bundle: the program fills it in quickly.
    with History(plane, REGISTRATIONS) as published:
        release.remove_webhook("share-managers.kubevirt-scheduler.io")
        release.upgrade("--reuse-values")
        plane.wait(release.has_ca_bundle, 40, "the caBundle of both webhooks")
    assert b"" in published.ca_bundles(release.fullname)


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


def test_the_calls_pass_against_the_installed_chart_only_for_the_account_of_helm_test(
    plane: ControlPlane, installed: Replicas, tmp_path: Path
) -> None:
    kubeconfig = installed.release.test_kubeconfig(tmp_path / "kubeconfig")
    assert CliRunner().invoke(doctor, [f"--kubeconfig={kubeconfig}", "--calls=30"]).exit_code == 0
    assert CliRunner().invoke(doctor, [f"--kubeconfig={plane.kubeconfig}", "--calls=0"]).exit_code == 1
    elsewhere = [f"--kubeconfig={kubeconfig}", "--calls=0", "--namespace=kube-system"]
    assert "cannot create resource" in str(CliRunner().invoke(doctor, elsewhere).exception)
