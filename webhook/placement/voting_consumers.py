"""Find the node for a share-manager pod: the node of the VMs that use its volume, or else of the other pods."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from webhook.placement.affinity import PREFERRED
from webhook.placement.catalog import Catalog
from webhook.placement.objects.facts import Key, Pod, Volume
from webhook.placement.objects.fields import JsonObject, mappings, strings
from webhook.placement.objects.selectors import NODE_NAME_FIELD
from webhook.placement.opt_in import is_handled, opted_in_by
from webhook.placement.reasons import Source
from webhook.placement.settings import Settings

# The guard evaluates the candidates in turn. A volume has few consumers, on even fewer nodes.
MAX_CANDIDATES = 8
# Claims of all pods together whose StorageClass may opt the pod in. 128 pods with 128 claims each took 14 ms.
MAX_CLASSES = 1_000


def consumers_of(handle: str, catalog: Catalog, settings: Settings) -> tuple[Pod, ...]:
    """Find the opted-in pods that are bound, alive, and mount a claim of a Longhorn volume.

    If any of them runs a VM, only those that do count: the webhook pins the VM to the node at its next start.
    """
    claims = claims_of(handle, catalog)
    budget = iter(range(MAX_CLASSES))

    def is_consumer(pod: Pod) -> bool:
        names = (name for name, _ in zip(pod.claims, budget, strict=False))
        return is_handled(opted_in_by(pod, catalog, settings, names), settings)

    for query in catalog.mounting_pods, catalog.other_mounting_pods:
        pods = {pod.key: pod for pod in _bound(query, claims) if is_consumer(pod)}
        if pods:
            return tuple(pods.values())
    return ()


def has_users(handle: str, catalog: Catalog) -> bool:
    """Return whether any bound pod that is alive mounts a claim of a Longhorn volume, opted in or not."""
    claims = claims_of(handle, catalog)
    return any(any(_bound(query, claims)) for query in (catalog.mounting_pods, catalog.other_mounting_pods))


def _bound(query: Callable[[str, str], Iterable[Pod]], claims: Iterable[Key]) -> Iterator[Pod]:
    return (pod for claim in claims for pod in query(*claim) if pod.node and pod.alive)


def kind_of(consumers: Iterable[Pod]) -> tuple[str, Source]:
    """Return what such consumers are, for sentences, and for a claim whose node they determine."""
    is_vm = all(pod.belongs_to_vm for pod in consumers)
    return ("VM", Source.VIRT_LAUNCHER_POD) if is_vm else ("pod", Source.POD)


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


def avoided_nodes(affinity: JsonObject) -> frozenset[str]:
    """Return the nodes that a pod prefers to avoid. Longhorn adds such a preference after a stale lease."""
    preferred = mappings(affinity, "nodeAffinity", PREFERRED)
    return frozenset(
        name
        for term in preferred
        for requirement in mappings(term, "preference", "matchFields")
        if requirement.get("key") == NODE_NAME_FIELD and requirement.get("operator") == "NotIn"
        for name in strings(requirement, "values")
    )


def ranked_nodes(consumers: Iterable[Pod], avoided: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """Return the nodes of the consumers that are not avoided, those with the most consumers first.

    In a tie, the node of a pod that is not a live-migration target is first, then the node of the oldest pod.
    """
    candidates = [pod for pod in consumers if pod.node not in avoided]
    candidates.sort(key=lambda pod: (pod.is_migration_target, pod.created, pod.key))
    return tuple(node for node, _ in Counter(pod.node for pod in candidates).most_common(MAX_CANDIDATES))
