"""Longhorn's kinds: where a volume is served, where its data is, and the settings that count."""

from webhook.catalog.kind import Kind, key_of, map_of, object_of
from webhook.placement.objects import facts
from webhook.placement.objects.fields import JsonObject, mapping, text
from webhook.placement.objects.longhorn import READ_SETTINGS
from webhook.placement.objects.pod import is_terminating

LONGHORN = "longhorn.io/v1beta2"


def read_share_manager(item: JsonObject) -> facts.ShareManager:
    """Extract the facts of a ShareManager."""
    status = mapping(item, "status")
    return facts.ShareManager(*key_of(item), text(status, "state"), text(status, "ownerID"), is_terminating(item))


SHARE_MANAGERS = Kind(
    LONGHORN, "ShareManager", object_of(status=map_of("state ownerID")), facts.ShareManager, read_share_manager
)


def read_longhorn_volume(item: JsonObject) -> facts.LonghornVolume:
    """Extract the facts of Longhorn's Volume."""
    spec = mapping(item, "spec")
    number, attached_to = spec.get("numberOfReplicas"), text(item, "status", "currentNodeID")
    replicas = number if isinstance(number, int) else 0
    return facts.LonghornVolume(*key_of(item), text(spec, "dataLocality"), replicas, attached_to)


def read_replica(item: JsonObject) -> facts.Replica:
    """Extract the facts of a Replica. Longhorn clears `healthyAt` before it rebuilds a replica.

    Source: `IsAvailableHealthyReplica` in
    https://github.com/longhorn/longhorn-manager/blob/5ddaa369fa7e3b0da9ee9fd42dbec24e25f793f6/datastore/longhorn.go
    """
    spec = mapping(item, "spec")
    volume, node, failed = (text(spec, name) for name in ("volumeName", "nodeID", "failedAt"))
    was_healthy = bool(text(spec, "healthyAt"))
    healthy = was_healthy and bool(node) and not failed and not is_terminating(item)
    return facts.Replica(*key_of(item), volume, node, healthy=healthy, used=was_healthy or bool(failed))


# Where the data of a volume is. Without the right, a VM at a cold start prefers no node.
LONGHORN_VOLUMES = Kind(
    LONGHORN,
    "Volume",
    object_of(spec=map_of("dataLocality numberOfReplicas"), status=map_of("currentNodeID")),
    facts.LonghornVolume,
    read_longhorn_volume,
    required=False,
)
REPLICAS = Kind(
    LONGHORN,
    "Replica",
    object_of(spec=map_of("volumeName nodeID failedAt healthyAt")),
    facts.Replica,
    read_replica,
    required=False,
)

# Only the tool reads these.
SETTINGS = tuple(
    Kind(LONGHORN, "Setting", object_of("value"), query={"fieldSelector": f"metadata.name={name}"})
    for name in READ_SETTINGS
)
