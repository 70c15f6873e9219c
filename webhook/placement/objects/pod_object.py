"""A pod, with the fields that the webhook and the tool use. A patch touches its annotations, affinity and scheduler."""

from typing import Any

from msgspec import field

from webhook.placement.objects.fields import JsonObject
from webhook.placement.objects.typed import NO_CONDITION, Condition, Metadata, Typed

Quantities = dict[str, Any]


class OwnerReference(Typed, frozen=True):
    """An object that owns the pod."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


NO_OWNER = OwnerReference()


class ManagedFields(Typed, frozen=True):
    """A change of the pod, without the names of the changed fields, which alone are half of a pod."""

    time: str | None = None


class PodMetadata(Metadata, frozen=True):
    """The metadata of a pod."""

    generate_name: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    annotations: JsonObject | None = None  # as received
    owner_references: tuple[OwnerReference, ...] = ()

    @property
    def controller(self) -> OwnerReference:
        """Return the reference to the pod's controller, an empty one if it has none."""
        for owner in self.owner_references:
            if owner.controller:
                return owner
        return NO_OWNER


class Resources(Typed, frozen=True):
    """Requests and limits."""

    requests: Quantities = field(default_factory=dict)
    limits: Quantities = field(default_factory=dict)


NO_RESOURCES = Resources()


class Port(Typed, frozen=True):
    """A port of a container."""

    host_port: int = 0


class RestartRule(Typed, frozen=True):
    """What follows an exit of a container."""

    action: str = ""


class VolumeMount(Typed, frozen=True):
    """A mount of a volume in a container."""

    bind_mount_options: Any = None


class Container(Typed, frozen=True):
    """A container or an init container."""

    name: str = ""
    image: str = ""
    restart_policy: str = ""
    resources: Resources = NO_RESOURCES
    ports: tuple[Port, ...] = ()
    restart_policy_rules: tuple[RestartRule, ...] = ()
    volume_mounts: tuple[VolumeMount, ...] = ()


class ClaimSource(Typed, frozen=True):
    """A volume's claim."""

    claim_name: str = ""


class EphemeralVolume(Typed, frozen=True):
    """A volume whose claim is created with the pod. No field of its template is used."""


class PodVolume(Typed, frozen=True):
    """A volume of a pod."""

    name: str = ""
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: EphemeralVolume | None = None


class Toleration(Typed, frozen=True):
    """A toleration of taints. Without an operator, Equal; without an effect, of all effects."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class SpreadConstraint(Typed, frozen=True):
    """A topology spread constraint."""

    when_unsatisfiable: str = ""


class PodSpec(Typed, frozen=True):
    """Where a pod may run, and what it needs there."""

    affinity: JsonObject | None = None  # as received
    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[SpreadConstraint, ...] = ()
    scheduler_name: str = ""
    resource_claims: tuple[Any, ...] = ()
    node_name: str = ""
    overhead: Quantities = field(default_factory=dict)
    priority: int | None = None
    scheduling_gates: tuple[Any, ...] = ()
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resources: Resources = NO_RESOURCES
    volumes: tuple[PodVolume, ...] = ()
    host_network: bool = False
    host_users: bool | None = None

    @property
    def scheduler(self) -> str:
        """Return the scheduler's name. A pod from a file may have none yet; the API server sets the default."""
        return self.scheduler_name or "default-scheduler"


NO_SPEC = PodSpec()


class ContainerStatus(Typed, frozen=True):
    """The status of a container. Its resources are null if the kubelet doesn't report them."""

    name: str = ""
    allocated_resources: Quantities = field(default_factory=dict)
    resources: Resources | None = None


class PodStatus(Typed, frozen=True):
    """The status of a pod."""

    phase: str = ""
    nominated_node_name: str = ""
    allocated_resources: Quantities = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    resources: Resources | None = None
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()

    def condition(self, kind: str) -> Condition:
        """Return a condition, an empty one if the pod lacks it."""
        for each in self.conditions:
            if each.type == kind:
                return each
        return NO_CONDITION


NO_STATUS = PodStatus()


class PodObject(Typed, frozen=True):
    """A pod."""

    metadata: PodMetadata = PodMetadata()
    spec: PodSpec = NO_SPEC
    status: PodStatus = NO_STATUS
    undecoded: bool = False  # some details were too large to decode


NO_POD = PodObject()


class NewPodMetadata(PodMetadata, frozen=True):
    """The metadata of a pod that is being created."""

    managed_fields: tuple[ManagedFields, ...] = ()


class NewPod(PodObject, frozen=True):
    """A pod that is being created."""

    kind: str = ""
    metadata: NewPodMetadata = NewPodMetadata()
