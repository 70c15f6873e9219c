"""How many of 100 VMs end on the node of their share-manager, on 20 unevenly loaded nodes, with and without us.

Real API server, default scheduler and controller manager. kwok plays the kubelets, and tests/support/longhorn.py plays
Longhorn.
Three starts of the same VMs: cold (nothing uses their volumes), restart (the VM's pod goes and the next one comes at
once), warm (a pod that is no VM uses the volume already, so that its share-manager runs somewhere). Writes the picture
that the README shows.
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
from stage import DECISION, Object, Row, Stage, World, acting, at_once, bars, progress, staged

NODES, VMS = 20, 100
PICTURE = Path(__file__).parent.parent / "docs/images/colocation.svg"
# Room for all VMs on any but the fullest nodes: who meets whom is measured, not how full a cluster can be.
# Share-managers ask for nothing and crowd: with the usual 110 pods to a node, theirs soon have no room for VMs.
CORES, GIGABYTES, PODS = 64, 256, 500
# Random is also which nodes have pulled this image before: for its pods the scheduler prefers them.
IMAGE = {"names": ["longhornio/longhorn-share-manager:v1.9.0"], "sizeBytes": 300_000_000}
STARTS = {
    "cold": "no share-manager runs yet",
    "restart": "the VM's pod is replaced",
    "warm": "its share-manager runs already",
}
PATIENCE = 180  # seconds, for all VMs of one start

Pair: TypeAlias = tuple[Object, Object]  # a VM's pod and the share-manager pod of its volume
Say: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Way:
    """Which halves of the webhook are at work."""

    name: str
    pins: bool
    steers: bool
    color: str


WAYS = (
    Way("no webhook", False, False, "without"),
    Way("pin only", True, False, "half"),
    Way("steering only", False, True, "half"),
    Way("pin and steering", True, True, "both"),
)


@dataclass(frozen=True, slots=True)
class Start:
    """How many VMs met their share-manager, and what was decided on the others."""

    met: int
    missed: Counter[str]


class Trial:
    """One way, in a world of its own: its nodes, 100 volumes, and the VMs on them."""

    def __init__(self, stage: Stage, world: World, seed: int) -> None:
        self._plane, self._longhorn, self._world = stage.plane, stage.longhorn, world
        self._chance = random.Random(seed)
        self._claims = [f"disk{number}" for number in range(VMS)]

    def prepare(self) -> None:
        """Create the nodes, each with 0 to 95 % of its cores and of its memory taken, and the volumes."""
        for node in self._world.add_nodes(NODES, cpu=str(CORES), memory=f"{GIGABYTES}Gi", pods=str(PODS)):
            cores, gigabytes = (self._chance.uniform(0, 0.95) * all_of_it for all_of_it in (CORES, GIGABYTES))
            self._world.fill(node, cpu=f"{cores * 1000:.0f}m", memory=f"{gigabytes * 1024:.0f}Mi")
            if self._chance.random() < 0.5:
                self._plane.request("PATCH", f"/api/v1/nodes/{node}/status", {"status": {"images": [IMAGE]}})
        # Their StorageClass says nothing about nodes, so that nobody but us does.
        for claim in self._claims:
            self._world.add_volume(claim, self._volume(claim), isolated=False)
        self._world.wait_bound(*self._claims)

    def cold(self) -> Start:
        """Start all VMs; nothing uses their volumes."""
        at_once(self._start, self._claims)
        return self._ended("cold")

    def restart(self) -> Start:
        """Restart each VM: its pod is deleted, and the next one comes as soon as it has gone."""
        pods = {pod["metadata"]["labels"]["vm.kubevirt.io/name"]: pod["metadata"]["name"] for pod in self._vm_pods()}

        def again(claim: str) -> None:
            self._world.delete(pods[f"vm-{claim}"])
            self._start(claim)

        at_once(again, self._claims)
        return self._ended("restart")

    def warm(self) -> Start:
        """Stop all VMs, let other pods use their volumes, and start the VMs."""
        chosen = "labelSelector=kubevirt.io%3Dvirt-launcher&gracePeriodSeconds=0"
        self._plane.request("DELETE", f"{self._world.pods}?{chosen}")
        self._plane.wait(lambda: not self._share_managers(), PATIENCE, "all share-managers stopped")
        at_once(self._world.create_user, self._claims)
        self._plane.wait(lambda: len(self._serving()) == VMS, PATIENCE, "all share-managers running")
        at_once(self._start, self._claims)
        return self._ended("warm")

    def _start(self, claim: str) -> None:
        self._world.create(self._world.vm_pod(f"vm-{claim}", claim))

    def _ended(self, start: str) -> Start:
        pairs = self._plane.wait(self._settled, PATIENCE, f"an end of the {start} start")
        missed = [pair for pair in pairs if pair[0]["spec"]["nodeName"] != pair[1]["spec"]["nodeName"]]
        # What decided on the one that came last: at a warm start the VM, at a cold one the share-manager.
        last = (
            max(pair, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
            if start == "restart"
            else pair[start == "cold"]
            for pair in missed
        )
        return Start(len(pairs) - len(missed), Counter(map(_decision, last)))

    def _settled(self) -> list[Pair]:
        """Return each VM with its share-manager when all run and Longhorn has nothing left to do; before, nothing."""
        with self._longhorn.asleep():  # what it is about to delete it deletes before we look, or after we know
            vms, serving = self._vm_pods(), self._serving()
            wanted, attached = self._nodes_in_use(), self._attachments()
        running = [pod for pod in vms if pod["status"].get("phase") == "Running"]
        if len(running) < VMS or len(serving) < VMS or wanted != attached:
            return []
        return [(pod, serving[self._volume(_claim(pod))]) for pod in running]

    def _serving(self) -> dict[str, Object]:
        """Return the share-manager pod of each volume whose ShareManager is running on that pod's node."""
        path = f"/apis/longhorn.io/v1beta2/namespaces/{self._longhorn.namespace}/sharemanagers"
        owners = {
            each["metadata"]["name"]: each["status"].get("ownerID")
            for each in self._list(path)
            if each.get("status", {}).get("state") == "running"
        }
        pods = {pod["metadata"]["labels"]["longhorn.io/share-manager"]: pod for pod in self._share_managers()}
        return {volume: pod for volume, pod in pods.items() if owners.get(volume, "") == pod["spec"].get("nodeName")}

    def _nodes_in_use(self) -> set[tuple[str, str]]:
        pods = [pod for pod in self._list(self._world.pods) if _claim(pod)]
        return {(f"pv-{self._volume(_claim(pod))}", pod["spec"].get("nodeName", "")) for pod in pods}

    def _attachments(self) -> set[tuple[str, str]]:
        specs = [each["spec"] for each in self._list("/apis/storage.k8s.io/v1/volumeattachments")]
        return {(spec["source"]["persistentVolumeName"], spec["nodeName"]) for spec in specs}

    def _vm_pods(self) -> list[Object]:
        return [pod for pod in self._list(self._world.pods) if "kubevirt.io" in pod["metadata"].get("labels", {})]

    def _share_managers(self) -> list[Object]:
        return self._list(f"/api/v1/namespaces/{self._longhorn.namespace}/pods")

    def _list(self, path: str) -> list[Object]:
        # Version 0: from the API server's memory.
        found: list[Object] = self._plane.request("GET", f"{path}?resourceVersion=0")["items"]
        return [each for each in found if "deletionTimestamp" not in each["metadata"]]

    def _volume(self, claim: str) -> str:
        return f"vol-{self._world.namespace}-{claim}"


def _claim(pod: Object) -> str:
    for volume in pod["spec"].get("volumes", ()):
        if "persistentVolumeClaim" in volume:
            return str(volume["persistentVolumeClaim"]["claimName"])
    return ""


def _decision(pod: Object) -> str:
    kind = "VM" if "kubevirt.io" in pod["metadata"]["labels"] else "share-manager"
    decision = pod["metadata"].get("annotations", {}).get(DECISION, "left alone")
    full_of = re.search(r"full \(([^:]+):", decision)
    return f"{kind}: {decision.partition(':')[0]}{f' of {full_of[1]}' if full_of else ''}"


def measure(seed: int, say: Say) -> dict[str, dict[str, Start]]:
    """Return how each start ended, by way."""
    found: dict[str, dict[str, Start]] = {}
    with staged() as stage, acting(stage.longhorn):
        for way in WAYS:
            say(f"{way.name}: nodes and volumes")
            with stage.world(way.name.replace(" ", "-"), way.pins, way.steers) as world:
                trial = Trial(stage, world, seed)
                trial.prepare()
                for start in STARTS:
                    say(f"{way.name}, {start}: {VMS} VMs")
                    found.setdefault(way.name, {})[start] = getattr(trial, start)()
    return found


def show(found: dict[str, dict[str, Start]], seed: int) -> None:
    """Print who met, and what was decided on the others."""
    table = Table(title=f"of {VMS} VMs on {NODES} nodes, on the node of their share-manager (seed {seed})")
    for heading in ("", *STARTS):
        table.add_column(heading, justify="right" if heading else "left")
    for name, starts in found.items():
        table.add_row(name, *(str(starts[start].met) for start in STARTS))
    console = Console()
    console.print(table)
    for name, starts in found.items():
        for start, end in starts.items():
            for reason, count in end.missed.most_common():
                console.print(f"{name}, {start}: {count} apart ({reason})")


def draw(found: dict[str, dict[str, Start]]) -> None:
    """Write the picture that the README shows."""
    rows = [Row(way.name, way.color, tuple(found[way.name][start].met / VMS for start in STARTS)) for way in WAYS]
    columns = {start.capitalize(): explained for start, explained in STARTS.items()}
    note = f"{VMS} VM starts on {NODES} unevenly loaded nodes"
    PICTURE.write_text(bars("VMs on the node of their share-manager", note, columns, rows))


@click.command()
@click.option("--seed", type=int, default=7, show_default=True, help="The load; that of the picture is the default.")
def main(seed: int) -> None:
    """Start 100 VMs three times, four ways; print how many met their share-manager, and draw it."""
    with progress() as say:
        found = measure(seed, say)
    show(found, seed)
    draw(found)


if __name__ == "__main__":
    main()
