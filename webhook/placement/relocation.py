"""The values of a run of live migrations: its limits, its VMs and their stages, and a view of the cluster."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from webhook.placement.facts import Key
from webhook.placement.recolocation import Move

# Drains and upgrades need migrations too. KubeVirt queues a migration beyond its limit, which would delay theirs.
RESERVED_SLOTS = 2
MAX_PER_NODE = 2  # from one source node; KubeVirt's default for parallelOutboundMigrationsPerNode
# In these phases, KubeVirt can still cancel a migration at no cost. The target pod isn't bound, or has just been bound.
EARLY_PHASES = ("", "Pending", "Scheduling")
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

    `version` is the resource version, and `failure` says why the migration failed.
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
    """The state of one VMI. `paused` is the reason of its condition Paused, empty without one."""

    node: str
    running: bool = True
    ready: bool = True
    paused: str = ""
    evacuating: bool = False


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
    creates the migration. `withdrawn` means that the migration was deleted for a drain. `since` is when the stage
    began. `detail` says why the VM failed or was skipped.
    """

    move: Move
    classes: frozenset[str] = frozenset()
    stage: Stage = Stage.WAITING
    migration: str = ""
    canary: bool = False
    uncertain: bool = False
    withdrawn: bool = False
    since: float = 0.0
    detail: str = ""


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
