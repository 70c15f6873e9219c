"""Benchmark of both hops: how many of 100 VMs start beside a replica of their disk, with and without replica locality.

As in benchmarks/colocation.py, the API server, scheduler and controller manager are real. At a cold start, a VM and its
share-manager are together; the benchmark counts those that also have a replica on their node. With `best-effort`,
Longhorn would copy each other volume, of 10 GiB, to its node. In the last row, all replicas are on three nodes.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass

import click
from colocation import MANY_PODS, NODES, VMS, ShowStep, Trial
from rich.console import Console
from rich.table import Table
from stage import progress, running_longhorn, start_stage

GIGABYTES = 10  # of each volume; see `Longhorn.provision`


@dataclass(frozen=True, slots=True)
class Configuration:
    """The volumes, and the webhook's setting."""

    locality: str
    replicas: int
    setting: str
    nodes: int = NODES  # of which the replicas are chosen

    @property
    def name(self) -> str:
        """Return the title of its row."""
        crowded = f", on {self.nodes} nodes" if self.nodes < NODES else ""
        return f"{self.locality}, {self.replicas} replica{'s' * (self.replicas > 1)}{crowded}: {self.setting}"


CONFIGURATIONS = [
    Configuration(locality, replicas, setting, nodes)
    for locality, replicas, nodes in (
        ("best-effort", 3, NODES),
        ("best-effort", 1, NODES),
        ("disabled", 3, NODES),
        ("best-effort", 3, 3),
    )
    for setting in ("never", "bestEffort", *(["always"] if locality == "disabled" else []))
]


@dataclass(frozen=True, slots=True)
class Result:
    """How many VMs are with their share-manager, and with a replica too; how the VMs are spread; what is copied."""

    together: int
    local: int
    most_on_a_node: int
    nodes_in_use: int
    copied: int


def measure(seed: int, config: Configuration, trial: Trial, nodes: list[str]) -> Result:
    """Start all VMs while no pod uses their volumes."""
    chance = random.Random(seed)
    replicas = {claim: chance.sample(nodes[: config.nodes], config.replicas) for claim in trial.claims}
    for claim, chosen in replicas.items():
        trial.longhorn.add_data(trial.volume(claim), config.locality, chosen)
    trial.scenario.wait_cached("replicas", VMS * config.replicas)
    pairs = trial.start_cold()
    placed = {claim: (vm["spec"]["nodeName"], server["spec"]["nodeName"]) for claim, (vm, server) in pairs.items()}
    spread = Counter(vm for vm, _ in placed.values())
    has_replica = [claim for claim, (_, server) in placed.items() if server in replicas[claim]]
    local = sum(placed[claim][0] == placed[claim][1] for claim in has_replica)
    copied = GIGABYTES * (VMS - len(has_replica)) if config.locality == "best-effort" else 0
    return Result(sum(vm == server for vm, server in placed.values()), local, max(spread.values()), len(spread), copied)


def run(seed: int, show_step: ShowStep) -> dict[str, Result]:
    """Return the result of each configuration."""
    results: dict[str, Result] = {}
    with start_stage() as stage, running_longhorn(stage.longhorn):
        for config in CONFIGURATIONS:
            show_step(config.name)
            name = re.sub(r"\W+", "-", config.name).lower()
            with stage.scenario(name, pins=True, steers=True, replica_locality=config.setting) as scenario:
                trial = Trial(stage, scenario, seed, MANY_PODS)
                trial.prepare()
                results[config.name] = measure(seed, config, trial, scenario.node_names)
                stage.longhorn.remove_data(scenario.volumes)
    return results


@click.command()
@click.option("--seed", default=7, show_default=True, help="Seed of the random load and of the replicas' nodes.")
def main(seed: int) -> None:
    """Start 100 VMs with each configuration, and print how many have both hops on their node."""
    with progress() as show_step:
        results = run(seed, show_step)
    table = Table(title=f"cold starts of {VMS} VMs on {NODES} nodes (seed {seed})")
    for heading in ("volumes: setting", "VM + server", "+ a replica", "most on a node", "nodes in use", "GiB copied"):
        table.add_column(heading, justify="left" if ":" in heading else "right")
    for name, result in results.items():
        numbers = result.together, result.local, result.most_on_a_node, result.nodes_in_use, result.copied
        table.add_row(name, *map(str, numbers))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
