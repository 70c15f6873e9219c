"""What was decided, and why.

`Reason` is the one vocabulary: the same word stands in the log, the metric, the annotations, `explain` and the tests.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from webhook.placement.catalog import Pod


class Outcome(StrEnum):
    """What happened to the pod's node affinity."""

    PINNED = "pinned"
    PREFERRED = "preferred"
    UNCHANGED = "unchanged"


class Mode(StrEnum):
    """How strongly a VM is bound to the node of its storage."""

    REQUIRED = "required"
    PREFERRED = "preferred"


class Source(StrEnum):
    """What told us a claim's node."""

    SHARE_MANAGER_POD = "share-manager-pod"
    SHARE_MANAGER = "share-manager"
    VIRT_LAUNCHER_POD = "virt-launcher-pod"


class Reason(StrEnum):
    """Why it was decided so, in the order in which the questions are asked."""

    CO_SCHEDULED = "CoScheduled"

    # Is the pod ours?
    NOT_A_POD_CREATION = "NotAPodCreation"
    NOT_VIRT_LAUNCHER = "NotVirtLauncher"
    NOT_OPTED_IN = "NotOptedIn"
    MIGRATION_TARGET = "MigrationTarget"
    EPHEMERAL_PROVISIONING = "EphemeralProvisioning"
    ALREADY_BOUND = "AlreadyBound"
    NO_CLAIMS = "NoClaims"
    ALREADY_INJECTED = "AlreadyInjected"

    # From each claim to a node
    CLAIM_NOT_FOUND = "ClaimNotFound"
    CLAIM_NOT_RWX = "ClaimNotRWX"
    CLAIM_NOT_BOUND = "ClaimNotBound"
    NOT_LONGHORN = "NotLonghorn"
    SHARE_MANAGER_STOPPED = "ShareManagerStopped"
    SHARE_MANAGER_UNASSIGNED = "ShareManagerUnassigned"
    NO_SHARE_MANAGER = "NoShareManager"

    # Can that node take the pod?
    NODE_NOT_FOUND = "NodeNotFound"
    NODE_NOT_READY = "NodeNotReady"
    NODE_CORDONED = "NodeCordoned"
    NODE_TAINTED = "NodeTainted"
    NODE_MISMATCH = "NodeMismatch"
    VOLUME_MISMATCH = "VolumeMismatch"
    NODE_FULL = "NodeFull"
    POD_AFFINITY = "PodAffinity"
    UNJUDGED = "Unjudged"

    # A share-manager pod follows its VM
    STEERING_OFF = "SteeringOff"
    NO_CONSUMER = "NoConsumer"
    NODE_AVOIDED = "NodeAvoided"

    # We are unwell; the pod goes on without us
    CACHE_NOT_SYNCED = "CacheNotSynced"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    INTERNAL_ERROR = "InternalError"


CLAIM_REASONS = frozenset(
    {
        Reason.CLAIM_NOT_FOUND,
        Reason.CLAIM_NOT_RWX,
        Reason.CLAIM_NOT_BOUND,
        Reason.NOT_LONGHORN,
        Reason.SHARE_MANAGER_STOPPED,
        Reason.SHARE_MANAGER_UNASSIGNED,
        Reason.NO_SHARE_MANAGER,
    }
)

GUARD_REASONS = (
    Reason.NODE_NOT_FOUND,
    Reason.NODE_NOT_READY,
    Reason.NODE_CORDONED,
    Reason.NODE_TAINTED,
    Reason.NODE_MISMATCH,
    Reason.VOLUME_MISMATCH,
    Reason.NODE_FULL,
    Reason.POD_AFFINITY,
    Reason.UNJUDGED,
)


@dataclass(frozen=True, slots=True)
class ClaimFinding:
    """One claim of the pod: the Longhorn volume behind it and its node, or the reason why there is none."""

    claim: str
    volume: str | None = None
    node: str | None = None
    source: Source | None = None
    reason: Reason | None = None
    persistent_state: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens to one pod.

    `node` is the one that was meant, also where the guard refused it. `recorded` says that the pod is told: it gets the
    decision annotation. `reservation` is a pinned pod as it will be on the node, where the guard has looked at it.
    """

    outcome: Outcome
    reason: Reason
    message: str
    mode: Mode
    node: str | None = None
    conflict: bool = False
    claims: tuple[ClaimFinding, ...] = ()
    recorded: bool = False
    reservation: Pod | None = field(default=None, compare=False, repr=False)
