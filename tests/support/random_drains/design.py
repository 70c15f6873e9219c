"""The fleet of a seed: nodes, VMs, and what is followed. Nothing is random but the seed."""

from __future__ import annotations

import random
from enum import StrEnum
from typing import NamedTuple


class Mode(StrEnum):
    """What is followed."""

    AT_ONCE = "drain-check, for a drain without preparation"
    IN_ORDER = "drain-check, for the order that it prints"
    RESTART = "report, for the VMs that would be together after a restart"
    RECOLOCATE = "recolocate, for its plan and for the restarts that it lists"


class Plan(NamedTuple):
    """One VM of a fleet."""

    name: str
    host: int  # the index of its node
    storage: int | None  # the index of its share-manager's node; None without a claim
    claim: str  # empty without one; VMs may share one
    hotplug: int | None  # the index of the share-manager's node of a hotplugged claim; None without one
    run: str  # strategy
    eviction: str  # strategy; empty for KubeVirt's default
    migratable: bool
    opt_in: str  # before or after its start, or never
    limited: bool  # its share-manager may only run on the first node
    group: str  # of a PodDisruptionBudget; empty without one

    @property
    def hotplugged(self) -> str:
        """Return the claim that is hotplugged, empty without one."""
        return f"{self.name}-more" if self.hotplug is not None else ""

    @property
    def claims(self) -> tuple[str, ...]:
        """Return all claims. The first one decides."""
        return tuple(filter(None, (self.claim, self.hotplugged)))


class Design(NamedTuple):
    """A fleet. In a drain, the first nodes are drained."""

    nodes: int
    full: frozenset[int]  # nodes that run one VM at most
    cordoned: frozenset[int]
    vms: tuple[Plan, ...]
    mode: Mode
    drained: int = 1  # how many nodes are drained, one after the other


def design(seed: int) -> Design:
    """Return the fleet of a seed."""
    chance = random.Random(seed)
    mode = chance.choices(list(Mode), (8, 8, 2, 2))[0]
    is_drain = mode in (Mode.AT_ONCE, Mode.IN_ORDER)
    nodes = chance.choice((1, 2, 2, 3, 3, 4, 5) if is_drain else (2, 3, 4))
    drained = min(nodes, chance.choice((1, 1, 1, 2, 3))) if is_drain else 1
    others = range(drained, nodes)
    full = frozenset(node for node in others if chance.random() < 0.2)
    cordoned = frozenset(node for node in others if node not in full and nodes > 2 and chance.random() < 0.15)
    vms = list[Plan]()
    for number in range(chance.randint(2, 4)):
        host = 0 if chance.random() < 0.7 else chance.randrange(nodes)
        if host in full and any(vm.host == host for vm in vms):
            host = 0
        vms.append(_plan(f"vm{number}", host, nodes, vms, chance, apart=not is_drain))
    return Design(nodes, full, cordoned, tuple(vms), mode, drained)


def _plan(name: str, host: int, nodes: int, others: list[Plan], chance: random.Random, *, apart: bool) -> Plan:
    shareable = [vm for vm in others if vm.claim and not vm.limited and vm.hotplug is None]
    shared = chance.choice(shareable) if shareable and chance.random() < 0.15 else None
    storage = None
    if chance.random() >= 0.15:
        storage = 0 if chance.random() < (0.2 if apart else 0.7) else chance.randrange(nodes)
    limited = storage == 0 and chance.random() < 0.2
    hotplug = chance.randrange(nodes) if not shared and chance.random() < 0.2 else None
    return Plan(
        name,
        host,
        shared.storage if shared else storage,
        shared.claim if shared else "" if storage is None else name,
        hotplug,
        chance.choice(("Always", "Always", "Always", "RerunOnFailure", "Manual", "Once")),
        chance.choice(("LiveMigrate", "LiveMigrate", "None", "LiveMigrateIfPossible", "External", "")),
        chance.random() < 0.7,
        chance.choice(("before", "before", "after", "never")),
        limited and not shared,
        "pair" if chance.random() < 0.25 else "",
    )
