"""Benchmark of placement: how many of 100 VMs run on the node of their share-manager, with and without the webhook.

The API server, default scheduler and controller manager are real. kwok stands in for the kubelets, and
tests/support/longhorn.py for Longhorn. The 20 nodes are unevenly loaded. The same VMs start three times:

- cold: no pod uses their volumes.
- restart: the VM's pod is deleted, and its replacement is created immediately.
- warm: a pod that is not a VM already uses the volume, so its share-manager runs on some node.

The benchmark writes the chart that the README shows.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import click
from rich.console import Console
from rich.table import Table
from stage import Row, Stage, bar_chart, in_parallel, progress, running_longhorn, start_stage

from tests.support.controlplane.api import Object
from tests.support.scenario import DECISION, Scenario

NODES, VMS = 20, 100
CHART = Path(__file__).parent.parent / "docs/images/colocation.svg"
# All but the fullest nodes fit every VM, because the benchmark measures placement, not how full a cluster can be.
CORES, GIGABYTES, MANY_PODS = 64, 256, 500
# The kubelet's default. Share-managers request nothing, so the scheduler crowds them, and their nodes soon fit no VM.
USUAL_PODS = 110
# A random half of the nodes has already pulled this image. The scheduler prefers them for its pods.
IMAGE = {"names": ["longhornio/longhorn-share-manager:v1.9.0"], "sizeBytes": 300_000_000}
STARTS = {
    "cold": "no share-manager runs yet",
    "restart": "the VM's pod is replaced",
    "warm": "its share-manager runs already",
}
TIMEOUT = 180  # seconds for all VMs of one start

Pair: TypeAlias = tuple[Object, Object]  # a VM's pod and the share-manager pod of its volume
ShowStep: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Configuration:
    """One configuration: whether the webhook pins VMs and steers share-managers, and how many pods a node can run."""

    name: str
    pins: bool
    steers: bool
    color: str
    pods: int = MANY_PODS


CONFIGURATIONS = (
    Configuration("no webhook", False, False, "without"),
    Configuration("pin only", True, False, "half"),
    Configuration("steering only", False, True, "half"),
    Configuration("pin and steering", True, True, "both"),
    Configuration(f"both, {USUAL_PODS} pods", True, True, "both", USUAL_PODS),
)


@dataclass(frozen=True, slots=True)
class StartResult:
    """The result of one start: the number of VMs with their share-manager, and the decisions on the others."""

    together: int
    apart: Counter[str]


class Trial:
    """One configuration in its own scenario: nodes, 100 volumes and their VMs."""

    def __init__(self, stage: Stage, scenario: Scenario, seed: int, pods: int) -> None:
        self._pods = pods
        self._plane, self.longhorn, self.scenario = stage.plane, stage.longhorn, scenario
        self._random = random.Random(seed)
        self.claims = [f"disk{number}" for number in range(VMS)]

    def prepare(self) -> None:
        """Create the volumes, and nodes with 0 to 95 % of their cores and of their memory in use."""
        for node in self.scenario.add_nodes(NODES, cpu=str(CORES), memory=f"{GIGABYTES}Gi", pods=str(self._pods)):
            cores, gigabytes = (self._random.uniform(0, 0.95) * capacity for capacity in (CORES, GIGABYTES))
            self.scenario.fill(node, cpu=f"{cores * 1000:.0f}m", memory=f"{gigabytes * 1024:.0f}Mi")
            if self._random.random() < 0.5:
                self._plane.request("PATCH", f"/api/v1/nodes/{node}/status", {"status": {"images": [IMAGE]}})
        self._add_volumes()
        self.scenario.wait_bound(*self.claims)

    def _add_volumes(self) -> None:
        # The StorageClass does not restrict the nodes of the share-managers, so only the webhook does.
        for claim in self.claims:
            self.scenario.add_volume(claim, self.volume(claim), isolated=False)

    def cold(self) -> StartResult:
        """Start all VMs while no pod uses their volumes."""
        in_parallel(self._create_vm, self.claims)
        return self._result("cold")

    def start_cold(self) -> dict[str, Pair]:
        """Start all VMs while no pod uses their volumes, and return each VM with its share-manager, by its claim."""
        in_parallel(self._create_vm, self.claims)
        pairs = self._plane.wait(self._settled, TIMEOUT, "the end of the cold start")
        return {_claim(pair[0]): pair for pair in pairs}

    def restart(self) -> StartResult:
        """Restart each VM: delete its pod, and create the replacement as soon as the pod is gone."""
        pods = {pod["metadata"]["labels"]["vm.kubevirt.io/name"]: pod["metadata"]["name"] for pod in self._vm_pods()}

        def restart_vm(claim: str) -> None:
            self.scenario.delete(pods[f"vm-{claim}"])
            self._create_vm(claim)

        in_parallel(restart_vm, self.claims)
        return self._result("restart")

    def warm(self) -> StartResult:
        """Stop all VMs, create other pods that use their volumes, and start the VMs."""
        query = "labelSelector=kubevirt.io%3Dvirt-launcher&gracePeriodSeconds=0"
        self._plane.request("DELETE", f"{self.scenario.pods}?{query}")
        self._plane.wait(lambda: not self._share_managers(), TIMEOUT, "all share-managers stopped")
        in_parallel(self.scenario.create_consumer, self.claims)
        self._plane.wait(lambda: len(self._serving()) == VMS, TIMEOUT, "all share-managers running")
        in_parallel(self._create_vm, self.claims)
        return self._result("warm")

    def _create_vm(self, claim: str) -> None:
        self.scenario.create(self.scenario.vm_pod(f"vm-{claim}", claim))

    def _result(self, start: str) -> StartResult:
        pairs = self._plane.wait(self._settled, TIMEOUT, f"the end of the {start} start")
        apart = [pair for pair in pairs if pair[0]["spec"]["nodeName"] != pair[1]["spec"]["nodeName"]]
        # The webhook's decision on the pod that came last: at a warm start the VM, at a cold start the share-manager.
        last_pods = (
            max(pair, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
            if start == "restart"
            else pair[start == "cold"]
            for pair in apart
        )
        return StartResult(len(pairs) - len(apart), Counter(map(_decision, last_pods)))

    def _settled(self) -> list[Pair]:
        """Return each VM with its share-manager once all run and Longhorn is idle; until then, an empty list."""
        with self.longhorn.paused():  # no pod is deleted between these requests
            vms, serving = self._vm_pods(), self._serving()
            wanted, attached = self._nodes_in_use(), self._attachments()
        running = [pod for pod in vms if pod["status"].get("phase") == "Running"]
        if len(running) < VMS or len(serving) < VMS or wanted != attached:
            return []
        return [(pod, serving[self.volume(_claim(pod))]) for pod in running]

    def _serving(self) -> dict[str, Object]:
        """Return the share-manager pod of each volume whose ShareManager is running on that pod's node."""
        path = f"/apis/longhorn.io/v1beta2/namespaces/{self.longhorn.namespace}/sharemanagers"
        owners = {
            each["metadata"]["name"]: each["status"].get("ownerID")
            for each in self._list(path)
            if each.get("status", {}).get("state") == "running"
        }
        pods = {pod["metadata"]["labels"]["longhorn.io/share-manager"]: pod for pod in self._share_managers()}
        return {volume: pod for volume, pod in pods.items() if owners.get(volume, "") == pod["spec"].get("nodeName")}

    def _nodes_in_use(self) -> set[tuple[str, str]]:
        pods = [pod for pod in self._list(self.scenario.pods) if _claim(pod)]
        return {(f"pv-{self.volume(_claim(pod))}", pod["spec"].get("nodeName", "")) for pod in pods}

    def _attachments(self) -> set[tuple[str, str]]:
        specs = [each["spec"] for each in self._list("/apis/storage.k8s.io/v1/volumeattachments")]
        return {(spec["source"]["persistentVolumeName"], spec["nodeName"]) for spec in specs}

    def _vm_pods(self) -> list[Object]:
        return [pod for pod in self._list(self.scenario.pods) if "kubevirt.io" in pod["metadata"].get("labels", {})]

    def _share_managers(self) -> list[Object]:
        return self._list(f"/api/v1/namespaces/{self.longhorn.namespace}/pods")

    def _list(self, path: str) -> list[Object]:
        # resourceVersion=0 reads from the API server's watch cache.
        found: list[Object] = self._plane.request("GET", f"{path}?resourceVersion=0")["items"]
        return [each for each in found if "deletionTimestamp" not in each["metadata"]]

    def volume(self, claim: str) -> str:
        """Return the Longhorn volume of a claim."""
        return f"vol-{self.scenario.namespace}-{claim}"


def _claim(pod: Object) -> str:
    for volume in pod["spec"].get("volumes", ()):
        if "persistentVolumeClaim" in volume:
            return str(volume["persistentVolumeClaim"]["claimName"])
    return ""


def _decision(pod: Object) -> str:
    kind = "VM" if "kubevirt.io" in pod["metadata"]["labels"] else "share-manager"
    decision = pod["metadata"].get("annotations", {}).get(DECISION, "no decision")
    full_of = re.search(r"full \(([^:]+):", decision)
    return f"{kind}: {decision.partition(':')[0]}{f' of {full_of[1]}' if full_of else ''}"


def measure(seed: int, show_step: ShowStep) -> dict[str, dict[str, StartResult]]:
    """Return the result of each start, by configuration and start."""
    found: dict[str, dict[str, StartResult]] = {}
    with start_stage() as stage, running_longhorn(stage.longhorn):
        for config in CONFIGURATIONS:
            show_step(f"{config.name}: nodes and volumes")
            with stage.scenario(re.sub(r"\W+", "-", config.name), config.pins, config.steers) as scenario:
                trial = Trial(stage, scenario, seed, config.pods)
                trial.prepare()
                for start in STARTS:
                    show_step(f"{config.name}, {start}: {VMS} VMs")
                    found.setdefault(config.name, {})[start] = getattr(trial, start)()
    return found


def show(found: dict[str, dict[str, StartResult]], seed: int) -> None:
    """Print how many VMs are with their share-manager, and the decisions on the others."""
    table = Table(title=f"of {VMS} VMs on {NODES} nodes, on the node of their share-manager (seed {seed})")
    for heading in ("", *STARTS):
        table.add_column(heading, justify="right" if heading else "left")
    for name, starts in found.items():
        table.add_row(name, *(str(starts[start].together) for start in STARTS))
    console = Console()
    console.print(table)
    for name, starts in found.items():
        for start, result in starts.items():
            for reason, count in result.apart.most_common():
                console.print(f"{name}, {start}: {count} apart ({reason})")


def draw(found: dict[str, dict[str, StartResult]]) -> None:
    """Write the chart that the README shows."""
    shares = {name: tuple(starts[start].together / VMS for start in STARTS) for name, starts in found.items()}
    rows = [Row(config.name, config.color, shares[config.name]) for config in CONFIGURATIONS]
    columns = {start.capitalize(): explained for start, explained in STARTS.items()}
    note = f"{VMS} VM starts on {NODES} unevenly loaded nodes"
    CHART.write_text(bar_chart("VMs on the node of their share-manager", note, columns, rows))


@click.command()
@click.option(
    "--seed", default=7, show_default=True, help="Seed of the random load. The README's chart has the default."
)
def main(seed: int) -> None:
    """Start 100 VMs three times with each of four configurations, print the results and draw the chart."""
    with progress() as show_step:
        found = measure(seed, show_step)
    show(found, seed)
    draw(found)


if __name__ == "__main__":
    main()
