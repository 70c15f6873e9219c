"""`report`, its page, `explain` and the metrics agree about every VM of a fleet, while it starts and drains."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.controlplane.api import ApiError, Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.crds import CRDS
from tests.support.fleet import OF_THE_FLEET
from tests.support.longhorn import Longhorn
from tests.support.measured import Measured
from tests.support.migrations import MIGRATABLE, READY, migration_crd
from tests.support.scenario import DECISION, HOSTNAME, POOL, Scenario
from tests.support.virt_controller import VirtController
from tests.support.webhook_process import Webhook
from webhook.cli import commands

pytestmark = pytest.mark.controlplane

NODES = 8
INSTALLED = "fleet"


class Fleet:
    """VMs in all states, and three views of them: the report, the explanations and the metrics."""

    def __init__(self, scenario: Scenario, controller: VirtController, webhook: Webhook) -> None:
        self.scenario, self.controller, self.plane = scenario, controller, scenario.plane
        self.nodes = scenario.add_nodes(NODES)
        self._webhook = webhook
        self._explained: dict[tuple[str, str], Object] = {}

    def serve(self, claim: str, node: str) -> str:
        """Create a volume that is served by one node and used by a backup on the last one. Return the volume."""
        volume = self.scenario.add_volume(claim, node=node)
        self.scenario.wait_bound(claim)
        self.scenario.create_consumer(claim, node=self.nodes[-1])
        assert self.scenario.longhorn.wait_running(volume) == node
        return volume

    def add_vm(self, name: str, *claims: str, strategy: str = "Always", on: str = "", **rest: Any) -> str:
        """Create a VM; with `on`, its pod selects that node."""
        pod = self.scenario.vm_pod(name, *claims, **rest)
        pod["spec"]["nodeSelector"] |= {HOSTNAME: on} if on else {}
        return self.controller.add(pod, strategy)

    def add(self, prefix: str, count: int, *claims: str, **rest: Any) -> list[str]:
        return [self.add_vm(f"{prefix}-{number}", *claims, **rest) for number in range(count)]

    def add_vmi(self, name: str, claim: str, node: str) -> None:
        """Create a VMI without a VM, and its running pod."""
        path = f"/apis/kubevirt.io/v1/namespaces/{self.scenario.namespace}/virtualmachineinstances"
        kind = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": name}}
        uid = self.plane.request("POST", path, kind | {"spec": {}})["metadata"]["uid"]
        pod = self.scenario.vm_pod(name, claim, opt_in=None)
        pod["metadata"]["labels"]["kubevirt.io/created-by"] = uid
        pod["spec"]["nodeSelector"] |= {HOSTNAME: node}
        self.scenario.wait_running(self.scenario.create(pod))

    def plug(self, vm: str, claim: str) -> None:
        """Plug a claim into a running VM, as KubeVirt does: a pod on the VM's node mounts it."""
        launcher = self.controller.pod(vm)
        pod = self.scenario.vm_pod(f"hp-{vm}", claim, opt_in=None, nodeName=launcher["spec"]["nodeName"])
        owner = {"apiVersion": "v1", "kind": "Pod", "name": launcher["metadata"]["name"]}
        pod["metadata"]["labels"] = {"kubevirt.io": "hotplug-disk"}
        pod["metadata"]["ownerReferences"] = [owner | {"uid": launcher["metadata"]["uid"], "controller": True}]
        self.scenario.create(pod)

    def restart(self, *vms: str) -> None:
        """Delete the pods of VMs, and wait until their next pods run."""
        before = {vm: len(self.controller.starts(vm)) for vm in vms}
        for vm in vms:
            self.scenario.delete(self.controller.pod(vm)["metadata"]["name"])
        for vm in vms:
            self.plane.wait(lambda vm=vm: len(self.controller.starts(vm)) > before[vm], 30, f"the next pod of {vm}")
            self.controller.wait_running(vm, 60)

    def cordon(self, node: str, claim: str, *, cordoned: bool) -> None:
        """Cordon or uncordon the node that serves a claim, and wait until the webhook has seen it."""
        self.scenario.change_node(node, {"spec": {"unschedulable": cordoned or None}})
        reason = "NodeCordoned" if cordoned else "CoScheduled"
        self.plane.wait(lambda: self.scenario.decision(claim).startswith(reason), 20, f"the decision {reason}")

    def rows(self, *options: str) -> dict[tuple[str, str], Object]:
        """Return the VMs of `report`."""
        found = self._run("report", *(options or ("-n", self.scenario.namespace)))
        return {(row["namespace"], row["name"]): row for row in found["vms"]}

    def rows_of_snapshot(self, file: Path) -> dict[tuple[str, str], Object]:
        """Write a snapshot, and return the VMs of `report` on it."""
        live = ["--kubeconfig", str(self.plane.kubeconfig)]
        CliRunner().invoke(commands, ["snapshot", "-o", str(file), *live], catch_exceptions=False)
        return self.rows("-n", self.scenario.namespace, "--snapshot", str(file))

    def _run(self, *arguments: str) -> Any:
        live = [] if "--snapshot" in arguments else ["--kubeconfig", str(self.plane.kubeconfig)]
        result = CliRunner().invoke(commands, [*arguments, "-o", "json", *live], catch_exceptions=False)
        assert (result.exit_code, result.stderr) == (0, "")
        return json.loads(result.stdout)

    def agreed(self) -> dict[str, Object]:
        """Return the VMs of the report by name, once `explain` and the metrics say the same about each.

        Only VMs are explained whose entry has changed since the last call, and at most two of each kind.
        """
        self.plane.wait(self._metrics_agree(), 120, "metrics that agree with the report")
        rows = self.rows()
        for (namespace, name), row in rows.items():
            if self._explained.get((namespace, name)) == row or not name.endswith(("-0", "-2")):
                continue
            self._explained[namespace, name] = row
            (explained,) = self._run("explain", "vm", name, "-n", namespace)
            assert explained["vm"] == {key: value for key, value in row.items() if key not in OF_THE_FLEET}
            is_well = row["state"] not in ("Apart", "Waiting")
            assert is_well or not row["advice"].startswith("No action needed")
        return {name: row for (_, name), row in rows.items()}

    def page(self) -> Any:
        """Return the report that the page shows."""
        arguments = ["-n", self.scenario.namespace, "-o", "html", "--kubeconfig", str(self.plane.kubeconfig)]
        page = CliRunner().invoke(commands, ["report", *arguments], catch_exceptions=False).stdout
        found = re.search(r'<script type="application/json" id="report"[^>]*>(.*?)</script>', page)
        assert found
        return json.loads(found[1])

    def install(self) -> None:
        """Create what `report` reads of an installation: a Deployment with settings, and a ready replica."""
        self._webhook.show_installed(self.nodes[-1])

        def activity() -> Any:
            return self._run("report", "-n", self.scenario.namespace)["webhook"]["activity"]

        self.plane.wait(lambda: activity() == "called", 20, "a ready replica")

    def _metrics_agree(self) -> Callable[[], bool]:
        """Return a function that compares the metrics with a report of the last second: each report takes CPU time."""
        began, reports = time.monotonic(), dict[int, object]()

        def agree() -> bool:
            second = int(time.monotonic() - began)
            if second not in reports:
                reports[second] = self._counted()
            return metrics_of(self._webhook) == reports[second]

        return agree

    def _counted(self) -> tuple[Counter[Any], Counter[Any]]:
        rows = self.rows("-A").values()
        by_opt_in = Counter((row["state"], str(row["optedIn"]).lower()) for row in rows)
        return by_opt_in, Counter((row["node"], row["state"]) for row in rows if row["node"])


def metrics_of(webhook: Webhook) -> tuple[Counter[Any], Counter[Any]]:
    """Return the VMs by state and opt-in, and by node and state, as the webhook exports them."""
    by_opt_in, by_node = Counter[Any](), Counter[Any]()
    for line in webhook.get("/metrics")[1].splitlines():
        name, _, rest = line.partition("{")
        labels = dict(each.split("=") for each in rest.partition("}")[0].replace('"', "").split(",") if each)
        value = int(float(line.rpartition(" ")[2])) if rest else 0
        if name == "kubevirt_scheduler_vms" and value:
            by_opt_in[labels["state"], labels["opted_in"]] = value
        if name == "kubevirt_scheduler_node_vms" and value:
            by_node[labels["node"], labels["state"]] = value
    return by_opt_in, by_node


def states(rows: dict[str, Object], prefix: str) -> Counter[tuple[str, str]]:
    found = [row for name, row in rows.items() if name.startswith(f"{prefix}-")]
    return Counter((row["state"], row["reason"]) for row in found)


@pytest.fixture(scope="module")
def installed(plane: ControlPlane, longhorn: Longhorn, kubeconfig: Path) -> Iterator[Webhook]:
    with Webhook(plane, INSTALLED, kubeconfig, {"longhorn_namespace": longhorn.namespace}) as webhook:
        yield webhook.register()


@pytest.fixture
def fleet(plane: ControlPlane, longhorn: Longhorn, installed: Webhook) -> Iterator[Fleet]:
    scenario = Scenario(plane, longhorn, installed)
    with VirtController(scenario, back_off=1) as controller:
        yield Fleet(scenario, controller, installed)
    scenario.close()


def test_report_explain_and_metrics_agree_about_every_vm(fleet: Fleet, measured: Measured, tmp_path: Path) -> None:
    populate(fleet)
    fleet.install()
    rows = fleet.agreed()
    assert {prefix: states(rows, prefix) for prefix in EXPECTED} == EXPECTED
    assert {row["ifStarted"]["node"] for name, row in rows.items() if name.startswith("soft")} == {fleet.nodes[1]}
    assert fleet.page()["vms"] == list(rows.values())
    measured(f"report, explain and metrics agree about {len(rows)} VMs")
    back_up(fleet, tmp_path / "cluster.json")
    drain_and_restart(fleet)


def back_up(fleet: Fleet, snapshot: Path) -> None:
    """Start a backup of one of two VMs that would start cold, and restart that VM."""
    rows = fleet.agreed()
    assert [rows[vm]["ifStarted"]["text"] for vm in ("own-0", "own-1")] == ["follows (cold start)"] * 2
    backup = fleet.scenario.create_consumer("own-0", node=fleet.nodes[-1])
    fleet.scenario.wait_running(backup)
    rows = fleet.agreed()
    start, node = rows["own-0"]["ifStarted"], rows["own-0"]["storageNode"]
    assert start["otherUsers"] == [{"kind": "Pod", "namespace": fleet.scenario.namespace, "name": backup}]
    assert (start["cold"], start["text"], rows["own-1"]["ifStarted"]["cold"]) == (False, f"pinned to {node}", True)
    assert fleet.rows_of_snapshot(snapshot) == fleet.rows()
    fleet.restart("own-0")
    restarted = fleet.agreed()["own-0"]
    assert (restarted["state"], restarted["node"], restarted["storageNode"]) == ("Together", node, node)


def drain_and_restart(fleet: Fleet) -> None:
    """Restart VMs while the node of their storage is cordoned, and once more when it is not."""
    vms, node = ["moving-2", "moving-3"], fleet.nodes[2]
    fleet.cordon(node, "moving", cordoned=True)
    fleet.restart(*vms)
    assert states(fleet.agreed(), "moving") == {("Together", "CoScheduled"): 2, ("Apart", "NodeCordoned"): 2}
    fleet.cordon(node, "moving", cordoned=False)
    predicted = {vm: fleet.agreed()[vm]["ifStarted"]["node"] for vm in [*vms, "soft-0"]}
    fleet.restart(*predicted)
    rows = fleet.agreed()
    assert {vm: rows[vm]["node"] for vm in predicted} == predicted
    assert {rows[vm]["state"] for vm in predicted} == {"Together"}


EXPECTED = {
    "together": {("Together", "CoScheduled"): 3},
    "foreign": {("Apart", "NotOptedIn"): 3},
    "bound": {("Apart", "NodeMismatch"): 2},
    "soft": {("Apart", "NodeCordoned"): 2},
    "moving": {("Together", "CoScheduled"): 4},
    "block": {("NotConcerned", "NoShareManagerEver"): 1},
    "rwo": {("NotConcerned", "ClaimNotRWX"): 1},
    "plain": {("NotConcerned", "NoClaims"): 1},
    "stopped": {("Stopped", "CoScheduled"): 2},
    "waiting": {("Waiting", "NodeMismatch"): 1},
    "lost": {("Unserved", "NoShareManager"): 1},
    "own": {("Together", "CoScheduled"): 2},
    "lone": {("Apart", "NotOptedIn"): 1},
    "plugged": {("Apart", "NoClaims"): 1},
}


def populate(fleet: Fleet) -> None:
    """Create the VMs of EXPECTED."""
    scenario, nodes = fleet.scenario, fleet.nodes
    for claim, node in (("shared", nodes[0]), ("remote", nodes[1])):
        fleet.serve(claim, node)
    fleet.serve("moving", nodes[2])
    lost, own = scenario.add_volume("lost"), ["own-0", "own-1"]
    scenario.add_volume("block", volumeMode="Block")
    scenario.add_volume("rwo", accessModes=["ReadWriteOnce"])
    for claim in own:
        scenario.add_volume(claim)
    scenario.wait_bound("lost", "block", "rwo", *own)
    fleet.plane.wait(lambda: scenario.target_node("moving") == nodes[2], 20, "a decision for the last volume")

    running = [*fleet.add("together", 3, "shared"), *fleet.add("foreign", 3, "remote", opt_in=None, on=nodes[3])]
    running += [*fleet.add("bound", 2, "remote", on=nodes[3]), *fleet.add("moving", 4, "moving")]
    running += [*fleet.add("block", 1, "block"), *fleet.add("rwo", 1, "rwo")]
    running += [*fleet.add("plain", 1), *fleet.add("lost", 1, "lost"), *fleet.add("plugged", 1, on=nodes[3])]
    running += [fleet.add_vm(claim, claim) for claim in own]
    fleet.add("stopped", 2, "shared", strategy="Halted")
    fleet.add("waiting", 1, "shared", on="no-such-node")
    for vm in running:
        fleet.controller.wait_running(vm, 60)
    # Before the node is cordoned: it may run a VM that its share-manager has yet to follow.
    for volume in (lost, *scenario.volumes[-2:]):
        scenario.longhorn.wait_running(volume)
    fleet.cordon(nodes[1], "remote", cordoned=True)
    for vm in fleet.add("soft", 2, "remote"):
        fleet.controller.wait_running(vm, 60)
    fleet.cordon(nodes[1], "remote", cordoned=False)
    fleet.plug("plugged-0", "shared")
    fleet.add_vmi("lone-0", "shared", nodes[3])
    scenario.longhorn.remove_volume(lost)


# Kinds of VMs: parameters of their StorageClass, the role of their nodes (empty: those without), whether they and their
# share-managers are together.
TAINT = {"key": "vms", "value": "only", "effect": "NoSchedule"}
PLACES: dict[str, tuple[dict[str, str], str, bool]] = {
    "stored": ({"shareManagerNodeSelector": "role:storage"}, "", False),
    "limited": ({"shareManagerNodeSelector": "role:ssd"}, "", True),
    "repelled": ({}, "tainted", False),
    "tolerated": ({"shareManagerTolerations": "vms=only:NoSchedule"}, "tainted", True),
}
TOGETHER = {f"{place}-{number}": together for place, (*_, together) in PLACES.items() for number in range(2)}


def test_promises_are_kept_where_not_each_node_runs_vms_and_share_managers(fleet: Fleet, measured: Measured) -> None:
    """Storage nodes run no VM, tainted nodes only VMs and what tolerates them, and a class selects its own nodes."""
    began, scenario, plane = time.monotonic(), fleet.scenario, fleet.plane
    with suppress(ApiError):
        plane.request("POST", CRDS, migration_crd())
    for role in "storage", "ssd", "tainted":
        runs_vms = {"kubevirt.io/schedulable": str(role != "storage").lower()}
        nodes = scenario.add_nodes(2, role, {"role": role} | runs_vms)
    for node in nodes:
        scenario.change_node(node, {"spec": {"taints": [TAINT]}})
    for place, (parameters, *_) in PLACES.items():
        scenario.add_storage_class(f"{scenario.namespace}-{place}", POOL, scenario.namespace, **parameters)
    for vm in TOGETHER:
        scenario.add_volume(vm, storage_class=f"{scenario.namespace}-{vm.partition('-')[0]}")
    scenario.wait_bound(*TOGETHER)
    for vm in TOGETHER:
        create_halted(fleet, vm, PLACES[vm.partition("-")[0]][1])
    fleet.install()
    limits = {vm: "ssd" for vm in TOGETHER if vm.startswith("limited")} | {"stored-0": "storage"}
    plane.wait(lambda: all(f"role in ({limits[vm]})" in scenario.decision(vm) for vm in limits), 20, "the classes")

    promised = fleet.agreed()
    assert {row["state"] for row in promised.values()} == {"Stopped"}
    for vm in TOGETHER:
        path = f"/apis/kubevirt.io/v1/namespaces/{scenario.namespace}/virtualmachines/{vm}"
        plane.request("PATCH", path, {"spec": {"runStrategy": "Always"}})
    for vm in TOGETHER:
        fleet.controller.wait_running(vm, 60)
    promised = expect_kept(fleet, promised, "ColdStart", "ColdStart")
    with scenario.longhorn.paused():  # the share-managers still run
        fleet.restart(*TOGETHER)
    promised = expect_kept(fleet, promised, "CoScheduled", "NodeMismatch")
    for vm in TOGETHER:
        scenario.create_consumer(vm)
    promised = fleet.agreed()
    fleet.restart(*TOGETHER)
    expect_kept(fleet, promised, "CoScheduled", "NodeMismatch")
    measured(f"storage nodes, taints and limits: {time.monotonic() - began:.0f} s")


def create_halted(fleet: Fleet, vm: str, role: str) -> None:
    """Create a VM that is stopped, and whose template selects the nodes of a role and tolerates their taint."""
    pod = fleet.scenario.vm_pod(vm, vm, tolerations=[TAINT])
    pod["spec"]["nodeSelector"] |= {"role": role} if role else {}
    fleet.controller.add(pod, "Halted")
    fields = {"nodeSelector": pod["spec"]["nodeSelector"], "tolerations": [TAINT]}
    path = f"/apis/kubevirt.io/v1/namespaces/{fleet.scenario.namespace}/virtualmachines/{vm}"
    fleet.plane.request("PATCH", path, {"spec": {"template": {"spec": fields}}})


def expect_kept(fleet: Fleet, promised: dict[str, Object], *reasons: str) -> dict[str, Object]:
    """Check that the VMs are where the last report said, and what is said now. Return the report.

    `reasons` are those of the decisions on VMs that are together with their share-managers, and on the others.
    """
    wanted = {vm: "Together" if together else "Apart" for vm, together in TOGETHER.items()}

    def settled() -> bool:
        return {name: row["state"] for (_, name), row in fleet.rows().items()} == wanted

    fleet.plane.wait(settled, 40, "VMs and share-managers in their places")
    assert {vm: row["ifStarted"]["together"] for vm, row in promised.items()} == TOGETHER
    decisions = {vm: fleet.controller.pod(vm)["metadata"]["annotations"][DECISION] for vm in TOGETHER}
    assert {vm: text.partition(":")[0] for vm, text in decisions.items()} == {
        vm: reasons[not together] for vm, together in TOGETHER.items()
    }
    assert not [text for vm, text in decisions.items() if not TOGETHER[vm] and text.endswith("follows it")]
    for vm in TOGETHER:
        path = f"/apis/kubevirt.io/v1/namespaces/{fleet.scenario.namespace}/virtualmachineinstances/{vm}/status"
        fleet.plane.request("PATCH", path, {"status": {"conditions": [READY, MIGRATABLE]}})
    arguments = ["-n", fleet.scenario.namespace, "-o", "json", "--kubeconfig", str(fleet.plane.kubeconfig)]
    lines = CliRunner().invoke(commands, ["recolocate", *arguments], catch_exceptions=False).stdout.splitlines()
    plan = {each["name"]: (each["action"], each["reason"]) for each in map(json.loads, lines)}
    assert plan == {vm: ("none", "NodeMismatch") for vm, together in TOGETHER.items() if not together}
    return fleet.agreed()
