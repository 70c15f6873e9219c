"""In random fleets, a run never exceeds its limits, creates nothing after a failure, and ends."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.migrations import migratable
from webhook.fleet.relocation.rules import Move
from webhook.fleet.relocation.run import (
    Limits,
    Migration,
    Relocation,
    Run,
    Stage,
    View,
    advance,
    begun,
    next_move,
    ordered,
    skipped,
    withdrawals,
    withdrawn,
)

PHASES = ("", "Pending", "Scheduling", "Scheduled", "Running")


@dataclass
class Cluster:
    """KubeVirt and the world around it: random migrations of others, failures and drains."""

    dice: random.Random
    limits: Limits
    nodes: dict[str, str]  # of VMs
    migrations: dict[str, Migration] = field(default_factory=dict)
    draining: set[str] = field(default_factory=set)
    created: int = 0
    numbers: Iterator[int] = field(default_factory=count)
    ours: set[str] = field(default_factory=set)  # the migrations that the run has created

    def view(self, now: float) -> View:
        vmis = {
            ("shop", name): migratable(name, node, evacuationNodeName=node if name in self.draining else "")
            for name, node in self.nodes.items()
        }
        return View(now, tuple(self.migrations.values()), vmis)

    @property
    def unfinished(self) -> list[Migration]:
        return [each for each in self.migrations.values() if each.unfinished]

    def is_eligible(self, vm: str) -> bool:
        return vm not in self.draining and all(each.vmi != vm for each in self.unfinished)

    def create(self, vm: str) -> str:
        name = f"m{next(self.numbers)}"
        self.migrations[name] = Migration("shop", name, vm, "", self.nodes[vm], uid=name)
        return name

    def tick(self, targets: dict[str, str]) -> None:
        vms = sorted(self.nodes)
        if self.dice.random() < 0.2 and (vm := self.dice.choice(vms)) and self.is_eligible(vm):
            self.create(vm)
        if self.dice.random() < 0.1:
            self.draining.add(self.dice.choice(vms))
        for each in self.unfinished:
            if self.dice.random() < 0.05:
                self.migrations[each.name] = replace(each, phase="Failed")
            elif self.dice.random() < 0.6:
                later = (*PHASES, "Succeeded")[(*PHASES, "Succeeded").index(each.phase) + 1]
                self.migrations[each.name] = replace(each, phase=later)
                if later == "Succeeded":
                    self.draining.discard(each.vmi)
                    self.nodes[each.vmi] = targets[each.vmi] if each.name in self.ours else self.dice.choice("abcd")


LIMITS = st.builds(
    Limits,
    parallel=st.integers(1, 6),
    cluster=st.integers(1, 8),
    per_node=st.integers(1, 4),
    settle=st.sampled_from([0.0, 3.0]),
    most=st.none() | st.integers(1, 6),
)
NODES = st.sampled_from("abcd")
VMS = st.lists(
    st.tuples(NODES, NODES, st.frozensets(st.sampled_from(["x", "y", "z"]), min_size=1)), min_size=1, max_size=12
)


@given(seed=st.integers(0, 2**32), limits=LIMITS, vms=VMS)
def test_a_run_never_exceeds_its_limits_and_ends(
    seed: int, limits: Limits, vms: list[tuple[str, str, frozenset[str]]]
) -> None:
    relocations = [
        Relocation(Move("shop", f"vm{number}", source, target, target), classes)
        for number, (source, target, classes) in enumerate(vms)
    ]
    targets = {each.move.name: each.move.target for each in relocations}
    dice = random.Random(seed)
    cluster = Cluster(dice, limits, {each.move.name: each.move.source for each in relocations})
    run, proven = Run(ordered(relocations)), set[str]()
    for now in range(2000):
        for withdrawal in withdrawals(run, cluster.view(now)):
            assert withdrawal.migration.phase in ("", "Pending", "Scheduling")
            run = withdrawn(run, withdrawal)
            del cluster.migrations[withdrawal.migration.name]
        run = advance(run, cluster.view(now), limits)
        if run.finished(limits):
            break
        while found := next_move(run, (seen := cluster.view(now)), limits):
            run = create(run, found, cluster, proven, seen)
        proven |= run.proven
        cluster.tick(targets)
    assert run.finished(limits)
    assert bool(run.stopped) is any(each.stage is Stage.FAILED for each in run.relocations)
    assert cluster.created <= (limits.most or len(vms))
    assert {each.name for each in cluster.migrations.values() if each.unfinished} & cluster.ours == set()


def create(run: Run, found: Relocation, cluster: Cluster, proven: set[str], seen: View) -> Run:
    """Create a migration as the command does, after a check of the limits."""
    limits, unfinished, vm = cluster.limits, cluster.unfinished, found.move.name
    assert not run.stopped
    if not cluster.is_eligible(vm) or cluster.nodes[vm] != found.move.source or cluster.dice.random() < 0.1:
        return skipped(run, found, "refused")
    assert len(unfinished) < max(1, limits.cluster - 2)
    ours = [each for each in unfinished if each.name in cluster.ours]
    assert len(ours) < limits.parallel
    assert sum(each.source == found.move.source for each in unfinished) < min(2, limits.per_node)
    if not found.classes <= proven | run.proven:
        assert found.canary
        assert not ours
    assert not any(each.canary for each in run.in_flight)
    if cluster.dice.random() < 0.1:  # the API server doesn't answer, and has created nothing
        return begun(run, found, "lost", "", seen.now)
    cluster.created += 1
    name = cluster.create(vm)
    cluster.ours.add(name)
    return begun(run, found, name, cluster.dice.choice(["", name]), seen.now)
