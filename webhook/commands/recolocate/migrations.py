"""KubeVirt's live migrations on the API server: its limits, the existing migrations, and new ones."""

from msgspec.structs import replace

from webhook.catalog.kinds import KUBEVIRT_API
from webhook.cluster.client import ClusterClient
from webhook.cluster.credentials import ClusterError
from webhook.fleet.relocation.rules import Move
from webhook.fleet.relocation.run import Limits, Migration
from webhook.placement.objects.fields import JsonObject, has_condition, mapping, mappings, text
from webhook.placement.objects.kubevirt import HOSTNAME
from webhook.placement.objects.pod import is_terminating
from webhook.reading.api import REQUEST_TIMEOUT, list_objects
from webhook.reading.events import InvolvedObject, list_warnings

LABEL = "kubevirt-scheduler/recolocate"
# A target pod that doesn't fit holds a slot until KubeVirt gives up: 60 s instead of its default of 5 minutes.
ANNOTATIONS = {"kubevirt.io/migrationUnschedulablePodTimeoutSeconds": "60"}
KIND, PLURAL = "VirtualMachineInstanceMigration", "virtualmachineinstancemigrations"
CRD = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{PLURAL}.kubevirt.io"
# While a migration has one of these conditions, it stays Pending, and KubeVirt creates no target pod.
BLOCKING = {
    "migrationRejectedByResourceQuota": "a ResourceQuota of the namespace rejects the target pod",
    "migrationBlockedByBackup": "a backup of the VM is running",
    "migrationBlockedByUtilityVolumes": "utility volumes are attached to the VM",
}
UNSCHEDULABLE = "migrationTargetPodUnschedulable"  # the reason of an event about a migration


def supports_added_node_selector(cluster: ClusterClient) -> bool | None:
    """Return whether a migration can name its target node, as in KubeVirt 1.6. None without KubeVirt.

    Raises ClusterError.
    """
    crd = cluster.get(CRD)
    if crd is None:
        return None
    versions = mappings(crd, "spec", "versions")
    served = [each for each in versions if each.get("name") == "v1" and each.get("served")]
    schemas = [mapping(each, "schema", "openAPIV3Schema", "properties", "spec", "properties") for each in served]
    return any("addedNodeSelector" in schema for schema in schemas)


def with_own_limits(limits: Limits, cluster: ClusterClient) -> Limits:
    """Return the limits with those of KubeVirt's configuration, if it has any. Raises ClusterError."""
    found = list(list_objects(cluster, f"{KUBEVIRT_API}/kubevirts"))
    migrations = mapping(found[0], "spec", "configuration", "migrations") if found else {}
    in_cluster = migrations.get("parallelMigrationsPerCluster", limits.cluster)
    per_node = migrations.get("parallelOutboundMigrationsPerNode", limits.per_node)
    return replace(limits, cluster=int(in_cluster), per_node=int(per_node))


def list_migrations(cluster: ClusterClient) -> list[Migration]:
    """List all migrations of the cluster. Raises ClusterError."""
    return [_migration(item) for item in list_objects(cluster, f"{KUBEVIRT_API}/{PLURAL}")]


def read_migration(cluster: ClusterClient, namespace: str, name: str) -> Migration | None:
    """Read a migration; None if it doesn't exist. Raises ClusterError."""
    item = cluster.get(f"{KUBEVIRT_API}/namespaces/{namespace}/{PLURAL}/{name}", REQUEST_TIMEOUT)
    return None if item is None else _migration(item)


def _migration(item: JsonObject) -> Migration:
    metadata = mapping(item, "metadata")
    state = mapping(item, "status", "migrationState")
    blocked = (why for kind, why in BLOCKING.items() if has_condition(item, kind))
    return Migration(
        text(metadata, "namespace"),
        text(metadata, "name"),
        text(item, "spec", "vmiName"),
        text(item, "status", "phase"),
        text(state, "sourceNode"),
        uid=text(metadata, "uid"),
        deleting=is_terminating(item),
        version=text(metadata, "resourceVersion"),
        failure=text(state, "failureReason"),
        blocked=next(blocked, ""),
    )


def create_migration(cluster: ClusterClient, move: Move, name: str) -> str:
    """Create the migration of a VM to its target node, and return its UID. Raises ClusterError.

    The UID is empty if the migration already exists under this name.
    """
    metadata = {"name": name, "labels": {LABEL: "true"}, "annotations": ANNOTATIONS}
    spec = {"vmiName": move.name, "addedNodeSelector": {HOSTNAME: move.hostname}}
    body = {"apiVersion": "kubevirt.io/v1", "kind": KIND, "metadata": metadata, "spec": spec}
    try:
        path = f"{KUBEVIRT_API}/namespaces/{move.namespace}/{PLURAL}"
        return text(cluster.send("POST", path, body, REQUEST_TIMEOUT), "metadata", "uid")
    except ClusterError as error:
        if error.code != 409:  # 409: an earlier request that got no answer has created it
            raise
        return ""


def delete_migration(cluster: ClusterClient, migration: Migration) -> bool:
    """Delete a migration, which cancels it. Return False if it has changed since it was read. Raises ClusterError."""
    precondition = {"preconditions": {"resourceVersion": migration.version}}
    try:
        path = f"{KUBEVIRT_API}/namespaces/{migration.namespace}/{PLURAL}/{migration.name}"
        cluster.send("DELETE", path, precondition, REQUEST_TIMEOUT)
    except ClusterError as error:
        if error.code not in (404, 409):  # 404: it is gone; 409: it has changed
            raise
        return error.code == 404
    return True


def failure_message(cluster: ClusterClient, migration: Migration) -> str:
    """Return why a migration failed: the scheduler's message about the target pod, else the newest Warning event.

    KubeVirt deletes a target pod that can't be scheduled, and its newest event only says that the pod is gone. Raises
    ClusterError.
    """
    found = list_warnings(cluster, migration.namespace)
    own = [each for each in found if each.involved_object == InvolvedObject(KIND, migration.name)]
    if not any(each.reason == UNSCHEDULABLE for each in own):
        return own[-1].message if own else ""
    failed = [each for each in found if each.reason == "FailedScheduling" and each.involved_object.kind == "Pod"]
    pods = [each for each in failed if each.involved_object.name.startswith(f"virt-launcher-{migration.vmi}-")]
    return ": ".join(["the scheduler found no node for the target pod", *[each.message for each in pods[-1:]]])
