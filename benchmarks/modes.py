"""Benchmark of the modes: how many of 100 VMs run beside their share-manager with `required` and with `preferred`.

As in benchmarks/colocation.py, the API server, scheduler and controller manager are real, and so are the three starts.
What else pulls at the VMs differs from row to row: a Service that selects all of them (the scheduler spreads its pods
by default), soft anti-affinity between them, or share-managers that only nodes with a PreferNoSchedule taint may run.
"""

from __future__ import annotations

import re

import click
from colocation import MANY_PODS, NODES, STARTS, USUAL_PODS, VMS, ShowStep, Trial
from rich.console import Console
from rich.table import Table
from stage import Stage, progress, running_longhorn, start_stage

from tests.support.scenario import HOSTNAME, Scenario

MODES = ("required", "preferred")
# A row's title, and the pods that its nodes can run.
PLAIN, USUAL, SERVICE = "nothing else", f"{USUAL_PODS} pods per node", "a Service over all VMs"
REPELLED, TAINTED = "soft anti-affinity", "PreferNoSchedule taints"
CONDITIONS = {PLAIN: MANY_PODS, USUAL: USUAL_PODS, SERVICE: MANY_PODS, REPELLED: MANY_PODS, TAINTED: MANY_PODS}
VM_LABELS = {"kubevirt.io": "virt-launcher"}
STORAGE_NODES = "test/storage"  # a label of the tainted half of the nodes


class Pulled(Trial):
    """A trial in which something else than the storage pulls at the VMs, too."""

    def __init__(self, stage: Stage, scenario: Scenario, seed: int, condition: str) -> None:
        super().__init__(stage, scenario, seed, CONDITIONS[condition])
        self._condition = condition

    def prepare(self) -> None:
        """Create the nodes and volumes, and what pulls."""
        super().prepare()
        if self._condition == SERVICE:
            path = f"/api/v1/namespaces/{self.scenario.namespace}/services"
            spec = {"selector": VM_LABELS, "ports": [{"port": 22}]}
            self._plane.request("POST", path, {"metadata": {"name": "all-vms"}, "spec": spec})
        if self._condition == TAINTED:
            taints = [{"key": "storage", "value": "only", "effect": "PreferNoSchedule"}]
            for node in self.scenario.node_names[::2]:
                change = {"metadata": {"labels": {STORAGE_NODES: "yes"}}, "spec": {"taints": taints}}
                self.scenario.change_node(node, change)

    def _add_volumes(self) -> None:
        if self._condition != TAINTED:
            super()._add_volumes()
            return
        name = f"{self.scenario.namespace}-storage"
        self.scenario.add_storage_class(name, STORAGE_NODES, "yes")
        for claim in self.claims:
            self.scenario.add_volume(claim, self.volume(claim), storage_class=name)

    def _create_vm(self, claim: str) -> None:
        pod = self.scenario.vm_pod(f"vm-{claim}", claim)
        if self._condition == REPELLED:
            term = {"labelSelector": {"matchLabels": VM_LABELS}, "topologyKey": HOSTNAME}
            preferred = [{"weight": 100, "podAffinityTerm": term}]
            pod["spec"]["affinity"]["podAntiAffinity"] = {"preferredDuringSchedulingIgnoredDuringExecution": preferred}
        self.scenario.create(pod)


def measure(seed: int, show_step: ShowStep) -> dict[tuple[str, str], list[int]]:
    """Return how many VMs are with their share-manager after each start, by condition and mode."""
    found: dict[tuple[str, str], list[int]] = {}
    with start_stage() as stage, running_longhorn(stage.longhorn):
        for condition in CONDITIONS:
            for mode in MODES:
                name = re.sub(r"\W+", "-", f"{condition} {mode}").lower()
                with stage.scenario(name, pins=True, steers=True, affinity_mode=mode) as scenario:
                    trial = Pulled(stage, scenario, seed, condition)
                    show_step(f"{condition}, {mode}")
                    trial.prepare()
                    found[condition, mode] = [getattr(trial, start)().together for start in STARTS]
                    show_step(f"{condition}, {mode}: {found[condition, mode]}")
    return found


@click.command()
@click.option("--seed", default=7, show_default=True, help="Seed of the random load.")
def main(seed: int) -> None:
    """Start 100 VMs three times in each mode and condition, and print how many run beside their share-manager."""
    with progress() as show_step:
        found = measure(seed, show_step)
    table = Table(title=f"of {VMS} VMs on {NODES} nodes, on the node of their share-manager (seed {seed})")
    for heading in ("what else pulls", "mode", *STARTS):
        table.add_column(heading, justify="right" if heading in STARTS else "left")
    for (condition, mode), counts in found.items():
        table.add_row(condition, mode, *map(str, counts))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
