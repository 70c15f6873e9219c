"""`recolocate` moves running VMs to their storage, and stops, waits or skips a VM when the cluster changes."""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.migrating_fleet import LIMIT, MigratingFleet, role_kubeconfig
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.measured import Measured
from tests.support.migration_controller import MigrationController
from tests.support.scenario import Scenario

pytestmark = pytest.mark.controlplane

NOT_MIGRATABLE: Object = {"conditions": [{"type": "LiveMigratable", "status": "False", "message": "host device"}]}
PAUSED: Object = {
    "conditions": [{"type": kind, "status": "True"} for kind in ("Ready", "LiveMigratable", "Paused")],
}


@pytest.fixture(scope="module")
def kubeconfig(plane: ControlPlane) -> Path:
    return role_kubeconfig(plane, "recolocate")


@pytest.fixture
def scenario(plain_scenario: Scenario) -> Scenario:
    return plain_scenario


@pytest.fixture
def controller(scenario: Scenario) -> Iterator[MigrationController]:
    with MigrationController(scenario) as controller:
        yield controller


@pytest.fixture
def fleet(scenario: Scenario, controller: MigrationController, kubeconfig: Path) -> MigratingFleet:
    return MigratingFleet(scenario, controller, kubeconfig)


def phases(controller: MigrationController) -> dict[str, str]:
    """Return the phase of each VM's newest migration."""
    found = sorted(controller.migrations(), key=lambda each: each["metadata"]["creationTimestamp"])
    return {each["spec"]["vmiName"]: each.get("status", {}).get("phase", "") for each in found}


def test_a_fleet_is_together_but_for_the_vms_that_the_dry_run_names(
    controller: MigrationController, fleet: MigratingFleet, measured: Measured
) -> None:
    a, b, c = fleet.nodes
    homes = {f"vm-{number:02}": (b, c, a)[number % 3] for number in range(12)}
    elsewhere = {a: b, b: c, c: a}
    vms = {name: (elsewhere[home] if int(name[3:]) < 8 else home, home) for name, home in homes.items()}
    fleet.add(vms, {"vm-03": NOT_MIGRATABLE, "vm-04": PAUSED})
    lines = fleet.run("recolocate", "-A", "-o", "json").stdout.splitlines()
    plan = {each["name"]: each for each in map(json.loads, lines)}
    assert len(plan) == 8
    hindered = {name: each["reason"] for name, each in plan.items() if each["action"] != "migrate"}
    assert hindered == {"vm-03": "NotLiveMigratable", "vm-04": "Paused"}
    assert controller.migrations() == []
    began = time.monotonic()
    result = fleet.run("recolocate", "-A", "--yes", "--parallel", "3", "--settle", "1")
    measured(f"recolocate: 6 VMs moved in {time.monotonic() - began:.0f} s, at most 3 at once")
    assert "do not support live migration" in result.stderr
    assert "6 VMs: 6 moved" in result.stdout
    assert {name for name, state in fleet.states().items() if state != "Together"} == {"vm-03", "vm-04"}
    assert controller.peak["all"] <= 3
    assert all(controller.peak[node] <= 2 for node in fleet.nodes)
    migration = controller.migrations()[0]["metadata"]
    assert migration["annotations"] == {"kubevirt.io/migrationUnschedulablePodTimeoutSeconds": "60"}
    assert migration["labels"] == {"kubevirt-scheduler/recolocate": "true"}

    again = fleet.run("recolocate", "-A", "--yes")
    assert again.stdout == "No VM to migrate.\n"


def test_ctrl_c_waits_for_the_migration_that_runs_and_twice_leaves_it(
    controller: MigrationController, fleet: MigratingFleet
) -> None:
    source, target, _ = fleet.nodes
    fleet.add(dict.fromkeys(("vm-1", "vm-2"), (source, target)))
    for vm, signals in ("vm-1", [signal.SIGINT]), ("vm-2", [signal.SIGINT, signal.SIGTERM]):
        left = len(signals) == 2  # the same signal twice at once counts as one
        assert controller.node("vm-2") == source
        controller.seconds = math.inf
        run = fleet.start_recolocate()
        fleet.wait(lambda vm=vm: phases(controller).get(vm) == "Running", "a migration that runs")  # type: ignore[misc]
        for number in signals:
            run.send_signal(number)
        if not left:
            assert run.stderr
            while not run.stderr.readline().startswith("Interrupted"):
                assert run.poll() is None
            controller.seconds = 0.0
        stdout, stderr = run.communicate(timeout=LIMIT)
        assert run.returncode == 1, stdout + stderr
        assert (f"Still running: migration recolocate-{vm}-" in stderr) is left
        assert ("1 moved" in stdout) is not left
        controller.seconds = 0.0
        fleet.wait(lambda vm=vm: controller.node(vm) == target, "the end of the migration")  # type: ignore[misc]
    assert set(fleet.states().values()) == {"Together"}


def test_two_runs_at_once_move_each_vm_once(controller: MigrationController, fleet: MigratingFleet) -> None:
    a, b, c = fleet.nodes
    ways = ((a, b), (b, c), (c, a))
    fleet.add({f"vm-{number}": ways[number % 3] for number in range(4)})
    controller.seconds = 1.0
    for run in [fleet.start_recolocate("--parallel", number) for number in ("1", "2")]:
        stdout, stderr = run.communicate(timeout=LIMIT)
        assert run.returncode == 0, stdout + stderr
        assert "failed" not in stdout
    assert set(fleet.states().values()) == {"Together"}
    assert controller.peak["all"] <= 3
