"""Whether a live-migration target may prefer the node of its share-manager."""

from webhook.placement.catalog import Catalog
from webhook.placement.claims import mounted_claims
from webhook.placement.shape import JsonObject, mapping, text

HOSTNAME = "kubernetes.io/hostname"
# A descheduler evicted the VM, so that KubeVirt migrates it away on purpose.
EVICTION_SOURCE = "kubevirt.io/eviction-source"


def is_migration_target(pod: JsonObject) -> bool:
    """Return whether KubeVirt created the pod as the target of a live migration."""
    return bool(mapping(pod, "metadata", "labels").get("kubevirt.io/migrationJobUID"))


def leads_elsewhere(pod: JsonObject, namespace: str, node: str, catalog: Catalog) -> bool:
    """Return whether the migration is meant for a node other than `node`.

    That is so if the VM runs there already, if the target names its node, and if a descheduler evicted the VM.
    """
    metadata = mapping(pod, "metadata")
    return (
        HOSTNAME in mapping(pod, "spec", "nodeSelector")
        or any(EVICTION_SOURCE in mapping(metadata, kind) for kind in ("labels", "annotations"))
        or node in source_nodes(pod, namespace, catalog)
    )


def source_nodes(pod: JsonObject, namespace: str, catalog: Catalog) -> frozenset[str]:
    """Return the nodes where the target's VMI runs now: the migration's source, most often one."""
    vmi = text(mapping(pod, "metadata", "labels"), "kubevirt.io/created-by")
    return frozenset(
        other.node
        for claim in mounted_claims(pod)
        for other in catalog.mounting_pods(namespace, claim)
        if other.node and other.alive and other.labels.get("kubevirt.io/created-by", "") == vmi
    )
