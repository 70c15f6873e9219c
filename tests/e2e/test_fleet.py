"""`report`, its page, `explain` and the metrics agree about every VM of a fleet, while it starts and drains."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import run_cli
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.fleet import OF_THE_FLEET
from tests.support.longhorn import Longhorn
from tests.support.scenario import HOSTNAME, Scenario
from tests.support.virt_controller import VirtController
from tests.support.webhook_process import Webhook

pytestmark = pytest.mark.controlplane

NODES = 8
# Counts the VMs for its metrics once a second, not once in ten.
PROGRAM = (
    "from webhook import cli; from webhook.cluster import fleet_counts; fleet_counts.COUNT_SECONDS = 1; cli.main()"
)


class Fleet:
    """VMs in all states, and three views of them: the report, the explanations and the metrics."""

    def __init__(self, scenario: Scenario, controller: VirtController, webhook: Webhook) -> None:
        self.scenario, self.controller, self.plane = scenario, controller, scenario.plane
        self.nodes = scenario.add_nodes(NODES)
        self._webhook = webhook
        self._explained: dict[str, Object] = {}

    def serve(self, claim: str, node: str) -> None:
        """Create a volume that is served by one node and used by a backup on the last one."""
        volume = self.scenario.add_volume(claim, node=node)
        self.scenario.wait_bound(claim)
        self.scenario.create_consumer(claim, node=self.nodes[-1])
        assert self.scenario.longhorn.wait_running(volume) == node

    def add_vm(self, name: str, *claims: str, strategy: str = "Always", on: str = "", **rest: Any) -> str:
        """Create a VM; with `on`, its pod selects that node."""
        pod = self.scenario.vm_pod(name, *claims, **rest)
        pod["spec"]["nodeSelector"] |= {HOSTNAME: on} if on else {}
        return self.controller.add(pod, strategy)

    def add(self, prefix: str, count: int, *claims: str, **rest: Any) -> list[str]:
        return [self.add_vm(f"{prefix}-{number}", *claims, **rest) for number in range(count)]

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

    def _run(self, *arguments: str) -> Any:
        result = run_cli(*arguments, "-o", "json", "--kubeconfig", self.plane.kubeconfig)
        assert (result.exit_code, result.stderr) == (0, "")
        return json.loads(result.stdout)

    def agreed(self) -> dict[str, Object]:
        """Return the VMs of the report by name, once `explain` and the metrics say the same about each.

        Only VMs are explained whose entry has changed since the last call, and at most two of each kind.
        """
        self.plane.wait(self._metrics_agree(), 120, "metrics that agree with the report")
        rows = {row["name"]: row for row in self._run("report", "-n", self.scenario.namespace)["vms"]}
        for name, row in rows.items():
            if self._explained.get(name) == row or not name.endswith(("-0", "-2")):
                continue
            self._explained[name] = row
            (explained,) = self._run("explain", "vm", name, "-n", self.scenario.namespace)
            assert explained["vm"] == {key: value for key, value in row.items() if key not in OF_THE_FLEET}
            is_well = row["state"] not in ("Apart", "Waiting")
            assert is_well or not row["advice"].startswith("No action needed")
        return rows

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
        rows = self._run("report", "-A")["vms"]
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


@pytest.fixture
def fleet(plane: ControlPlane, longhorn: Longhorn, kubeconfig: Path) -> Iterator[Fleet]:
    settings, program = {"longhorn_namespace": longhorn.namespace}, (sys.executable, "-c", PROGRAM)
    with (
        Webhook(plane, "fleet", kubeconfig, settings, program=program) as webhook,
        closing(Scenario(plane, longhorn, webhook.register())) as scenario,
        VirtController(scenario, back_off=1) as controller,
    ):
        yield Fleet(scenario, controller, webhook)


def test_report_explain_and_metrics_agree_about_every_vm(fleet: Fleet) -> None:
    populate(fleet)
    fleet.install()
    rows = fleet.agreed()
    assert {prefix: states(rows, prefix) for prefix in EXPECTED} == EXPECTED
    assert {row["ifStarted"]["node"] for name, row in rows.items() if name.startswith("soft")} == {fleet.nodes[1]}
    drain_and_restart(fleet)


def drain_and_restart(fleet: Fleet) -> None:
    """Restart VMs while the node of their storage is cordoned, and once more when it is not."""
    vms, node = ["moving-2", "moving-3"], fleet.nodes[2]
    fleet.cordon(node, "moving", cordoned=True)
    fleet.restart(*vms)
    assert states(fleet.agreed(), "moving") == {("Together", "CoScheduled"): 2, ("Apart", "NodeCordoned"): 2}
    fleet.cordon(node, "moving", cordoned=False)
    rows = fleet.agreed()
    predicted = {vm: rows[vm]["ifStarted"]["node"] for vm in [*vms, "soft-0"]}
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
    running += [*fleet.add("plain", 1), *fleet.add("lost", 1, "lost")]
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
    scenario.longhorn.remove_volume(lost)
