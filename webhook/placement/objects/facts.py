"""The facts about each object of the cluster that a decision uses."""

from collections.abc import Mapping

from msgspec import Struct

from webhook.placement.objects import kubevirt
from webhook.placement.objects.fields import JsonObject
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
    """A PersistentVolumeClaim."""

    namespace: str
    name: str
    volume_name: str  # the PV that the claim names: a user may have written it (see `Volume.names`)
    shared: bool  # ReadWriteMany
    state_of: str = ""  # the VM whose vTPM or EFI state it keeps
    block: bool = False  # volumeMode Block
    storage_class: str = ""  # empty if the claim names none
    uid: str = ""
    phase: str = ""  # its status.phase
    size: int = 0  # requested capacity in bytes; 0 if unknown

    def is_bound(self, volume: "Volume | None") -> bool:
        """Return whether the claim is bound. `volume` is the PV that it names, None if that is unknown.

        Namespace users write `spec.volumeName`: only the PV's claimRef, or the claim's status, shows that it is theirs.
        """
        if volume:
            return volume.names(self)
        return bool(self.volume_name) and self.phase == "Bound"


class Volume(Fact, Struct, frozen=True):
    """A PersistentVolume."""

    name: str
    handle: str  # its Longhorn volume; empty for another driver
    claim: Key | None  # its claimRef
    node_affinity: JsonObject | None
    migratable: bool = False  # Longhorn's parameter; such a volume never has a share-manager
    claim_uid: str = ""  # the UID in the claimRef; empty if it has none
    # labels for a zone or a region (`TOPOLOGY_LABELS`), with the values that each admits
    zones: Mapping[str, frozenset[str]] = {}
    driver: str = ""  # its CSI driver, also of an in-tree type; empty for a PV of another type

    def names(self, claim: Claim) -> bool:
        """Return whether the claimRef names the claim. A claim that was deleted and recreated has another UID."""
        if self.claim != claim.key:
            return False
        return not self.claim_uid or not claim.uid or self.claim_uid == claim.uid


class ShareManager(Fact, Struct, frozen=True):
    """A Longhorn ShareManager, named after its volume."""

    namespace: str
    name: str
    state: str  # empty if the status has none
    owner: str  # status.ownerID: the node of its controller, not of its pod
    deleting: bool


class LonghornVolume(Fact, Struct, frozen=True):
    """Longhorn's own object of a volume."""

    namespace: str
    name: str
    data_locality: str
    number_of_replicas: int  # the wanted one
    attached_to: str  # the node of its engine; empty while it is detached


class Replica(Fact, Struct, frozen=True):
    """A replica of a Longhorn volume."""

    namespace: str
    name: str
    volume: str
    node: str
    healthy: bool  # its data is complete
    used: bool  # it has been healthy, or has failed


class CSINode(Fact, Struct, frozen=True):
    """The CSI drivers on a node."""

    name: str
    unlimited: frozenset[str]  # registered drivers that may attach any number of volumes to the node


class Taint(Struct, frozen=True, omit_defaults=True):
    """A taint of a node, with Kubernetes' names."""

    key: str = ""
    value: str = ""
    effect: str = ""


class Node(Fact, Struct, frozen=True):
    """A node."""

    name: str
    labels: Mapping[str, str]
    ready: bool | None  # None without a Ready condition
    unschedulable: bool
    taints: tuple[Taint, ...]
    allocatable: Mapping[str, int] | None  # None if the status does not report it
    kernel: str = ""  # the version of its kernel, empty if the status does not report it


class VirtualMachine(Fact, Struct, frozen=True):
    """A KubeVirt VM."""

    namespace: str
    name: str
    strategy: str  # its run strategy
    start_failures: int  # failed starts in a row
    true_annotations: frozenset[str]  # keys of its template's annotations with the value "true"
    false_annotations: frozenset[str] = frozenset()  # with the value "false"
    claims: tuple[str, ...] = ()  # those that its pod mounts
    inherits: bool = False  # whether an instancetype or a preference may add annotations to its pod
    uid: str = ""  # another one if the VM is recreated
    hotpluggable: tuple[str, ...] = ()  # claims that KubeVirt mounts in a pod of their own

    @property
    def restarts(self) -> bool:
        """Return whether KubeVirt starts the VM again if its pod is deleted before it ran."""
        return self.strategy in RESTARTING_STRATEGIES


class VirtualMachineInstance(Fact, Struct, frozen=True):
    """A KubeVirt VMI."""

    namespace: str
    name: str
    uid: str
    owner_kind: str = ""  # of its controller: a VM, a VirtualMachineInstanceReplicaSet, or another; empty without one
    owner_name: str = ""
    owner_uid: str = ""

    @property
    def in_replica_set(self) -> bool:
        """Return whether a VirtualMachineInstanceReplicaSet controls the VMI, and replaces it under another name."""
        return self.owner_kind == kubevirt.REPLICA_SET


class PendingPin(Struct, frozen=True):
    """The pin of an unbound pod."""

    node: str  # the node that the webhook requires or prefers
    vm: str  # the name of the VMI that controls the pod
    unschedulable_since: str = ""  # when the scheduler first found no node for the pod; empty before that
    prefers: bool = False  # the webhook only prefers the node, and the scheduler has not evaluated the pod yet


class Pod(Fact, Struct, frozen=True):
    """A pod that has not finished."""

    namespace: str
    name: str
    uid: str
    node: str  # the node that the pod is bound to; empty if unbound
    # that node, else the nominated one; while an unbound pod counts for its pin (see `guard.pins`), the node of the pin
    effective_node: str
    alive: bool  # Pending or Running, and not terminating
    created: str  # its creationTimestamp
    labels: Mapping[str, str]
    requests: Mapping[str, int]  # effective requests, by resource (see `resources`)
    anti_affinity: tuple[AffinityTerm, ...]  # required terms
    claims: tuple[str, ...]  # those that it mounts
    true_annotations: frozenset[str]  # of a pod with claims: keys of annotations with the value "true"
    owner: str  # of a pod of a VM: the UID of its controller
    # while a VMI's pod that the webhook pinned, or for which it prefers a node, is unbound
    pin: PendingPin | None = None
    vm: str = ""  # the name of the VMI that the pod runs
    deciding_claim: str = ""  # the claim that its annotation names as the one that decides
    false_annotations: frozenset[str] = frozenset()  # of a pod with claims, with the value "false"
    prefers: bool = False  # the webhook only prefers the node of the pin
    oversized: bool = False  # its labels, terms, claims and annotations are unknown
    undecided: bool = False  # it starts a VM, and the webhook has recorded no decision on it
    priority: int = 0
    nominated: bool = False  # it is unbound, and the scheduler has nominated a node for it

    def is_ignored_for(self, pod: "Pod") -> bool:
        """Return whether the scheduler ignores this nominated pod where it evaluates `pod` on its effective node.

        Source: kube-scheduler, `addGENominatedPods` in pkg/scheduler/framework/runtime/framework.go.
        """
        if not self.nominated or self.pin:
            return False
        return self.priority < pod.priority or self.effective_node != pod.effective_node

    @property
    def vmi_uid(self) -> str:
        """Return the UID of the VMI that the pod runs, or an empty string."""
        return self.labels.get(kubevirt.CREATED_BY_LABEL, "")

    @property
    def is_virt_launcher(self) -> bool:
        """Return whether the pod runs a VM."""
        return self.labels.get(kubevirt.APP_LABEL) == kubevirt.VIRT_LAUNCHER

    @property
    def belongs_to_vm(self) -> bool:
        """Return whether the pod runs a VM or mounts claims for one."""
        return self.labels.get(kubevirt.APP_LABEL) in (kubevirt.VIRT_LAUNCHER, kubevirt.HOTPLUG_POD)

    @property
    def is_migration_target(self) -> bool:
        """Return whether KubeVirt created the pod as the target of a live migration."""
        return bool(self.labels.get(kubevirt.MIGRATION_LABEL))


class Namespace(Fact, Struct, frozen=True):
    """A namespace."""

    name: str
    opt_in: bool | None  # its label; None if that is neither "true" nor "false"
    labels: Mapping[str, str] = {}


class StorageClass(Fact, Struct, frozen=True):
    """A StorageClass."""

    name: str
    opts_in: bool  # its annotation is "true"
    served: bool = False  # share-managers serve the RWX volumes that Longhorn makes for its claims
    limits: Selector = ()  # what the nodes of share-managers must match
    tolerations: str = ""  # the parameter that adds to those of share-managers
