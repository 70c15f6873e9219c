"""The chart as installed: its process, its account, its Service, its certificate, and a VM beside its storage."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from chart import CHART, NAME, container, variables
from click.testing import CliRunner
from controlplane.plane import ControlPlane
from controlplane.process import Process, free_ports
from longhorn import Longhorn
from webhook_process import REGISTRATIONS
from world import CO_SCHEDULED, World

from webhook.commands.check import check

pytestmark = pytest.mark.controlplane

RELEASE = NAMESPACE = "chart-installed"
FULLNAME = f"{RELEASE}-{NAME}"
CONFIGURATION = f"{REGISTRATIONS}/{FULLNAME}"
PROGRAM = Path(sys.executable).with_name(NAME)


def replica(plane: ControlPlane) -> tuple[Process, int]:
    """A replica as the Deployment runs it, but for its addresses and the place of its account's token; and its port."""
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{FULLNAME}"
    contained, (https, http) = container(plane.request("GET", path)), free_ports(2)
    own = {"--bind": "127.0.0.1", "--https-port": str(https), "--http-port": str(http)}
    given = dict(argument.split("=", 1) for argument in contained["args"][1:])
    token = plane.service_account_token(NAMESPACE, FULLNAME)
    kubeconfig = plane.write_kubeconfig(plane.folder / f"{FULLNAME}-kubeconfig", token)
    environment = {"KUBECONFIG": str(kubeconfig)} | variables(contained)
    command = ["/usr/bin/env", "-i", *(f"{key}={value}" for key, value in environment.items()), str(PROGRAM)]
    command += [contained["args"][0], *(f"{key}={value}" for key, value in (given | own).items())]
    return Process(FULLNAME, command, f"http://127.0.0.1:{http}/readyz", plane.folder), https


@pytest.fixture
def installed(plane: ControlPlane) -> Iterator[Process]:
    """One replica, ready. Pods can't be run here: kwok only says so."""
    # `Fail`: nothing may be missed in silence here.
    plane.helm(
        "install",
        RELEASE,
        str(CHART),
        f"--namespace={NAMESPACE}",
        "--create-namespace",
        "--set=webhook.failurePolicy=Fail",
    )
    process, port = replica(plane)
    try:
        plane.route_service(NAMESPACE, FULLNAME, ("127.0.0.1", port))
        process.start()
        process.wait_until_healthy(30)
        yield process
    finally:
        process.kill()
        plane.helm("uninstall", RELEASE, f"--namespace={NAMESPACE}")


def bundles(plane: ControlPlane) -> set[str]:
    return {each["clientConfig"].get("caBundle", "") for each in plane.request("GET", CONFIGURATION)["webhooks"]}


def test_the_unmodified_chart_makes_its_certificate_and_places_a_vm(
    plane: ControlPlane, longhorn: Longhorn, installed: Process
) -> None:
    plane.wait(lambda: "" not in bundles(plane), 20, "the caBundle of both webhooks")
    world = World(plane, longhorn, None)
    world.add_nodes(8)
    _, node = world.warm_volume()

    def pinned() -> bool:
        pod = plane.request("POST", f"{world.pods}?dryRun=All", world.vm_pod("vm1", "disk1"))
        return bool(pod["metadata"]["annotations"].get(CO_SCHEDULED) == node)

    plane.wait(pinned, 10, "a decision that knows of the share-manager")
    assert world.running(world.start_vm("vm1", "disk1")) == node
    world.close()
    log = installed.log.read_text()
    assert [line for line in log.splitlines() if "forbidden" in line or "cannot " in line] == []


def test_an_upgrade_that_brings_a_new_webhook_has_its_bundle_filled_in(plane: ControlPlane, installed: Process) -> None:
    plane.wait(lambda: "" not in bundles(plane), 20, "the caBundle")
    for steering in "false", "true":
        plane.helm("upgrade", RELEASE, str(CHART), f"--namespace={NAMESPACE}", f"--set=settings.steering={steering}")
    plane.wait(lambda: "" not in bundles(plane) and len(bundles(plane)) == 1, 40, "the caBundle of both webhooks")
    assert installed.alive


@pytest.mark.usefixtures("installed")
def test_check_passes_once_it_is_installed(plane: ControlPlane) -> None:
    arguments = [f"--kubeconfig={plane.kubeconfig}", "--timeout=30", f"--webhook-configuration={FULLNAME}"]
    result = CliRunner().invoke(check, arguments)
    assert "with this decision: NoShareManager: " in result.output
    assert result.exit_code == 0
