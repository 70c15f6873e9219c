"""The values that the fleet consists of: a VM, its status, and the decision of its next start."""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from webhook.fleet.volumes import VolumeUser
from webhook.placement.objects.facts import Key, Pod
from webhook.placement.objects.fields import JsonObject
from webhook.placement.objects.pod import Manifest
from webhook.placement.objects.pod_object import NO_POD, PodSpec
from webhook.placement.opt_in import Applicant
from webhook.placement.reasons import ClaimFinding, Decision, OptedInBy, Reason
from webhook.placement.settings import OPT_IN_KEY


class State(StrEnum):
    """Where a VM is relative to its storage."""

    TOGETHER = "Together"
    APART = "Apart"
    UNSERVED = "Unserved"
    WAITING = "Waiting"
    STOPPED = "Stopped"
    NOT_CONCERNED = "NotConcerned"


class Future(StrEnum):
    """Where a start places a VM. With `FOLLOWS`, its share-managers start after the VM, on the VM's node."""

    PINNED = "pinned"
    PREFERS = "prefers"
    FOLLOWS = "follows"
    ANYWHERE = "anywhere"


class RefusedServer(Struct, frozen=True):
    """A share-manager pod for which the scheduler finds no node."""

    pod: Key
    message: str  # the scheduler's


class Machine(Struct, frozen=True):
    """A VM, or a VMI without a VM. The caches don't hold the fields from `manifest` on."""

    namespace: str
    name: str
    applicant: Applicant  # decides on the opt-in of its next pod
    pod: Pod | None = None  # the virt-launcher pod that runs the VM
    hotplugged: tuple[str, ...] = ()  # claims that its hotplug pods mount
    strategy: str | None = ""  # the VM's run strategy; empty if the VM is unknown, None for a VMI without a VM
    migrating: bool = False
    paused: bool = False
    manifest: Manifest | None = None  # the same pod as the API server stores it
    template: Manifest | None = None  # the pod that KubeVirt would create now; None if unknown
    target: Manifest | None = None  # the pod that it would create for the VMI now, to migrate it; None if unknown
    missing: str = ""  # an object that `template` depends on but that wasn't found
    age: float | None = None  # of the pod, in seconds
    vm: JsonObject = field(default_factory=dict)  # the object of KubeVirt; empty if missing or unknown
    vmi: JsonObject = field(default_factory=dict)  # the object of KubeVirt, as `vm`
    quotas: tuple[JsonObject, ...] = ()  # the ResourceQuotas of its namespace
    # specs of the running share-manager pods by volume; under "", what is known of the others
    servers: Mapping[str, PodSpec] = field(default_factory=dict)
    refused: Mapping[str, RefusedServer] = field(default_factory=dict)  # by volume

    @property
    def key(self) -> Key:
        """Return the VM's namespace and name."""
        return self.namespace, self.name

    @property
    def next_pod(self) -> Manifest:
        """Return the pod that KubeVirt would create now, an empty one if it is unknown."""
        return self.template or Manifest(NO_POD, self.namespace)

    @property
    def is_vm(self) -> bool:
        """Return whether it is a VM. If the VM of a VMI is unknown, it counts as one: only few VMIs have none."""
        return self.strategy is not None


class Lingering(Struct, frozen=True):
    """Share-managers that follow their VM only if they stop before it starts: after a restart, they still run."""

    pods: tuple[Key, ...]
    reason: Reason  # why the VM isn't pinned to their node


class Start(Struct, frozen=True):
    """The decision if the VM started or restarted now."""

    decision: Decision  # as if the VM were opted in
    future: Future  # where this decision places the VM
    stopped_by: Reason | None = None  # the rule of eligibility that would end the decision
    enforced: bool = True  # the webhook changes pods; otherwise, the VM starts anywhere
    stopped: frozenset[str] = frozenset()  # Longhorn volumes that only this VM uses: their share-managers stop with it
    # the first of the other VMs and pods that use the volumes that the target node serves
    users: tuple[VolumeUser, ...] = ()
    apart: str = ""  # why the share-managers can't follow the VM
    lingering: Lingering | None = None  # the share-managers that have to stop before the VM starts
    refused: str = ""  # a node that the VM may start on, and where its last starts failed

    @property
    def helps(self) -> bool:
        """Return whether the VM and its storage would be together."""
        return self.enforced and self.future in (Future.PINNED, Future.FOLLOWS) and not self.refused

    @property
    def cold(self) -> bool:
        """Return whether all share-managers of a running VM stop with it."""
        return bool(self.stopped) and self.decision.node is None


class Status(Struct, frozen=True):
    """The state of one VM."""

    machine: Machine
    state: State
    reason: Reason | None = None  # explains the state
    claim: str | None = None  # the claim that decides
    storage_node: str | None = None  # the node of its share-manager
    detail: str = ""  # why a pinned pod can't be scheduled; empty for all others
    start: Start | None = None  # None if the next pod is unknown
    opted_in_by: OptedInBy = OptedInBy.NOTHING  # what opts in the VM's next pod
    opt_in_pending: bool = False  # nothing opts in the pod that runs the VM: no share-manager follows it yet
    opted_out: bool = False  # an annotation or a label opts the VM out
    excluded_by: str = ""  # the setting that excludes its namespace
    opt_in_key: str = OPT_IN_KEY  # of the annotation that would opt it in
    claims: tuple[ClaimFinding, ...] = ()  # all claims of a running VM

    @property
    def opted_in(self) -> bool:
        """Return whether the VM's next pod is opted in."""
        return self.opted_in_by is not OptedInBy.NOTHING

    @property
    def volume(self) -> str:
        """Return the Longhorn volume of the claim that decides, empty if unknown."""
        claims = self.claims or (self.start.decision.claims if self.start else ())
        return next((each.volume for each in claims if each.claim == self.claim and each.volume), "")

    @property
    def outage(self) -> RefusedServer | None:
        """Return a share-manager without which the running VM has no disk, and for which the scheduler has no node."""
        refused = self.machine.refused
        if not refused or not self.node:
            return None
        return next((refused[each.volume] for each in self.claims if each.volume and each.volume in refused), None)

    @property
    def node(self) -> str | None:
        """Return the node that the VM's pod is bound to."""
        return (self.machine.pod.node if self.machine.pod else None) or None
