"""`drain-check` says what `kubectl drain` then does, VM by VM: at once, and in the order that it prints."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import run_line
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.evacuation import Evacuation
from tests.support.kubevirt import install_crds, vm_path
from tests.support.longhorn import Longhorn
from tests.support.migration_controller import MigrationController
from tests.support.paths import ROOT
from tests.support.playground.simulation import KubeVirt
from tests.support.scenario import Scenario
from tests.support.webhook_process import PROGRAM, Webhook

pytestmark = pytest.mark.controlplane

DRAIN = "--ignore-daemonsets --delete-emptydir-data"
OPT_IN = {"kubevirt-scheduler/co-schedule": "true"}
VERSION: Object = {
    "apiVersion": "longhorn.io/v1beta2",
    "kind": "Setting",
    "metadata": {"name": "current-longhorn-version"},
    "value": "v1.11.3",
}
# The VMs by name: the index of the node, that of the storage, and the eviction strategy.
VMS: dict[str, tuple[int, int | None, str]] = {
    "local": (0, 0, "LiveMigrate"),
    "apart": (0, 1, "LiveMigrate"),
    "evicted": (0, None, "None"),
    "device": (0, None, "LiveMigrate"),
    "guarded": (0, None, "None"),
    "elsewhere": (2, 0, "LiveMigrate"),
    "untouched": (2, 2, "LiveMigrate"),
}


class Commands:
    """Runs commands as a user does."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane

    def run(self, command: str, expected: int = 0) -> str:
        """Run a command, and check its exit status."""
        programs = {self.plane.binaries["kubectl"].parent, PROGRAM.parent, ROOT / "tests/support/playground"}
        path = ":".join([*map(str, programs), os.environ["PATH"]])
        environment = os.environ | {"PATH": path, "KUBECONFIG": str(self.plane.kubeconfig)}
        result = run_line(command, environment, ROOT)
        assert result.exit_code == expected, f"{command}\n{result.stdout}\n{result.stderr}"
        return result.stdout


class Cluster(Commands):
    """The VMs of VMS, each on its node, and its storage on another one."""

    def __init__(self, scenario: Scenario, kubevirt: KubeVirt) -> None:
        super().__init__(scenario.plane)
        self.scenario, self.kubevirt = scenario, kubevirt
        self.nodes, self.vmis = scenario.add_nodes(4), vm_path(scenario).removesuffix("s") + "instances"
        self.claims: dict[str, str] = {}

    def populate(self) -> None:
        self.claims = {vm: self.scenario.add_volume(vm) for vm, (_, storage, _) in VMS.items() if storage is not None}
        self.scenario.wait_bound(*self.claims)
        budget = {"minAvailable": 1, "selector": {"matchLabels": {"vm.kubevirt.io/name": "guarded"}}}
        path = f"/apis/policy/v1/namespaces/{self.scenario.namespace}/poddisruptionbudgets"
        self.plane.request("POST", path, {"metadata": {"name": "guarded"}, "spec": budget})
        consumers = [self._serve(vm) for vm in ("apart", "elsewhere")]
        for index in (0, 2):
            self._allow(index)
            names = [vm for vm, (node, _, _) in VMS.items() if node == index]
            for vm in names:
                self._add(vm)
            assert {vm: self.place(vm) for vm in names} == dict.fromkeys(names, self.nodes[index])
            for vm in names:
                if VMS[vm][1] == index:
                    assert self.scenario.longhorn.wait_running(self.claims[vm]) == self.nodes[index]
        self._allow(*range(4))
        for pod in consumers:
            self.scenario.delete(pod)

    def _allow(self, *indexes: int) -> None:
        """Cordon all other nodes, and wait until the scheduler knows."""
        for index, node in enumerate(self.nodes):
            self.scenario.change_node(node, {"spec": {"unschedulable": None if index in indexes else True}})
        for index, node in enumerate(self.nodes):
            if index not in indexes:
                self.scenario.wait_rejected(node)

    def _serve(self, claim: str) -> str:
        """Start the share-manager of a claim on its node, with a pod that uses the claim there."""
        index = VMS[claim][1] or 0
        self._allow(index)
        pod = self.scenario.create_consumer(claim, node=self.nodes[index])
        assert self.scenario.longhorn.wait_running(self.claims[claim]) == self.nodes[index]
        return pod

    def _add(self, name: str) -> None:
        claims = [{"name": "disk", "persistentVolumeClaim": {"claimName": name}}] if name in self.claims else []
        devices = {"domain": {"devices": {"hostDevices": [{"name": "gpu"}]}}} if name == "device" else {}
        spec = {"volumes": claims, "evictionStrategy": VMS[name][2]} | devices
        template = {"metadata": {"annotations": OPT_IN}, "spec": spec}
        vm = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": name}}
        body = vm | {"spec": {"runStrategy": "Always", "template": template}}
        self.plane.request("POST", vm_path(self.scenario), body)

    def place(self, name: str) -> str:
        def node() -> str:
            status = self.vmi(name).get("status", {})
            return str(status["nodeName"]) if status.get("phase") == "Running" else ""

        return self.plane.wait(node, 60, f"VM {name} running")

    def vmi(self, name: str) -> Object:
        return self.plane.request("GET", f"{self.vmis}/{name}")

    def seen(self) -> dict[str, tuple[str, str, str]]:
        """Return each VM's VMI and node, and the share-manager pod of its claim."""
        found = {}
        for name in VMS:
            vmi = self.vmi(name)
            server = (self.scenario.longhorn.pod(self.claims[name]) or {}) if name in self.claims else {}
            found[name] = vmi["metadata"]["uid"], self.place(name), server.get("metadata", {}).get("uid", "")
        return found

    def check(self) -> Any:
        return json.loads(self.run(f"kubevirt-scheduler drain-check {self.nodes[0]} -o json", expected=1))

    def states(self) -> dict[str, str]:
        """Return the state of each VM that has a claim."""
        found = json.loads(self.run(f"kubevirt-scheduler report -n {self.scenario.namespace} -o json"))
        return {vm["name"]: vm["state"] for vm in found["vms"] if vm["name"] in self.claims}

    def wait(self, predicate: Callable[[], object], what: str) -> None:
        self.plane.wait(predicate, 60, what)

    def wait_happened(self, before: dict[str, tuple[str, str, str]], expected: dict[str, list[str]]) -> None:
        with suppress(AssertionError):
            self.wait(lambda: self.happened(before) == expected, "the effects")
        assert self.happened(before) == expected

    def happened(self, before: dict[str, tuple[str, str, str]]) -> dict[str, list[str]]:
        """Return what has happened to each VM, in the words of `drain-check`."""
        found = {}
        for name, (vmi, node, server) in self.seen().items():
            old_vmi, old_node, old_server = before[name]
            restarted, moved = vmi != old_vmi, node != old_node
            migrations = self.plane.request("GET", f"{self.vmis.removesuffix('s')}migrations")["items"]
            migrated = any(each["spec"]["vmiName"] == name for each in migrations)
            effects = ["Migrates"] * migrated + ["Restarts"] * restarted
            effects += ["IOPauses"] * (server != old_server and not restarted)
            effects += ["Blocks"] * (not moved and not restarted and old_node == self.nodes[0])
            if effects:
                found[name] = effects
        return found


@pytest.fixture
def cluster(plane: ControlPlane, longhorn: Longhorn, kubeconfig: Path) -> Iterator[Cluster]:
    """The cluster, with a version of Longhorn that keeps the pods of VMs."""
    with ExitStack() as stack:
        webhook = stack.enter_context(Webhook(plane, "drain", kubeconfig, {"longhorn_namespace": longhorn.namespace}))
        scenario = Scenario(plane, longhorn, webhook.register())
        stack.callback(scenario.close)
        plane.request("POST", longhorn.settings, VERSION)
        stack.callback(plane.request, "DELETE", f"{longhorn.settings}/current-longhorn-version")
        stack.enter_context(MigrationController(scenario, 1))
        kubevirt = stack.enter_context(KubeVirt(scenario, back_off=1))
        stack.enter_context(Evacuation(scenario))
        found = Cluster(scenario, kubevirt)
        webhook.show_installed(found.nodes[3])
        found.populate()
        stack.callback(setattr, longhorn, "deletes_consumers", longhorn.deletes_consumers)
        longhorn.deletes_consumers = False
        yield found


def test_a_drain_does_to_each_vm_what_the_check_said_and_ends_in_its_order(cluster: Cluster) -> None:
    said, before = cluster.check(), cluster.seen()
    effects = {vm["name"]: vm["effects"] for vm in said["vms"]}
    assert effects == {
        "apart": ["Migrates"],
        "device": ["Blocks"],
        "evicted": ["Restarts"],
        "guarded": ["Blocks"],
        "local": ["Migrates", "IOPauses"],
        "elsewhere": ["IOPauses"],
    }
    # It waits for the VMs that block it.
    cluster.run(f"kubectl drain {cluster.nodes[0]} {DRAIN} --timeout=8s", expected=1)
    cluster.wait_happened(before, effects)
    places = {name: node for name, (_, node, _) in cluster.seen().items()}
    left = [vm for vm in said["vms"] if vm["targets"] and "Blocks" not in vm["effects"]]
    assert {vm["name"] for vm in left if places[vm["name"]] in vm["targets"]} == {"apart", "evicted", "local"}

    said = cluster.check()
    assert {vm["name"]: vm["effects"] for vm in said["vms"]} == {"device": ["Blocks"], "guarded": ["Blocks"]}
    commands = [step["command"] for step in said["order"]]
    assert [command.split()[2] for command in commands if command.startswith("virtctl migrate")] == ["guarded"]
    for command in commands:
        if command.startswith("kubectl drain"):  # "when the VMs have migrated"
            cluster.wait(lambda: cluster.place("guarded") != cluster.nodes[0], "the migration")
        cluster.run(command + " --settle 1" * ("recolocate" in command))
    expected = effects | {"device": ["Restarts"], "guarded": ["Migrates"]}
    cluster.wait_happened(before, expected)
    # The share-manager may have been placed before KubeVirt had chosen the node of the VM.
    cluster.run(f"kubevirt-scheduler recolocate -n {cluster.scenario.namespace} --yes --settle 1")
    cluster.wait(lambda: set(cluster.states().values()) == {"Together"}, "all VMs beside their storage")


def test_a_pod_without_a_controller_is_deleted_before_the_drain_or_by_force(plain_scenario: Scenario) -> None:
    install_crds(plain_scenario.plane)
    node, _ = plain_scenario.add_nodes(2)
    bare = {"spec": {"nodeName": node, "containers": [{"name": "c", "image": "none"}]}}
    path, cluster = plain_scenario.pods, Commands(plain_scenario.plane)
    for name in ("deleted", "forced"):
        plain_scenario.plane.request("POST", path, bare | {"metadata": {"name": name}})
    found = json.loads(cluster.run(f"kubevirt-scheduler drain-check {node} -o json", expected=1))["obstacles"]
    namespace = plain_scenario.namespace
    assert {each["name"] for each in found} == {f"{namespace}/deleted", f"{namespace}/forced"}
    assert {each["detail"].partition(": ")[2] for each in found} == {"delete it, or add --force"}
    cluster.run(f"kubectl drain {node} {DRAIN} --timeout=8s", expected=1)
    assert {pod["metadata"]["name"] for pod in plain_scenario.plane.request("GET", path)["items"]} == {
        "deleted",
        "forced",
    }
    cluster.run(f"kubectl delete pod deleted -n {namespace}")
    cluster.run(f"kubectl drain {node} {DRAIN} --force --timeout=60s")
    assert plain_scenario.plane.request("GET", path)["items"] == []
