"""The kinds of Kubernetes' storage: claims, PVs, StorageClasses, and the CSI drivers on each node."""

from typing import Any

from msgspec import field

from webhook.catalog.kind import Kind, limited_name
from webhook.placement.objects import facts, kubevirt
from webhook.placement.objects.fields import JsonObject, Malformed
from webhook.placement.objects.longhorn import share_manager_limits
from webhook.placement.objects.resources import amount
from webhook.placement.objects.selectors import TOPOLOGY_LABELS
from webhook.placement.objects.typed import Metadata, Typed
from webhook.placement.settings import OPT_IN_KEY

STORAGE = "storage.k8s.io/v1"
LONGHORN_DRIVER = "driver.longhorn.io"

# The annotation that Kubernetes still reads before the field: `GetPersistentVolumeClaimClass`.
OLD_CLASS = "volume.beta.kubernetes.io/storage-class"

# Longhorn parses the parameters of a volume with Go's strconv.ParseBool.
TRUE_VALUES = frozenset({"1", "t", "T", "true", "TRUE", "True"})


class _ClaimLabels(Typed, frozen=True):
    state_of: str = field(default="", name=kubevirt.STATE_CLAIM_LABEL)


class _ClaimAnnotations(Typed, frozen=True):
    storage_class: str = field(default="", name=OLD_CLASS)


class _ClaimMetadata(Metadata, frozen=True):
    labels: _ClaimLabels = _ClaimLabels()
    annotations: _ClaimAnnotations = _ClaimAnnotations()


class _StorageRequest(Typed, frozen=True):
    storage: Any = 0  # a quantity


class _ClaimResources(Typed, frozen=True):
    requests: _StorageRequest = _StorageRequest()


class _ClaimSpec(Typed, frozen=True):
    access_modes: tuple[str, ...] = ()
    volume_mode: str = ""
    volume_name: str = ""
    storage_class_name: str = ""
    resources: _ClaimResources = _ClaimResources()


class _ClaimStatus(Typed, frozen=True):
    phase: str = ""


class PersistentVolumeClaim(Typed, frozen=True):
    """A claim."""

    metadata: _ClaimMetadata = _ClaimMetadata()
    spec: _ClaimSpec = _ClaimSpec()
    status: _ClaimStatus = _ClaimStatus()


def read_claim(item: PersistentVolumeClaim) -> facts.Claim:
    """Extract the facts of a PersistentVolumeClaim."""
    metadata, spec = item.metadata, item.spec
    return facts.Claim(
        *metadata.key,
        limited_name(spec.volume_name),
        "ReadWriteMany" in spec.access_modes,
        state_of=metadata.labels.state_of,
        block=spec.volume_mode == "Block",
        storage_class=metadata.annotations.storage_class or spec.storage_class_name,
        uid=metadata.uid,
        phase=item.status.phase,
        size=_size(spec.resources.requests.storage),
    )


def _size(quantity: Any) -> int:
    try:
        return amount(quantity, "spec.resources.requests.storage", "storage")
    except Malformed:  # only the tool's plans need it
        return 0


CLAIMS = Kind("v1", "PersistentVolumeClaim", PersistentVolumeClaim, facts.Claim, read_claim)


class _Present(Typed, frozen=True):
    """A field of which only the presence counts."""


class _VolumeAttributes(Typed, frozen=True):
    migratable: str = ""


class _CSISource(Typed, frozen=True):
    driver: str = ""
    volume_handle: str = ""
    volume_attributes: _VolumeAttributes = _VolumeAttributes()


class _ClaimReference(Typed, frozen=True):
    namespace: str = ""
    name: str = ""
    uid: str = ""


class _VolumeNodeAffinity(Typed, frozen=True):
    required: JsonObject | None = None  # evaluated with the terms of pods


class _VolumeSpec(Typed, frozen=True):
    node_affinity: _VolumeNodeAffinity = _VolumeNodeAffinity()
    csi: _CSISource = _CSISource()
    claim_ref: _ClaimReference | None = None
    # The in-tree types.
    aws_elastic_block_store: _Present | None = None
    azure_disk: _Present | None = None
    cinder: _Present | None = None
    gce_persistent_disk: _Present | None = None
    portworx_volume: _Present | None = None

    @property
    def migrated_to(self) -> str:
        """Return the CSI driver that serves the PVs of an in-tree type, which keep their type; empty for another PV.

        Source: `inTreePlugins` in csi-translation-lib, as far as the scheduler's plugin NodeVolumeLimits counts them.
        """
        drivers = {
            "ebs.csi.aws.com": self.aws_elastic_block_store,
            "disk.csi.azure.com": self.azure_disk,
            "cinder.csi.openstack.org": self.cinder,
            "pd.csi.storage.gke.io": self.gce_persistent_disk,
            "pxd.portworx.com": self.portworx_volume,
        }
        return next((driver for driver, source in drivers.items() if source is not None), "")


_OLD_ZONE, _OLD_REGION, _ZONE, _REGION = TOPOLOGY_LABELS


class _ZoneLabels(Typed, frozen=True):
    old_zone: str | None = field(default=None, name=_OLD_ZONE)
    old_region: str | None = field(default=None, name=_OLD_REGION)
    zone: str | None = field(default=None, name=_ZONE)
    region: str | None = field(default=None, name=_REGION)

    @property
    def zones(self) -> dict[str, frozenset[str]]:
        """Return the values that each label admits. Like the scheduler, ignore a label with an empty part."""
        labels = (self.old_zone, self.old_region, self.zone, self.region)
        values = {
            key: frozenset(map(str.strip, label.split("__")))
            for key, label in zip(TOPOLOGY_LABELS, labels, strict=True)
            if label is not None
        }
        return {key: admitted for key, admitted in values.items() if "" not in admitted}


class _VolumeMetadata(Metadata, frozen=True):
    labels: _ZoneLabels = _ZoneLabels()


class PersistentVolume(Typed, frozen=True):
    """A PV."""

    metadata: _VolumeMetadata = _VolumeMetadata()
    spec: _VolumeSpec = _VolumeSpec()


def read_volume(item: PersistentVolume) -> facts.Volume:
    """Extract the facts of a PersistentVolume."""
    csi, claim = item.spec.csi, item.spec.claim_ref
    is_longhorn = csi.driver == LONGHORN_DRIVER
    return facts.Volume(
        item.metadata.name,
        csi.volume_handle if is_longhorn else "",
        (claim.namespace or "default", claim.name) if claim else None,
        item.spec.node_affinity.required,
        migratable=is_longhorn and csi.volume_attributes.migratable in TRUE_VALUES,
        claim_uid=claim.uid if claim else "",
        zones=item.metadata.labels.zones,
        driver=LONGHORN_DRIVER if is_longhorn else csi.driver or item.spec.migrated_to,  # one string for all PVs
    )


VOLUMES = Kind("v1", "PersistentVolume", PersistentVolume, facts.Volume, read_volume)


class _Allocatable(Typed, frozen=True):
    count: int | None = None


class _CSIDriver(Typed, frozen=True):
    name: str = ""
    allocatable: _Allocatable = _Allocatable()


class _CSINodeSpec(Typed, frozen=True):
    drivers: tuple[_CSIDriver, ...] = ()


class CSINode(Typed, frozen=True):
    """The CSI drivers on a node."""

    metadata: Metadata = Metadata()
    spec: _CSINodeSpec = _CSINodeSpec()


def read_csi_node(item: CSINode) -> facts.CSINode:
    """Extract the facts of a CSINode."""
    unlimited = (driver.name for driver in item.spec.drivers if driver.allocatable.count is None)
    return facts.CSINode(item.metadata.name, frozenset(unlimited))


# Without the right, no claim counts as limited.
CSI_NODES = Kind(STORAGE, "CSINode", CSINode, facts.CSINode, read_csi_node, required=False)


class _ClassAnnotations(Typed, frozen=True):
    opt_in: str = field(default="", name=OPT_IN_KEY)


class _ClassMetadata(Metadata, frozen=True):
    annotations: _ClassAnnotations = _ClassAnnotations()


class _Parameters(Typed, frozen=True):
    migratable: str = ""
    share_manager_node_selector: str = ""
    share_manager_tolerations: str = ""


class _TopologyLabel(Typed, frozen=True):
    key: str = ""
    values: tuple[str, ...] = ()


class _Topology(Typed, frozen=True):
    match_label_expressions: tuple[_TopologyLabel, ...] = ()


class StorageClass(Typed, frozen=True):
    """A StorageClass."""

    metadata: _ClassMetadata = _ClassMetadata()
    provisioner: str = ""
    allowed_topologies: tuple[_Topology, ...] = ()
    parameters: _Parameters = _Parameters()


def read_storage_class(item: StorageClass) -> facts.StorageClass:
    """Extract the facts of a StorageClass."""
    parameters = item.parameters
    labels = (label for topology in item.allowed_topologies for label in topology.match_label_expressions)
    return facts.StorageClass(
        item.metadata.name,
        item.metadata.annotations.opt_in == "true",
        item.provisioner == LONGHORN_DRIVER and parameters.migratable not in TRUE_VALUES,
        share_manager_limits(parameters.share_manager_node_selector, ((label.key, label.values) for label in labels)),
        parameters.share_manager_tolerations,
    )


# Without the right, no StorageClass opts in, but an annotation does.
STORAGE_CLASSES = Kind(STORAGE, "StorageClass", StorageClass, facts.StorageClass, read_storage_class, required=False)
