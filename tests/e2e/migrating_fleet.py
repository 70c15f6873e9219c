"""A fleet of VMs on a real API server that live migration can move, and the commands that look at it and move it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.helm_chart import NAME, find_one, render
from tests.support.migration_controller import MigrationController
from tests.support.scenario import HOSTNAME, Scenario
from tests.support.webhook_process import create_service_account

SCRIPT = Path(sys.executable).with_name("kubevirt-scheduler")
LIMIT = 300  # seconds for one command, which takes 60 on a busy machine


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


class MigratingFleet:
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

    def command(self, *arguments: str) -> list[str]:
        return [str(SCRIPT), *arguments, "--kubeconfig", str(self.kubeconfig)]

    def run(self, *arguments: str, expected: int = 0) -> subprocess.CompletedProcess[str]:
        """Run the command line, and check its exit status."""
        result = subprocess.run(self.command(*arguments), capture_output=True, text=True, check=False, timeout=LIMIT)
        assert result.returncode == expected, f"{result.stdout}\n{result.stderr}\n{self.controller.loop.last_error}"
        assert "Traceback" not in result.stderr
        return result

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(self.command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def recolocate(self, *arguments: str, expected: int = 0) -> subprocess.CompletedProcess[str]:
        """Migrate the VMs of the namespace."""
        return self.run(*self._migrate, *arguments, expected=expected)

    def start_recolocate(self, *arguments: str) -> subprocess.Popen[str]:
        """Start to migrate the VMs of the namespace."""
        return self.start(*self._migrate, *arguments)

    @property
    def _migrate(self) -> tuple[str, ...]:
        return "recolocate", "-n", self.scenario.namespace, "--yes", "--settle", "0"

    def states(self) -> dict[str, str]:
        """Return the state of each VM, as `report` shows it."""
        found = json.loads(self.run("report", "-n", self.scenario.namespace, "-o", "json").stdout)
        return {vm["name"]: vm["state"] for vm in found["vms"]}

    def wait(self, predicate: Callable[[], object], what: str) -> None:
        self.scenario.plane.wait(predicate, 30, what)
