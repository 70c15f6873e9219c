"""A run of live migrations: which migration may be created now, and the results of the created migrations.

Each function returns a new value. The caller reads the cluster, asks for the next move, checks that VM again, creates
the migration, and reads the cluster again.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from webhook.fleet.relocation import (
    BLOCK_PATIENCE,
    EARLY_PHASES,
    QUEUE_PATIENCE,
    QUEUED_PHASES,
    Limits,
    Migration,
    Relocation,
    Run,
    Sight,
    Stage,
    View,
    Withdrawal,
)

EVACUATES = "KubeVirt evacuates the VM from its node"


def next_move(run: Run, view: View, limits: Limits) -> Relocation | None:
    """Return the next relocation for which a slot is free now. None if there is none."""
    in_flight, unfinished = run.in_flight, _unfinished(run, view)
    ours = sum(each.ours for each in unfinished)
    if len(unfinished) >= limits.slots or ours >= limits.parallel or any(each.canary for each in in_flight):
        return None
    for relocation in run.startable(limits):
        canary = not relocation.classes <= run.proven
        leaving = sum(each.source == relocation.move.source for each in unfinished)
        if leaving >= limits.slots_per_node or (canary and (in_flight or ours)):
            continue
        # The guard counts a target pod only once it is bound.
        if relocation.move.target in _expecting_pods(run, view):
            continue
        return replace(relocation, canary=canary)
    return None


def _unfinished(run: Run, view: View) -> list[Migration]:
    """Return all unfinished migrations, also those that the view doesn't show yet."""
    seen = {each.key for each in view.migrations}
    created = (
        Migration(each.move.namespace, each.migration, each.move.name, "", each.move.source, ours=True)
        for each in run.relocations
        if each.stage is Stage.MIGRATING and (each.move.namespace, each.migration) not in seen
    )
    return [*(each for each in view.migrations if each.unfinished), *created]


def _expecting_pods(run: Run, view: View) -> set[str]:
    phases = {each.key: each.phase for each in view.migrations}
    return {
        each.move.target
        for each in run.relocations
        if each.stage is Stage.MIGRATING and phases.get((each.move.namespace, each.migration), "") in EARLY_PHASES
    }


def withdrawals(view: View) -> Iterator[Withdrawal]:
    """Yield our migrations that KubeVirt can still cancel at no cost, and that would only be in the way."""
    for each in view.migrations:
        if not each.ours or each.deleting or each.phase not in EARLY_PHASES:
            continue
        if _is_evacuating(each, view):
            yield Withdrawal(each, EVACUATES)
        elif each.blocked and view.now - each.seen > BLOCK_PATIENCE:
            yield Withdrawal(each, f"KubeVirt cannot start the migration: {each.blocked}")
        elif each.phase in QUEUED_PHASES and view.now - each.seen > QUEUE_PATIENCE:
            yield Withdrawal(each, f"KubeVirt has not started the migration for {QUEUE_PATIENCE:g} s", stops=True)


def withdrawn(run: Run, withdrawal: Withdrawal) -> Run:
    """Record that a migration was deleted before it started."""
    found = [each for each in run.in_flight if (each.move.namespace, each.migration) == withdrawal.migration.key]
    for each in found:
        run = updated(run, replace(each, withdrawn=withdrawal.why))
        if withdrawal.stops:
            run = stopped(run, f"{'/'.join(each.move.key)}: {withdrawal.why}")
    return run


def _is_evacuating(migration: Migration, view: View) -> bool:
    sight = view.vmis.get((migration.namespace, migration.vmi))
    return sight is not None and sight.evacuating


def begun(run: Run, relocation: Relocation, migration: str, now: float, *, uncertain: bool = False) -> Run:
    """Record that the migration of a relocation was created, or, if `uncertain`, that it may have been."""
    changed = replace(relocation, stage=Stage.MIGRATING, migration=migration, since=now, uncertain=uncertain)
    return updated(run, changed)


def skipped(run: Run, relocation: Relocation, detail: str) -> Run:
    """Record that a VM is skipped, and why."""
    return updated(run, replace(relocation, stage=Stage.SKIPPED, detail=detail, migration="", canary=False))


def stopped(run: Run, why: str) -> Run:
    """Create no further migration. The first reason stays."""
    return replace(run, stopped=run.stopped or why)


def updated(run: Run, changed: Relocation) -> Run:
    """Replace the relocation of one VM."""
    relocations = tuple(changed if each.move.key == changed.move.key else each for each in run.relocations)
    return replace(run, relocations=relocations)


def advance(run: Run, view: View, limits: Limits) -> Run:
    """Return the run after the cluster was read again. A failed migration stops the run."""
    for relocation in run.in_flight:
        if relocation.stage is Stage.SETTLING:
            changed = _settled(relocation, view, 0.0 if run.stopped else limits.settle)
        else:
            changed = _migrated(relocation, view)
        if changed.stage is Stage.SETTLING and (run.stopped or not changed.canary):
            changed = replace(changed, stage=Stage.MOVED)
        run = updated(run, changed)
        if changed.stage is Stage.FAILED:
            run = stopped(run, f"{'/'.join(changed.move.key)}: {changed.detail}")
        elif changed.stage is Stage.MOVED and relocation.stage is Stage.SETTLING and not run.stopped:
            run = replace(run, proven=run.proven | changed.classes)
    return run


def _migrated(relocation: Relocation, view: View) -> Relocation:
    move = relocation.move
    found = {each.key: each for each in view.migrations}.get((move.namespace, relocation.migration))
    sight = view.vmis.get(move.key)
    arrived = sight is not None and sight.node == move.target
    if sight is not None and sight.stopping:
        relocation = replace(relocation, withdrawn=relocation.withdrawn or "the VM was stopped during the migration")
    if found is not None and found.unfinished:
        return relocation
    if found is None and relocation.uncertain and not arrived:
        return replace(relocation, stage=Stage.WAITING, migration="", canary=False, uncertain=False)
    if (found is None and arrived) or (found is not None and found.phase == "Succeeded"):
        return _succeeded(relocation, sight, view.now)
    if relocation.withdrawn or (sight and sight.evacuating):
        return replace(relocation, stage=Stage.SKIPPED, detail=relocation.withdrawn or EVACUATES)
    if arrived:  # another client's migration was first, so KubeVirt couldn't place the target pod of this one
        return replace(relocation, stage=Stage.SKIPPED, detail="another migration has moved the VM to its storage")
    if found is None:
        return replace(relocation, stage=Stage.FAILED, detail="the migration was deleted before it succeeded")
    return replace(relocation, stage=Stage.FAILED, detail=found.failure or "the migration failed")


def _succeeded(relocation: Relocation, sight: Sight | None, now: float) -> Relocation:
    target = relocation.move.target
    if sight is not None and sight.running and sight.node != target:
        return replace(relocation, stage=Stage.FAILED, detail=f"the VM runs on {sight.node}, not on {target}")
    return replace(relocation, stage=Stage.SETTLING, since=now, detail="")


def _settled(relocation: Relocation, view: View, settle: float) -> Relocation:
    sight = view.vmis.get(relocation.move.key)
    if sight is not None and sight.stopping:
        return replace(relocation, stage=Stage.SKIPPED, detail="the VM was stopped after the migration")
    failure = _failure(sight)
    if failure:
        return replace(relocation, stage=Stage.FAILED, detail=failure)
    if view.now - relocation.since < settle:
        return relocation
    if sight and not sight.ready and relocation.move.ready:
        return replace(relocation, stage=Stage.FAILED, detail=f"not Ready {settle:g} seconds after the migration")
    return replace(relocation, stage=Stage.MOVED)


def _failure(sight: Sight | None) -> str:
    if sight is None or not sight.running:
        return "the VM stopped running after the migration"
    return f"the VM is paused after the migration: {sight.paused}" if sight.paused else ""


def ordered(relocations: Iterable[Relocation]) -> tuple[Relocation, ...]:
    """Return the relocations with the first of each set of StorageClasses in front, else in the same order."""
    first, rest, seen = list[Relocation](), list[Relocation](), set[str]()
    for each in relocations:
        (rest if each.classes <= seen else first).append(each)
        seen |= each.classes
    return (*first, *rest)
