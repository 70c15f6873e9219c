"""Find the node for a share-manager pod: the node of the VMs that use its volume."""

from collections import Counter
from collections.abc import Iterable

from webhook.placement.catalog import Catalog
from webhook.placement.objects.facts import Key, Pod, Volume
from webhook.placement.objects.fields import JsonObject, mappings, strings
from webhook.placement.objects.selectors import NODE_NAME_FIELD
from webhook.placement.opt_in import is_handled, opted_in_by
from webhook.placement.settings import Settings

# The guard evaluates the candidates in turn. A volume has few VMs, on even fewer nodes.
MAX_CANDIDATES = 8


def consumers_of(handle: str, catalog: Catalog, settings: Settings) -> tuple[Pod, ...]:
    """Find the opted-in virt-launcher pods that are bound, alive, and mount a claim of a Longhorn volume."""
    pods = {
        consumer.key: consumer
        for claim in claims_of(handle, catalog)
        for consumer in catalog.mounting_pods(*claim)
        if consumer.node and consumer.alive and is_handled(opted_in_by(consumer, catalog, settings), settings)
    }
    return tuple(pods.values())


def claims_of(handle: str, catalog: Catalog) -> tuple[Key, ...]:
    """Return the claims that PVs of a Longhorn volume are bound to. A static PV may share its volume with another.

    A Released PV still names its old claim. A claim of that name may be bound to another PV by now.
    """
    volumes = catalog.volumes_by_handle(handle)
    return tuple(dict.fromkeys(volume.claim for volume in volumes if volume.claim and _is_claimed(volume, catalog)))


def _is_claimed(volume: Volume, catalog: Catalog) -> bool:
    claim = catalog.claim(*volume.claim) if volume.claim else None
    if claim is None:  # only a claim that existed has a UID, and users may create pods that name a deleted claim
        return not volume.claim_uid
    return claim.volume_name == volume.name and volume.names(claim)


def avoided_nodes(pod: JsonObject) -> frozenset[str]:
    """Return the nodes that the pod prefers to avoid. Longhorn adds such a preference after a stale lease."""
    preferred = mappings(pod, "spec", "affinity", "nodeAffinity", "preferredDuringSchedulingIgnoredDuringExecution")
    return frozenset(
        name
        for term in preferred
        for requirement in mappings(term, "preference", "matchFields")
        if requirement.get("key") == NODE_NAME_FIELD and requirement.get("operator") == "NotIn"
        for name in strings(requirement, "values")
    )


def ranked_nodes(consumers: Iterable[Pod], avoided: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """Return the nodes of the VMs that are not avoided, those with the most VMs first.

    In a tie, the node of a pod that is not a live-migration target is first, then the node of the oldest pod.
    """
    candidates = [pod for pod in consumers if pod.node not in avoided]
    candidates.sort(key=lambda pod: (pod.is_migration_target, pod.created, pod.key))
    return tuple(node for node, _ in Counter(pod.node for pod in candidates).most_common(MAX_CANDIDATES))
