"""The result of a decision: what happens to the pod, and why.

`Reason` is the shared vocabulary: the log, the metrics, the annotations, `explain` and the tests use the same word.
"""

from enum import StrEnum

from msgspec import Struct

from webhook.placement.objects.facts import Pod
from webhook.placement.objects.selectors import Selector


class Outcome(StrEnum):
    """Whether the pod's node affinity requires or prefers the target node after the decision.

    `UNCHANGED` adds no term in favor of the node.
    """

    PINNED = "pinned"
    PREFERRED = "preferred"
    UNCHANGED = "unchanged"


class Mode(StrEnum):
    """Whether a VM requires the node of its storage or only prefers it."""

    REQUIRED = "required"
    PREFERRED = "preferred"


class Subject(StrEnum):
    """What the pod of a decision runs."""

    VM = "vm"
    SHARE_MANAGER = "share-manager"


class OptedInBy(StrEnum):
    """The source of a VM's opt-in. It is `UNKNOWN` until the cache is synced, and if the webhook fails."""

    ANNOTATION = "annotation"
    NAMESPACE = "namespace"
    STORAGE_CLASS = "storage-class"
    NOTHING = "nothing"
    UNKNOWN = "unknown"


class Source(StrEnum):
    """The kind of object that determined a claim's node."""

    SHARE_MANAGER_POD = "share-manager-pod"
    SHARE_MANAGER = "share-manager"
    VIRT_LAUNCHER_POD = "virt-launcher-pod"
    POD = "pod"


class Reason(StrEnum):
    """The cause of a decision, in the order of the checks."""

    CO_SCHEDULED = "CoScheduled"
    COLD_START = "ColdStart"

    # Eligibility: does the webhook handle the pod?
    NOT_A_POD_CREATION = "NotAPodCreation"
    NOT_VIRT_LAUNCHER = "NotVirtLauncher"
    NOT_FROM_KUBEVIRT = "NotFromKubeVirt"
    NOT_OPTED_IN = "NotOptedIn"
    MIGRATION_TARGET = "MigrationTarget"
    EPHEMERAL_PROVISIONING = "EphemeralProvisioning"
    ALREADY_BOUND = "AlreadyBound"
    NO_CLAIMS = "NoClaims"
    ALREADY_INJECTED = "AlreadyInjected"

    # Claims: which node serves each claim?
    CLAIM_NOT_FOUND = "ClaimNotFound"
    CLAIM_NOT_RWX = "ClaimNotRWX"
    CLAIM_NOT_BOUND = "ClaimNotBound"
    NOT_LONGHORN = "NotLonghorn"
    NO_SHARE_MANAGER_EVER = "NoShareManagerEver"
    SHARE_MANAGER_STARTING = "ShareManagerStarting"
    NO_SHARE_MANAGER = "NoShareManager"
    SHARED_CLAIM_ONLY = "SharedClaimOnly"

    # Node guard: can the node run the pod?
    CACHE_STALE = "CacheStale"
    NODE_NOT_FOUND = "NodeNotFound"
    NODE_NOT_READY = "NodeNotReady"
    NODE_CORDONED = "NodeCordoned"
    NODE_TAINTED = "NodeTainted"
    NODE_MISMATCH = "NodeMismatch"
    VOLUME_MISMATCH = "VolumeMismatch"
    NODE_FULL = "NodeFull"
    POD_AFFINITY = "PodAffinity"
    RELEASED = "Released"
    START_FAILED = "StartFailed"
    UNJUDGED = "Unjudged"

    # Pinned pods that stay Pending: why the pin can't hold (see `release`)
    SHARE_MANAGER_MOVED = "ShareManagerMoved"
    PENDING_TOO_LONG = "PendingTooLong"
    NOT_SCHEDULED = "NotScheduled"

    # Running VMs: why the VM is not on the node of its share-manager (see `fleet`)
    NOT_REVIEWED = "NotReviewed"
    SCHEDULED_ELSEWHERE = "ScheduledElsewhere"
    VOTES_CHANGED = "VotesChanged"

    # Share-manager pods: which node runs the VMs that use the volume?
    NOT_FROM_LONGHORN = "NotFromLonghorn"
    STEERING_OFF = "SteeringOff"
    NO_CONSUMER = "NoConsumer"
    NODE_AVOIDED = "NodeAvoided"

    # The webhook is failing; the pod continues unchanged
    CACHE_NOT_SYNCED = "CacheNotSynced"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    INTERNAL_ERROR = "InternalError"


# The conditions on a node that don't depend on its other pods.
NODE_REASONS = (
    Reason.NODE_NOT_FOUND,
    Reason.NODE_NOT_READY,
    Reason.NODE_CORDONED,
    Reason.NODE_TAINTED,
    Reason.NODE_MISMATCH,
    Reason.VOLUME_MISMATCH,
)
BEING_REPLACED = "is being replaced"  # a share-manager: Longhorn passes the state `error` in each replacement

# No share-manager ever serves such a claim, so the VM may run anywhere.
NEVER_SERVED_REASONS = frozenset({Reason.CLAIM_NOT_RWX, Reason.NOT_LONGHORN, Reason.NO_SHARE_MANAGER_EVER})

# The reasons of a pod that only prefers a node, but may be bound there.
MAY_FIT_REASONS = frozenset(
    {
        Reason.CO_SCHEDULED,
        Reason.SHARE_MANAGER_STARTING,
        Reason.CACHE_STALE,
        Reason.RELEASED,
        Reason.UNJUDGED,
    }
)


class ClaimFinding(Struct, frozen=True):
    """One claim of the pod: its Longhorn volume and its node, or the reason why it has no node."""

    claim: str
    volume: str | None = None  # its Longhorn volume
    node: str | None = None  # where its share-manager runs; with SHARE_MANAGER_STARTING, where it will probably run
    source: Source | None = None
    reason: Reason | None = None  # why it has no node; after NO_SHARE_MANAGER, the share-manager follows the VM
    persistent_state: bool = False  # of a vTPM or EFI state
    decides: bool = True  # whether it has a vote (see `resolve`)
    detail: str = ""  # a predicate of the share-manager, such as "is stopped"
    limits: Selector = ()  # what the node of its share-manager must match
    unseen: bool = False  # the catalog lacks the claim, or the PV that it names: it may be some milliseconds old

    @property
    def follows(self) -> bool:
        """Return whether its next share-manager starts after the VM, and follows it."""
        return self.reason is Reason.NO_SHARE_MANAGER or (self.detail == BEING_REPLACED and not self.node)


class LocalNodes(Struct, frozen=True):
    """The nodes that can run a pod and have a healthy replica of most of its claims, and these claims."""

    nodes: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()


class Decision(Struct, frozen=True):
    """The decision on one pod."""

    outcome: Outcome
    reason: Reason
    message: str  # one sentence, without a full stop
    mode: Mode
    node: str | None = None  # the target node, even if the guard rejected it
    conflict: bool = False  # claims of the deciding rank are on several nodes
    claims: tuple[ClaimFinding, ...] = ()
    recorded: bool = False  # the pod gets the decision annotation
    unpins: bool = False  # the patch removes the required terms of an earlier call of the webhook
    # the pod prefers all nodes but `node`: pinned pods need its free resources, or the VM can't run there
    avoids: bool = False
    opted_in_by: OptedInBy = OptedInBy.NOTHING  # of a share-manager: what opts in the pod that it follows
    # the facts of the pod on the node, if the guard evaluated the node and the pod is pinned, or prefers it and may fit
    reservation: Pod | None = None
    passed_over: bool = False  # the guard did not evaluate a term of a pod in another namespace
    user_unseen: bool = False  # of a share-manager: the catalog knows no bound pod that mounts its volume
    replica_nodes: tuple[str, ...] = ()  # at a cold start: the nodes with a replica that the pod prefers
