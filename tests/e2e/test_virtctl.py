"""The playground's virtctl asks for what the real one asks for, and the simulated KubeVirt does it.

KubeVirt's own sources: pkg/virt-api/rest/lifecycle.go and `syncRunStrategy` in pkg/virt-controller/watch/vm/vm.go.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.kubevirt import vm_path
from tests.support.longhorn import Longhorn
from tests.support.paths import ROOT
from tests.support.playground.simulation import KubeVirt
from tests.support.scenario import Scenario

pytestmark = pytest.mark.controlplane

START: Object = {"status": {"stateChangeRequests": [{"action": "Start"}]}}
# Of a VM that runs: its run strategy, the commands with what the last one says, whether it runs then, and its strategy.
COMMANDS = [
    ("Always", ["start"], "VM is already running", True, "Always"),
    ("Always", ["restart"], "was scheduled to restart", True, "Always"),
    ("Always", ["stop"], "was scheduled to stop", False, "Halted"),
    ("Always", ["stop", "start"], "was scheduled to start", True, "Always"),
    ("Always", ["stop", "stop"], "VM is not running", False, "Halted"),
    ("Always", ["stop", "restart"], "RunStategy Halted does not support manual restart requests", False, "Halted"),
    ("RerunOnFailure", ["restart"], "was scheduled to restart", True, "RerunOnFailure"),
    ("RerunOnFailure", ["stop"], "was scheduled to stop", False, "RerunOnFailure"),
    ("RerunOnFailure", ["stop", "restart"], "VM is not running", False, "RerunOnFailure"),
    ("RerunOnFailure", ["stop", "start"], "was scheduled to start", True, "RerunOnFailure"),
    ("RerunOnFailure", ["delete pod"], "deleted", False, "RerunOnFailure"),
    ("RerunOnFailure", ["delete pod", "start"], "was scheduled to start", True, "RerunOnFailure"),
    ("Manual", ["restart"], "was scheduled to restart", True, "Manual"),
    ("Manual", ["stop", "start"], "was scheduled to start", True, "Manual"),
    ("Manual", ["delete pod"], "deleted", False, "Manual"),
    ("Manual", ["delete pod", "stop"], "VM is not running", False, "Manual"),
    ("Manual", ["delete pod", "migrate"], "VM is not running", False, "Manual"),
    ("Manual", ["delete pod", "start"], "was scheduled to start", True, "Manual"),
    ("Once", ["restart"], "RunStategy Once does not support manual restart requests", True, "Once"),
    ("Once", ["delete pod", "start"], "Once does not support manual start requests", False, "Once"),
    ("Once", ["delete pod", "delete vmi"], "deleted", True, "Once"),
    ("Once", ["stop", "start"], "was scheduled to start", True, "Always"),
]


class Vms:
    """The VMs of a namespace, as a user sees them."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario, self._plane = scenario, scenario.plane

    def create(self, name: str, strategy: str) -> None:
        path = vm_path(self._scenario)
        template: Object = {"metadata": {}, "spec": {}}
        vm = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": name}}
        self._plane.request("POST", path, vm | {"spec": {"runStrategy": strategy, "template": template}})
        if strategy == "Manual":
            self._plane.request("PATCH", f"{path}/{name}/status", START)

    def do(self, name: str, command: str) -> str:
        """Run a command for a VM, and return what it says once the VM has become quiet."""
        options = ["-n", self._scenario.namespace]
        match command.split():
            case ["delete", "pod"]:
                options += ["-l", f"vm.kubevirt.io/name={name}", "--field-selector", "status.phase=Running"]
                line = ["kubectl", "delete", "pod", *options]
            case ["delete", "vmi"]:
                line = ["kubectl", "delete", "vmi", name, *options]
            case _:
                line = ["virtctl", command, name, *options]
        programs = f"{self._plane.binaries['kubectl'].parent}:{ROOT / 'tests/support/playground'}"
        environment = {"PATH": f"{programs}:{os.environ['PATH']}", "KUBECONFIG": str(self._plane.kubeconfig)}
        run = subprocess.run(line, env=os.environ | environment, check=False, capture_output=True, text=True)
        self._plane.wait(lambda: not self._asked(name), 20, f"no request for {name}")
        return run.stdout + run.stderr

    def wait(self, name: str, *, runs: bool) -> None:
        self._plane.wait(lambda: self._runs(name) is runs, 20, f"VM {name} {'running' if runs else 'stopped'}")

    def strategy(self, name: str) -> str:
        return str(self._vm(name)["spec"]["runStrategy"])

    def uid(self, name: str) -> str:
        return str((self._vmi(name) or {"metadata": {"uid": ""}})["metadata"]["uid"])

    def _runs(self, name: str) -> bool:
        return (self._vmi(name) or {}).get("status", {}).get("phase") == "Running"

    def _asked(self, name: str) -> bool:
        return bool(self._vm(name).get("status", {}).get("stateChangeRequests"))

    def _vm(self, name: str) -> Object:
        return self._plane.request("GET", vm_path(self._scenario, name))

    def _vmi(self, name: str) -> Object | None:
        return self._plane.find(vm_path(self._scenario).removesuffix("s") + f"instances/{name}")


@pytest.fixture(scope="module")
def vms(plane: ControlPlane, longhorn: Longhorn) -> Iterator[Vms]:
    with ExitStack() as stack:
        scenario = Scenario(plane, longhorn, None)
        stack.callback(scenario.close)
        scenario.add_nodes(1)
        stack.enter_context(KubeVirt(scenario, back_off=1))
        yield Vms(scenario)


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: f"{row[0]}: {', then '.join(row[1])}")
def test_a_command_starts_or_stops_a_vm_as_kubevirt_does(vms: Vms, row: tuple[str, list[str], str, bool, str]) -> None:
    strategy, commands, says, runs, strategy_then = row
    name = f"vm{COMMANDS.index(row)}"
    vms.create(name, strategy)
    vms.wait(name, runs=True)
    before = vms.uid(name)
    for command in commands[:-1]:
        vms.do(name, command)
        vms.wait(name, runs=False)
    assert says in vms.do(name, commands[-1])
    vms.wait(name, runs=runs)
    assert vms.strategy(name) == strategy_then
    if runs:
        assert (vms.uid(name) == before) is not says.startswith(("was", "deleted"))
