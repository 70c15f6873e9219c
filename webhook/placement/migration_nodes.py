"""The nodes of a live migration: its sources, and whether the target may prefer the node of its share-manager."""

from webhook.placement.catalog import Catalog
from webhook.placement.objects.claims import mounted_claims
from webhook.placement.objects.fields import JsonObject, mapping
from webhook.placement.objects.kubevirt import CREATED_BY_LABEL, EVICTION_SOURCE, vmi_uid

HOSTNAME = "kubernetes.io/hostname"


def source_anti_affinity(pod: JsonObject) -> JsonObject:
    """Return the pod anti-affinity term that keeps the target of a VMI's pod off the node of its source.

    KubeVirt's source: `createMigrationPodAntiAffinityRule` in pkg/virt-controller/watch/migration/migration.go.
    """
    return {"labelSelector": {"matchLabels": {CREATED_BY_LABEL: vmi_uid(pod)}}, "topologyKey": HOSTNAME}


def leads_elsewhere(pod: JsonObject, namespace: str, node: str, catalog: Catalog) -> bool:
    """Return whether the migration must go to a node other than `node`.

    It must if the VM already runs on `node`, if the target names its own node, or if a descheduler evicted the VM.
    """
    metadata = mapping(pod, "metadata")
    return (
        HOSTNAME in mapping(pod, "spec", "nodeSelector")
        or any(EVICTION_SOURCE in mapping(metadata, kind) for kind in ("labels", "annotations"))
        or node in source_nodes(pod, namespace, catalog)
    )


def source_nodes(pod: JsonObject, namespace: str, catalog: Catalog) -> frozenset[str]:
    """Return the nodes where the target's VMI runs now: the migration's source, most often one."""
    vmi = vmi_uid(pod)
    return frozenset(
        other.node
        for claim in mounted_claims(pod)
        for other in catalog.mounting_pods(namespace, claim)
        if other.node and other.alive and other.vmi_uid == vmi
    )
