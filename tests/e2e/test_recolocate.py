"""`recolocate` moves running VMs to their storage, also twice at once, and can be interrupted.

The commands have the rights of the chart's roles for people, and no others.
"""

from __future__ import annotations

import json
import math
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.command_line import run_cli
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.helm_chart import NAME, find_one, render
from tests.support.migration_controller import MigrationController
from tests.support.scenario import HOSTNAME, Scenario
from tests.support.webhook_process import PROGRAM, create_service_account

pytestmark = pytest.mark.controlplane

LIMIT = 300  # seconds for one command, which takes 60 on a busy machine
NOT_MIGRATABLE: Object = {"conditions": [{"type": "LiveMigratable", "status": "False", "message": "host device"}]}
PAUSED: Object = {
    "conditions": [{"type": kind, "status": "True"} for kind in ("Ready", "LiveMigratable", "Paused")],
}


def role_kubeconfig(plane: ControlPlane, name: str) -> Path:
    """Write a kubeconfig with the rights of this ClusterRole of the chart, and no others."""
    role = find_one(render({"rbac": {name: {"create": True}}}), "ClusterRole", f"{NAME}-{name}")
    rights = tuple(
        (group, kind, tuple(rule["verbs"]))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for kind in rule["resources"]
    )
    token = create_service_account(plane, f"{name}-e2e", rights)
    return plane.write_kubeconfig(plane.folder / f"{name}-kubeconfig", token)


class Fleet:
    """VMs with one disk each, whose share-managers run on chosen nodes; one StorageClass for each of these nodes."""

    def __init__(self, scenario: Scenario, controller: MigrationController, kubeconfig: Path) -> None:
        self.scenario, self.controller, self.kubeconfig = scenario, controller, kubeconfig
        self.nodes = scenario.add_nodes(3)
        for node in self.nodes:
            scenario.add_storage_class(f"class-{node}", HOSTNAME, node)

    def add(self, vms: dict[str, tuple[str, str]], statuses: dict[str, Object] | None = None) -> None:
        """Start VMs, each on a node and with its storage on a node. `statuses` override the status of VMIs by name."""
        with ThreadPoolExecutor(8) as threads:
            volumes = dict(zip(vms, threads.map(lambda name: self._provision(name, vms[name][1]), vms), strict=True))
        self.scenario.wait_bound(*vms)
        for name, (node, _) in vms.items():
            pod = self.scenario.vm_pod(name, name)
            self.controller.add_vm(pod, node, **(statuses or {}).get(name, {}))
        served = {name: self.scenario.longhorn.wait_running(volume) for name, volume in volumes.items()}
        assert served == {name: storage for name, (_, storage) in vms.items()}

    def _provision(self, claim: str, node: str) -> str:
        volume = f"vol-{self.scenario.namespace}-{claim}"
        self.scenario.longhorn.provision(self.scenario.namespace, claim, volume, f"class-{node}")
        self.scenario.volumes.append(volume)
        return volume

    def start_recolocate(self, *arguments: str) -> subprocess.Popen[str]:
        """Start to migrate the VMs of the namespace, in a process of its own."""
        options = "-n", self.scenario.namespace, "--yes", "--settle=0", f"--kubeconfig={self.kubeconfig}"
        command = [str(PROGRAM), "recolocate", *options, *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *arguments: str, expected: int = 0) -> tuple[str, str]:
        """Run the command line, check its exit status, and return its standard output and error."""
        result = run_cli(*arguments, "--kubeconfig", self.kubeconfig)
        assert result.exit_code == expected, f"{result.output}\n{self.controller.loop.last_error}"
        return result.stdout, result.stderr

    def states(self) -> dict[str, str]:
        """Return the state of each VM, as `report` shows it."""
        found = json.loads(self.run("report", "-n", self.scenario.namespace, "-o", "json")[0])
        return {vm["name"]: vm["state"] for vm in found["vms"]}

    def wait(self, predicate: Callable[[], object], what: str) -> None:
        self.scenario.plane.wait(predicate, 30, what)


@pytest.fixture(scope="module")
def kubeconfig(plane: ControlPlane) -> Path:
    return role_kubeconfig(plane, "recolocate")


@pytest.fixture
def controller(plain_scenario: Scenario) -> Iterator[MigrationController]:
    with MigrationController(plain_scenario) as controller:
        yield controller


@pytest.fixture
def fleet(plain_scenario: Scenario, controller: MigrationController, kubeconfig: Path) -> Fleet:
    return Fleet(plain_scenario, controller, kubeconfig)


def phase(migration: Object) -> str:
    return str(migration.get("status", {}).get("phase", ""))


def phases(controller: MigrationController) -> dict[str, str]:
    """Return the phase of each VM's newest migration."""
    found = sorted(controller.migrations(), key=lambda each: each["metadata"]["creationTimestamp"])
    return {each["spec"]["vmiName"]: phase(each) for each in found}


def test_two_runs_at_once_move_each_vm_once_but_those_that_the_dry_run_names(
    controller: MigrationController, fleet: Fleet
) -> None:
    a, b, c = fleet.nodes
    ways = ((a, b), (b, c), (c, a))
    vms = {f"vm-{number}": ways[number % 3] for number in range(6)}
    fleet.add(vms | {"vm-6": (a, a)}, {"vm-3": NOT_MIGRATABLE, "vm-4": PAUSED})
    plan = {each["name"]: each for each in map(json.loads, fleet.run("recolocate", "-A", "-o", "json")[0].splitlines())}
    hindered = {name: each["reason"] for name, each in plan.items() if each["action"] != "migrate"}
    assert (len(plan), hindered) == (6, {"vm-3": "NotLiveMigratable", "vm-4": "Paused"})
    assert controller.migrations() == []
    controller.seconds = 1.0
    for run in [fleet.start_recolocate("--parallel", number) for number in ("1", "2")]:
        stdout, stderr = run.communicate(timeout=LIMIT)
        assert run.returncode == 0, stdout + stderr
        assert "failed" not in stdout
        assert "do not support live migration" in stderr
    assert {name for name, state in fleet.states().items() if state != "Together"} == hindered.keys()
    succeeded = [each["spec"]["vmiName"] for each in controller.migrations() if phase(each) == "Succeeded"]
    assert sorted(succeeded) == sorted(vms.keys() - hindered)
    assert controller.peak <= 3
    migration = controller.migrations()[0]["metadata"]
    assert migration["annotations"] == {"kubevirt.io/migrationUnschedulablePodTimeoutSeconds": "60"}
    assert migration["labels"] == {"kubevirt-scheduler/recolocate": "true"}
    assert fleet.run("recolocate", "-A", "--yes")[0] == "No VM to migrate.\n"


def test_ctrl_c_waits_for_the_migration_that_runs_and_twice_leaves_it(
    controller: MigrationController, fleet: Fleet, plane: ControlPlane, tmp_path: Path
) -> None:
    source, target, _ = fleet.nodes
    fleet.add(dict.fromkeys(("vm-1", "vm-2"), (source, target)))
    expect_that_the_report_role_suffices(fleet, plane, tmp_path)
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


def expect_that_the_report_role_suffices(fleet: Fleet, plane: ControlPlane, folder: Path) -> None:
    """Run the commands that read, with the rights of the chart's role for them, and one that writes."""
    own, fleet.kubeconfig = fleet.kubeconfig, role_kubeconfig(plane, "report")
    namespace, pod, snapshot = fleet.scenario.namespace, folder / "pod.json", folder / "cluster.json"
    assert set(fleet.states().values()) == {"Apart"}
    assert "you may not read" not in fleet.run("explain", "vm", "vm-1", "-n", namespace)[1]
    manifest = fleet.scenario.vm_pod("vm-3", "vm-1")
    pod.write_text(json.dumps(manifest | {"metadata": manifest["metadata"] | {"namespace": namespace}}))
    fleet.run("snapshot", "-o", str(snapshot))  # it fails if a kind may not be listed
    inject = "inject", "-f", str(pod), "-o", "json"
    assert fleet.run(*inject) == fleet.run(*inject, "--snapshot", str(snapshot))
    assert "forbidden" in fleet.run("opt-out", "vm-1", "-n", namespace, "--yes", expected=1)[0]
    fleet.kubeconfig = own
