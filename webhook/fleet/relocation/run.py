"""A run of live migrations: which migration may be created now, and the results of the created migrations.

Each function returns a new value. The caller reads the cluster, asks for the next move, checks that VM again, creates
the migration, and reads the cluster again.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from msgspec import Struct, field
from msgspec.structs import replace

from webhook.fleet.relocation.rules import Move
from webhook.placement.objects.facts import Key
from webhook.placement.objects.fields import JsonObject, condition, has_condition, text
from webhook.placement.objects.pod import is_terminating

# Drains and upgrades need migrations too. KubeVirt queues a migration beyond its limit, which would delay theirs.
RESERVED_SLOTS = 2
MAX_PER_NODE = 2  # from one source node; KubeVirt's default for parallelOutboundMigrationsPerNode
# In these phases, KubeVirt can still cancel a migration at no cost. The target pod isn't bound, or has just been bound.
EARLY_PHASES = ("", "Pending", "Scheduling")
# In these phases, KubeVirt hasn't started a migration. Once it has, KubeVirt itself limits how long each step may take.
QUEUED_PHASES = ("", "Pending")
QUEUE_PATIENCE = 300.0  # seconds; KubeVirt gives an unschedulable target pod as long by default
# A quota may be raised for a migration: https://github.com/kubevirt/managed-tenant-quota does that within seconds.
BLOCK_PATIENCE = 60.0  # seconds
FINAL_PHASES = ("Succeeded", "Failed")
EVACUATES = "KubeVirt evacuates the VM from its node"


class Stage(StrEnum):
    """How far the relocation of one VM is."""

    WAITING = "Waiting"
    MIGRATING = "Migrating"
    SETTLING = "Settling"
    MOVED = "Moved"
    FAILED = "Failed"
    SKIPPED = "Skipped"


IN_FLIGHT = (Stage.MIGRATING, Stage.SETTLING)


class Migration(Struct, frozen=True):
    """A VirtualMachineInstanceMigration."""

    namespace: str
    name: str
    vmi: str
    phase: str
    source: str = ""  # the VMI's node
    uid: str = ""
    deleting: bool = False
    version: str = ""  # its resource version
    failure: str = ""  # why it failed
    blocked: str = ""  # why KubeVirt doesn't start it
    seen: float = 0.0  # when the run saw it first, in monotonic seconds

    @property
    def key(self) -> Key:
        """Return the namespace and name."""
        return self.namespace, self.name

    @property
    def unfinished(self) -> bool:
        """Return whether the migration is neither Succeeded nor Failed."""
        return self.phase not in FINAL_PHASES


class View(Struct, frozen=True):
    """The cluster at one moment."""

    now: float  # monotonic seconds
    migrations: tuple[Migration, ...] = ()
    # of the VMs in flight; a VMI that does not exist is missing
    vmis: Mapping[Key, JsonObject] = field(default_factory=dict)


class Limits(Struct, frozen=True):
    """How many migrations may run."""

    parallel: int = 1
    cluster: int = 5  # KubeVirt's own limit
    per_node: int = MAX_PER_NODE  # KubeVirt's own limit
    settle: float = 60.0  # for how many seconds the first VM of each StorageClass is watched after its migration
    most: int | None = None  # of the whole run

    @property
    def slots(self) -> int:
        """Return how many migrations may be unfinished in the cluster, including those of other clients."""
        return max(1, self.cluster - RESERVED_SLOTS)


class Relocation(Struct, frozen=True):
    """One VM of a run."""

    move: Move
    classes: frozenset[str] = frozenset()  # the StorageClasses of its claims
    stage: Stage = Stage.WAITING
    migration: str = ""
    canary: bool = False  # its StorageClasses aren't proven yet, so it migrates alone
    uid: str = ""  # of the migration; empty if the API server has not answered the request that creates it
    since: float = 0.0  # when the stage began
    detail: str = ""  # why the VM failed or was skipped
    contained: bool = False  # a user of the namespace may have caused the failure, so it stops the run only there

    def owns(self, migration: Migration) -> bool:
        """Return whether the run created this migration. A user can replace it by another one of the same name."""
        key = self.move.namespace, self.migration
        return self.stage in IN_FLIGHT and key == migration.key and self.uid in ("", migration.uid)


class Run(Struct, frozen=True):
    """All VMs of a run, in the order of their moves."""

    relocations: tuple[Relocation, ...]
    proven: frozenset[str] = frozenset()  # the StorageClasses whose first VM has settled
    stopped: str = ""  # why no further migration is created

    @property
    def in_flight(self) -> list[Relocation]:
        """Return the relocations that have begun and not ended."""
        return [each for each in self.relocations if each.stage in IN_FLIGHT]

    @property
    def begun(self) -> int:
        """Return how many migrations the run has created."""
        return sum(bool(each.migration) for each in self.relocations)

    @property
    def moved(self) -> int:
        """Return how many VMs the run has moved."""
        return sum(each.stage is Stage.MOVED for each in self.relocations)

    def finished(self, limits: Limits) -> bool:
        """Return whether nothing runs and nothing more may be created."""
        if self.in_flight:
            return False
        return bool(self.stopped) or not any(self.startable(limits))

    def startable(self, limits: Limits) -> Iterator[Relocation]:
        """Yield the relocations that may still begin."""
        if self.stopped or (limits.most is not None and self.begun >= limits.most):
            return iter(())
        closed = {each.move.namespace for each in self.relocations if each.contained}
        return (each for each in self.relocations if each.stage is Stage.WAITING and each.move.namespace not in closed)


def next_move(run: Run, view: View, limits: Limits) -> Relocation | None:
    """Return the next relocation for which a slot is free now, or None. The view must show all migrations."""
    # KubeVirt counts a migration from the creation of its target pod on: `findRunningMigrations` in
    # https://github.com/kubevirt/kubevirt/blob/d923fdb8/pkg/virt-controller/watch/migration/migration.go#L2440
    in_flight = run.in_flight
    unfinished = [each for each in view.migrations if each.unfinished and not each.blocked]
    migrating = sum(each.stage is Stage.MIGRATING for each in in_flight)
    if len(unfinished) >= limits.slots or migrating >= limits.parallel or any(each.canary for each in in_flight):
        return None
    # The guard counts a target pod only once it is bound.
    early = {each.key for each in unfinished if each.phase in EARLY_PHASES}
    expecting_pods = {each.move.target for each in in_flight if (each.move.namespace, each.migration) in early}
    for relocation in run.startable(limits):
        canary = not relocation.classes <= run.proven
        leaving = sum(each.source == relocation.move.source for each in unfinished)
        if leaving >= max(1, min(MAX_PER_NODE, limits.per_node)) or (canary and in_flight):
            continue
        if relocation.move.target not in expecting_pods:
            return replace(relocation, canary=canary)
    return None


class Withdrawal(Struct, frozen=True):
    """A migration of the run to delete, and the reason."""

    migration: Migration
    why: str
    stops: bool = False  # KubeVirt would not start the other migrations either


def withdrawals(run: Run, view: View) -> Iterator[Withdrawal]:
    """Yield those migrations of the run that KubeVirt does not start. It can still cancel them at no cost."""
    for each in view.migrations:
        if each.deleting or each.phase not in EARLY_PHASES or not any(one.owns(each) for one in run.in_flight):
            continue
        if text(view.vmis.get((each.namespace, each.vmi)), "status", "evacuationNodeName"):
            yield Withdrawal(each, EVACUATES)
        elif each.blocked and view.now - each.seen > BLOCK_PATIENCE:
            yield Withdrawal(each, f"KubeVirt cannot start the migration: {each.blocked}")
        elif each.phase in QUEUED_PHASES and view.now - each.seen > QUEUE_PATIENCE:
            why = f"KubeVirt has not started the migration for {QUEUE_PATIENCE:g} s"
            yield Withdrawal(each, why, stops=True)


def withdrawn(run: Run, withdrawal: Withdrawal) -> Run:
    """Record that a migration was deleted before it started."""
    for each in run.in_flight:
        if each.owns(withdrawal.migration):
            run = skipped(run, each, withdrawal.why)
            if withdrawal.stops:
                run = stopped(run, f"{'/'.join(each.move.key)}: {withdrawal.why}")
    return run


def begun(run: Run, relocation: Relocation, migration: str, uid: str, now: float) -> Run:
    """Record that the migration of a relocation was created, or, without `uid`, that it may have been."""
    return updated(run, replace(relocation, stage=Stage.MIGRATING, migration=migration, uid=uid, since=now))


def skipped(run: Run, relocation: Relocation, detail: str) -> Run:
    """Record that a VM is skipped, and why."""
    return updated(run, replace(relocation, stage=Stage.SKIPPED, detail=detail))


def stopped(run: Run, why: str) -> Run:
    """Create no further migration. The first reason stays."""
    return replace(run, stopped=run.stopped or why)


def updated(run: Run, changed: Relocation) -> Run:
    """Replace the relocation of one VM."""
    relocations = tuple(changed if each.move.key == changed.move.key else each for each in run.relocations)
    return replace(run, relocations=relocations)


def replanned(run: Run, plan: Iterable[Relocation]) -> Run:
    """Return the run with a new plan. A VM that was skipped gets another turn, unless the run created its migration."""
    begun = {each.move.key for each in run.relocations if each.migration}
    planned = {each.move.key: each for each in plan if each.move.key not in begun}
    kept = (each for each in run.relocations if each.move.key not in planned)
    return replace(run, relocations=(*kept, *planned.values()))


def advance(run: Run, view: View, limits: Limits) -> Run:
    """Return the run after the cluster was read again. A failed migration stops the run, or only its namespace."""
    for relocation in run.in_flight:
        if relocation.stage is Stage.SETTLING:
            changed = _settled(relocation, view, 0.0 if run.stopped else limits.settle)
        else:
            changed = _migrated(relocation, view)
        if changed.stage is Stage.SETTLING and (run.stopped or not changed.canary):
            changed = replace(changed, stage=Stage.MOVED)
        run = updated(run, changed)
        if changed.stage is Stage.FAILED and not changed.contained:
            run = stopped(run, f"{'/'.join(changed.move.key)}: {changed.detail}")
        elif changed.stage is Stage.MOVED and relocation.stage is Stage.SETTLING and not run.stopped:
            run = replace(run, proven=run.proven | changed.classes)
    return run


def _migrated(relocation: Relocation, view: View) -> Relocation:
    move = relocation.move
    found = next(filter(relocation.owns, view.migrations), None)
    vmi = view.vmis.get(move.key)
    arrived = text(vmi, "status", "nodeName") == move.target
    if _is_stopping(vmi):  # KubeVirt ends the migration with the VMI
        return replace(relocation, stage=Stage.SKIPPED, detail="the VM was stopped during the migration")
    if found is not None and found.unfinished:
        return replace(relocation, uid=found.uid)
    if found is None and not relocation.uid and not arrived:
        return replace(relocation, stage=Stage.WAITING, migration="", canary=False)
    if (found is None and arrived) or (found is not None and found.phase == "Succeeded"):
        if text(vmi, "status", "phase") == "Running" and not arrived:
            detail = f"the VM runs on {text(vmi, 'status', 'nodeName')}, not on {move.target}"
            return replace(relocation, stage=Stage.FAILED, detail=detail)
        return replace(relocation, stage=Stage.SETTLING, since=view.now)
    if text(vmi, "status", "evacuationNodeName"):
        return replace(relocation, stage=Stage.SKIPPED, detail=EVACUATES)
    if arrived:  # another client's migration was first, so KubeVirt couldn't place the target pod of this one
        return replace(relocation, stage=Stage.SKIPPED, detail="another migration has moved the VM to its storage")
    detail = (found.failure or "the migration failed") if found else "the migration was deleted before it succeeded"
    return replace(relocation, stage=Stage.FAILED, detail=detail, contained=found is None)


def _is_stopping(vmi: JsonObject | None) -> bool:
    """Return whether a user or the guest shuts the VM down, so that its end is no failure."""
    phase = text(vmi, "status", "phase")
    return phase == "Succeeded" or (phase != "Failed" and is_terminating(vmi))


def _settled(relocation: Relocation, view: View, settle: float) -> Relocation:
    vmi = view.vmis.get(relocation.move.key)
    if _is_stopping(vmi):
        return replace(relocation, stage=Stage.SKIPPED, detail="the VM was stopped after the migration")
    if text(vmi, "status", "phase") != "Running":
        return replace(relocation, stage=Stage.FAILED, detail="the VM stopped running after the migration")
    if has_condition(vmi, "Paused"):
        detail = f"the VM is paused after the migration: {text(condition(vmi, 'Paused'), 'reason')}"
        return replace(relocation, stage=Stage.FAILED, detail=detail, contained=True)
    if view.now - relocation.since < settle:
        return relocation
    if relocation.move.ready and not has_condition(vmi, "Ready"):
        # Its own users write the readiness probe.
        detail = f"not Ready {settle:g} seconds after the migration"
        return replace(relocation, stage=Stage.FAILED, detail=detail, contained=True)
    return replace(relocation, stage=Stage.MOVED)


def ordered(relocations: Iterable[Relocation]) -> tuple[Relocation, ...]:
    """Return the relocations with the first of each set of StorageClasses in front, else in the same order."""
    first = list[Relocation]()
    rest = list[Relocation]()
    seen = set[str]()
    for each in relocations:
        (rest if each.classes <= seen else first).append(each)
        seen |= each.classes
    return (*first, *rest)
