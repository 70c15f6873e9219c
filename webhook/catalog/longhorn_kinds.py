"""Longhorn's kinds: where a volume is served, where its data is, and the settings that count."""

from msgspec import field

from webhook.catalog.kind import Kind, object_of
from webhook.placement.objects import facts
from webhook.placement.objects.longhorn import READ_SETTINGS
from webhook.placement.objects.typed import Metadata, Typed

LONGHORN = "longhorn.io/v1beta2"


class _ShareManagerStatus(Typed, frozen=True):
    state: str = ""
    owner: str = field(default="", name="ownerID")


class ShareManager(Typed, frozen=True):
    """What Longhorn knows of the NFS server of a volume."""

    metadata: Metadata = Metadata()
    status: _ShareManagerStatus = _ShareManagerStatus()


def read_share_manager(item: ShareManager) -> facts.ShareManager:
    """Extract the facts of a ShareManager."""
    return facts.ShareManager(*item.metadata.key, item.status.state, item.status.owner, item.metadata.is_terminating)


SHARE_MANAGERS = Kind(LONGHORN, "ShareManager", ShareManager, facts.ShareManager, read_share_manager)


class _VolumeSpec(Typed, frozen=True):
    data_locality: str = ""
    number_of_replicas: int = 0


class _VolumeStatus(Typed, frozen=True):
    current_node: str = field(default="", name="currentNodeID")


class Volume(Typed, frozen=True):
    """Longhorn's own object of a volume."""

    metadata: Metadata = Metadata()
    spec: _VolumeSpec = _VolumeSpec()
    status: _VolumeStatus = _VolumeStatus()


def read_longhorn_volume(item: Volume) -> facts.LonghornVolume:
    """Extract the facts of Longhorn's Volume."""
    spec = item.spec
    return facts.LonghornVolume(
        *item.metadata.key, spec.data_locality, spec.number_of_replicas, item.status.current_node
    )


class _ReplicaSpec(Typed, frozen=True):
    volume_name: str = ""
    node: str = field(default="", name="nodeID")
    failed_at: str = ""
    healthy_at: str = ""


class Replica(Typed, frozen=True):
    """A replica of a volume."""

    metadata: Metadata = Metadata()
    spec: _ReplicaSpec = _ReplicaSpec()


def read_replica(item: Replica) -> facts.Replica:
    """Extract the facts of a Replica. Longhorn clears `healthyAt` before it rebuilds a replica.

    Source: `IsAvailableHealthyReplica` in
    https://github.com/longhorn/longhorn-manager/blob/5ddaa369fa7e3b0da9ee9fd42dbec24e25f793f6/datastore/longhorn.go
    """
    spec = item.spec
    healthy = bool(spec.healthy_at and spec.node) and not spec.failed_at and not item.metadata.is_terminating
    used = bool(spec.healthy_at or spec.failed_at)
    return facts.Replica(*item.metadata.key, spec.volume_name, spec.node, healthy=healthy, used=used)


# Where the data of a volume is. Without the right, a VM at a cold start prefers no node.
LONGHORN_VOLUMES = Kind(LONGHORN, "Volume", Volume, facts.LonghornVolume, read_longhorn_volume, required=False)
REPLICAS = Kind(LONGHORN, "Replica", Replica, facts.Replica, read_replica, required=False)

# Only the tool reads these.
SETTINGS = tuple(
    Kind(LONGHORN, "Setting", object_of("value"), query={"fieldSelector": f"metadata.name={name}"})
    for name in READ_SETTINGS
)
