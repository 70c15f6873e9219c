"""The chart as installed: its process, its account, its Service, its certificate, and a VM beside its storage."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from tests.support.controlplane.plane import ControlPlane
from tests.support.helm_release import PATIENT, Release, Replicas, build_both
from tests.support.longhorn import Longhorn
from tests.support.object_history import History
from tests.support.scenario import CO_SCHEDULED, World
from tests.support.webhook_process import REGISTRATIONS
from webhook.commands.check import check

pytestmark = pytest.mark.controlplane


@pytest.fixture
def installed(plane: ControlPlane) -> Iterator[Replicas]:
    """One replica, ready."""
    # `Fail`: nothing may be missed in silence here.
    release = Release(plane, "chart-installed").install("--set=webhook.failurePolicy=Fail,replicas=1", PATIENT)
    try:
        with Replicas(release) as replicas:
            yield replicas
    finally:
        release.uninstall()


def test_the_unmodified_chart_makes_its_certificate_and_places_a_vm(
    plane: ControlPlane, longhorn: Longhorn, installed: Replicas
) -> None:
    plane.wait(installed.release.is_called, 20, "the caBundle of both webhooks")
    world = World(plane, longhorn, None)
    world.add_nodes(8)
    _, node = world.warm_volume()

    def pinned() -> bool:
        pod = plane.request("POST", f"{world.pods}?dryRun=All", world.vm_pod("vm1", "disk1"))
        return bool(pod["metadata"]["annotations"].get(CO_SCHEDULED) == node)

    plane.wait(pinned, 20, "a decision that knows of the share-manager")
    assert world.running(world.start_vm("vm1", "disk1")) == node
    world.close()
    assert installed.complaints() == []


def test_an_upgrade_that_brings_a_new_webhook_has_its_bundle_filled_in(
    plane: ControlPlane, installed: Replicas
) -> None:
    release = installed.release
    plane.wait(release.is_called, 20, "the caBundle")
    # A look at it might come too late: the program may have filled it in by then.
    with History(plane, REGISTRATIONS) as published:
        release.take_away("share-managers.kubevirt-scheduler.io")
        release.upgrade()
        plane.wait(release.is_called, 40, "the caBundle of both webhooks")
    assert b"" in published.ca_bundles(release.fullname)


@pytest.mark.parametrize(
    ("program", "forced"),
    [("helm3", ["--force"]), ("helm", ["--force-replace", "--server-side=false"])],
    ids=["3", "4"],
)
def test_what_a_forced_upgrade_empties_is_filled_again(
    request: pytest.FixtureRequest, plane: ControlPlane, installed: Replicas, program: str, forced: list[str]
) -> None:
    build_both(request)
    release = installed.release
    plane.wait(release.is_called, 20, "the caBundle")
    (before,) = release.bundles()
    release.upgrade("--reuse-values", *forced, program=program)
    plane.wait(lambda: release.is_called() and before not in release.bundles(), 20, "another caBundle")
    assert {plane.request("GET", release.secret)["data"]["ca.crt"]} == release.bundles()


def test_check_passes_once_it_is_installed(plane: ControlPlane, installed: Replicas) -> None:
    arguments = [f"--kubeconfig={plane.kubeconfig}", "--timeout=30"]
    arguments += [f"--webhook-configuration={installed.release.fullname}"]
    result = CliRunner().invoke(check, arguments)
    assert "with this decision: NoShareManager: " in result.output
    assert result.exit_code == 0
