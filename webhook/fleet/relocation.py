"""The values of a run of live migrations: its limits, its VMs and their stages, and a view of the cluster."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from webhook.fleet.recolocation import Move
from webhook.placement.objects.facts import Key

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


class Stage(StrEnum):
    """How far the relocation of one VM is."""

    WAITING = "Waiting"
    MIGRATING = "Migrating"
    SETTLING = "Settling"
    MOVED = "Moved"
    FAILED = "Failed"
    SKIPPED = "Skipped"


IN_FLIGHT = (Stage.MIGRATING, Stage.SETTLING)


@dataclass(frozen=True, slots=True)
class Migration:
    """A VirtualMachineInstanceMigration. `ours` means that a `recolocate` created it; `source` is the VMI's node.

    `version` is the resource version. `failure` says why the migration failed, `blocked` why KubeVirt doesn't start it.
    `seen` is when the run saw it first, in monotonic seconds.
    """

    namespace: str
    name: str
    vmi: str
    phase: str
    source: str = ""
    ours: bool = False
    deleting: bool = False
    version: str = ""
    failure: str = ""
    blocked: str = ""
    seen: float = 0.0

    @property
    def key(self) -> Key:
        """Return the namespace and name."""
        return self.namespace, self.name

    @property
    def unfinished(self) -> bool:
        """Return whether the migration is neither Succeeded nor Failed."""
        return self.phase not in FINAL_PHASES


@dataclass(frozen=True, slots=True)
class Sight:
    """The state of one VMI. `paused` is the reason of its condition Paused, empty without one.

    `stopping` means that a user or the guest shuts the VM down: the VMI is being deleted or Succeeded, but not Failed.
    """

    node: str
    running: bool = True
    ready: bool = True
    paused: str = ""
    evacuating: bool = False
    stopping: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """The cluster at one moment: all migrations, and the VMIs of the unfinished ones and of the VMs in flight.

    `now` are monotonic seconds. A VMI that doesn't exist is absent.
    """

    now: float
    migrations: tuple[Migration, ...] = ()
    vmis: Mapping[Key, Sight] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limits:
    """How many migrations may run. `cluster` and `per_node` are KubeVirt's own limits, `most` that of the whole run.

    `settle` is how many seconds the first VM of each StorageClass is watched after its migration.
    """

    parallel: int = 1
    cluster: int = 5
    per_node: int = MAX_PER_NODE
    settle: float = 60.0
    most: int | None = None

    @property
    def slots(self) -> int:
        """Return how many migrations may be unfinished in the cluster, including those of other clients."""
        return max(1, self.cluster - RESERVED_SLOTS)

    @property
    def slots_per_node(self) -> int:
        """Return how many unfinished migrations may leave one node."""
        return max(1, min(MAX_PER_NODE, self.per_node))


@dataclass(frozen=True, slots=True)
class Relocation:
    """One VM of a run. `canary` means that its StorageClasses aren't proven yet: it migrates alone.

    `classes` are the StorageClasses of its claims. `uncertain` means that the API server didn't answer the request that
    creates the migration. `withdrawn` says why the end of the migration is no failure: the run has deleted it, or the
    VM was stopped. `since` is when the stage began. `detail` says why the VM failed or was skipped.
    """

    move: Move
    classes: frozenset[str] = frozenset()
    stage: Stage = Stage.WAITING
    migration: str = ""
    canary: bool = False
    uncertain: bool = False
    withdrawn: str = ""
    since: float = 0.0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """A migration to delete before it starts, and why. `stops` means that no other migration would start either."""

    migration: Migration
    why: str
    stops: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """All VMs of a run, in the order of their moves. `stopped` says why no further migration is created."""

    relocations: tuple[Relocation, ...]
    proven: frozenset[str] = frozenset()
    stopped: str = ""

    @property
    def in_flight(self) -> list[Relocation]:
        """Return the relocations that have begun and not ended."""
        return [each for each in self.relocations if each.stage in IN_FLIGHT]

    @property
    def begun(self) -> int:
        """Return how many migrations the run has created."""
        return sum(bool(each.migration) for each in self.relocations)

    def finished(self, limits: Limits) -> bool:
        """Return whether nothing runs and nothing more may be created."""
        if self.in_flight:
            return False
        return bool(self.stopped) or not any(self.startable(limits))

    def startable(self, limits: Limits) -> Iterator[Relocation]:
        """Yield the relocations that may still begin."""
        if self.stopped or (limits.most is not None and self.begun >= limits.most):
            return iter(())
        return (each for each in self.relocations if each.stage is Stage.WAITING)
