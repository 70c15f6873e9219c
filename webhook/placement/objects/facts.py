"""The facts about each object of the cluster that a decision uses."""

from collections.abc import Mapping

from msgspec import Struct

from webhook.placement.objects.fields import JsonObject
from webhook.placement.objects.kubevirt import (
    APP_LABEL,
    CREATED_BY_LABEL,
    HOTPLUG_POD,
    MIGRATION_LABEL,
    REPLICA_SET,
    VIRT_LAUNCHER,
)
from webhook.placement.objects.selectors import AffinityTerm, Selector

Key = tuple[str, str]

# With these, KubeVirt starts a VM again whose pod was deleted before it ran: https://kubevirt.io/user-guide/compute/run_strategies/
RESTARTING_STRATEGIES = ("Always", "RerunOnFailure")
# KubeVirt delays the next start by 10·n² seconds after n failures, up to 300 s, and each release counts as a failure.
MAX_START_FAILURES = 2


class Fact:
    """What the caches hold of an object. The namespace is empty if the kind has none."""

    __slots__ = ()
    namespace: str = ""
    name: str

    @property
    def key(self) -> Key:
        """Return the namespace and name, which identify an object within its kind."""
        return self.namespace, self.name


class Claim(Fact, Struct, frozen=True):
    """A PersistentVolumeClaim.

    `volume_name` is the PV that the claim names: the user may have written it (see `Volume.names`). `phase` is
    the claim's `status.phase`. `shared` means ReadWriteMany, `read_only_many` means ReadOnlyMany without ReadWriteMany,
    and `block` means volumeMode Block. `persistent_state` marks the claim of a persistent vTPM or EFI state.
    `storage_class` is empty if the claim names none. `size` is the requested capacity in bytes, 0 if unknown.
    """

    namespace: str
    name: str
    volume_name: str
    shared: bool
    persistent_state: bool
    read_only_many: bool = False
    block: bool = False
    storage_class: str = ""
    uid: str = ""
    phase: str = ""
    size: int = 0


class Volume(Fact, Struct, frozen=True):
    """A PersistentVolume. `handle` is its Longhorn volume, empty for another driver; `claim` is its claimRef.

    `claim_uid` is the UID in the claimRef, empty if it has none.
    `migratable` and `share` are Longhorn's parameters of that name. A migratable volume never has a share-manager.
    `driver` is another CSI driver than Longhorn's, empty if it has none.
    `zones` are its labels for a zone or a region (`TOPOLOGY_LABELS`), each with the values that it admits.
    """

    name: str
    handle: str
    claim: Key | None
    node_affinity: JsonObject | None
    migratable: bool = False
    share: bool = False
    claim_uid: str = ""
    zones: Mapping[str, frozenset[str]] = {}
    driver: str = ""

    def names(self, claim: Claim) -> bool:
        """Return whether the claimRef names the claim. A claim that was deleted and recreated has another UID."""
        if self.claim != claim.key:
            return False
        return not self.claim_uid or not claim.uid or self.claim_uid == claim.uid


class ShareManager(Fact, Struct, frozen=True):
    """A Longhorn ShareManager, named after its volume. `state` and `owner` are empty if the status has none."""

    namespace: str
    name: str
    state: str
    owner: str
    deleting: bool


class CSINode(Fact, Struct, frozen=True):
    """The CSI drivers on a node. `unlimited` are those that may attach any number of volumes to it."""

    name: str
    unlimited: frozenset[str]


class Node(Fact, Struct, frozen=True):
    """A node. `ready` is None without a Ready condition; `allocatable` is None if the status does not report it."""

    name: str
    labels: Mapping[str, str]
    ready: bool | None
    unschedulable: bool
    taints: tuple[JsonObject, ...]
    allocatable: Mapping[str, int] | None


class VirtualMachine(Fact, Struct, frozen=True):
    """A KubeVirt VM.

    `strategy` is its run strategy. `start_failures` counts the failed starts in a row. `true_annotations` are the keys
    of its template's annotations with the value "true", and `false_annotations` those with the value "false". `claims`
    are the claims that its pod mounts, and `hotpluggable` those that KubeVirt mounts in a pod of their own.
    `inherits` means that an instancetype or a preference may add annotations to its pod. A VM that is recreated has
    another `uid`.
    """

    namespace: str
    name: str
    strategy: str
    start_failures: int
    true_annotations: frozenset[str]
    false_annotations: frozenset[str] = frozenset()
    claims: tuple[str, ...] = ()
    inherits: bool = False
    uid: str = ""
    hotpluggable: tuple[str, ...] = ()

    @property
    def restarts(self) -> bool:
        """Return whether KubeVirt starts the VM again if its pod is deleted before it ran."""
        return self.strategy in RESTARTING_STRATEGIES


class VirtualMachineInstance(Fact, Struct, frozen=True):
    """A KubeVirt VMI. `owner_kind`, `owner_name` and `owner_uid` are its controller's, empty if it has none.

    The controller is a VirtualMachine, a VirtualMachineInstanceReplicaSet, or another program's object.
    """

    namespace: str
    name: str
    uid: str
    owner_kind: str = ""
    owner_name: str = ""
    owner_uid: str = ""

    @property
    def in_replica_set(self) -> bool:
        """Return whether a VirtualMachineInstanceReplicaSet controls the VMI, and replaces it under another name."""
        return self.owner_kind == REPLICA_SET


class PendingPin(Struct, frozen=True):
    """The pin of an unbound pod: its node, and the name and UID of the VMI that controls the pod.

    `unschedulable_since` is the time at which the scheduler first found no node for the pod, empty before that. With
    `prefers`, the webhook only prefers the node, and the scheduler has not evaluated the pod yet.
    """

    node: str
    vm: str
    vmi_uid: str
    unschedulable_since: str = ""
    prefers: bool = False


class Pod(Fact, Struct, frozen=True):
    """A pod that has not finished.

    `effective_node` is the node that the pod is bound to, or else the node that the scheduler nominated. While an
    unbound pod counts on the node of its `pin` (see `guard.pins`), it is that node. `prefers` means that the webhook
    only prefers the node of the pin. `alive` means Pending or Running, and not terminating. `claims` are the claims
    that it mounts. Only pods of VMs have `true_annotations` and `false_annotations` (the keys of annotations with that
    value) and an `owner` (the UID of the controller). `pin` is set while a VMI's pod that the webhook pinned, or for
    which it prefers a node, is unbound. `vm` is the name of the VMI that the pod runs, and `deciding_claim` the claim
    that its annotation names as the one that decides; both are empty for other pods. Of an `oversized` pod, the labels,
    terms, claims and annotations are unknown. `undecided` means that the pod starts a VM, and that the webhook has
    recorded no decision on it. `nominated` means that it is unbound, and that the scheduler has nominated a node for
    it.
    """

    namespace: str
    name: str
    uid: str
    node: str
    effective_node: str
    alive: bool
    created: str
    labels: Mapping[str, str]
    requests: Mapping[str, int]
    anti_affinity: tuple[AffinityTerm, ...]
    claims: tuple[str, ...]
    true_annotations: frozenset[str]
    owner: str
    pin: PendingPin | None = None
    vm: str = ""
    deciding_claim: str = ""
    false_annotations: frozenset[str] = frozenset()
    prefers: bool = False
    oversized: bool = False
    undecided: bool = False
    priority: int = 0
    nominated: bool = False

    def is_ignored_for(self, pod: "Pod") -> bool:
        """Return whether the scheduler ignores this nominated pod where it evaluates `pod` on its effective node.

        Source: kube-scheduler, `addGENominatedPods` in pkg/scheduler/framework/runtime/framework.go.
        """
        counts = self.priority >= pod.priority and self.effective_node == pod.effective_node
        return self.nominated and not self.pin and not counts

    @property
    def vmi_uid(self) -> str:
        """Return the UID of the VMI that the pod runs, or an empty string."""
        return self.labels.get(CREATED_BY_LABEL, "")

    @property
    def is_virt_launcher(self) -> bool:
        """Return whether the pod runs a VM."""
        return self.labels.get(APP_LABEL) == VIRT_LAUNCHER

    @property
    def belongs_to_vm(self) -> bool:
        """Return whether the pod runs a VM or mounts claims for one."""
        return self.labels.get(APP_LABEL) in (VIRT_LAUNCHER, HOTPLUG_POD)

    @property
    def is_migration_target(self) -> bool:
        """Return whether KubeVirt created the pod as the target of a live migration."""
        return bool(self.labels.get(MIGRATION_LABEL))


class Namespace(Fact, Struct, frozen=True):
    """A namespace. `opt_in` is its label, None if that is neither "true" nor "false"."""

    name: str
    opt_in: bool | None
    labels: Mapping[str, str] = {}


class StorageClass(Fact, Struct, frozen=True):
    """A StorageClass. `opts_in` means that its annotation is "true".

    `waits` means that a claim gets its Longhorn volume only when a pod mounts the claim. `limits` are what the nodes of
    share-managers must match.
    """

    name: str
    opts_in: bool
    waits: bool = False
    limits: Selector = ()
