"""Find the node for a share-manager pod: the node of the VMs that use its volume."""

from dataclasses import dataclass

from webhook.placement.catalog import Catalog, Pod
from webhook.placement.resolve import Choice, most_voted
from webhook.placement.selectors import NODE_NAME_FIELD
from webhook.placement.settings import Settings
from webhook.placement.shape import JsonObject, mapping, mappings, text


@dataclass(frozen=True, slots=True)
class Consumers:
    """The running VMs that use a share-manager pod's volume. `claim` is empty if the PV has no claimRef."""

    volume: str
    claim: str
    pods: tuple[Pod, ...]


def find_consumers(pod: JsonObject, catalog: Catalog, settings: Settings) -> Consumers:
    """Find the opted-in virt-launcher pods that are bound, alive, and mount the claim of the share-manager's volume."""
    handle = text(mapping(pod, "metadata", "labels"), "longhorn.io/share-manager")
    volume = catalog.volume_by_handle(handle)
    if volume is None or volume.claim is None:
        return Consumers(handle, "", ())
    opted_in = frozenset(settings.opt_in_annotations)
    pods = (
        consumer
        for consumer in catalog.mounting_pods(*volume.claim)
        if consumer.node and consumer.alive and consumer.true_annotations & opted_in
    )
    return Consumers(handle, volume.claim[1], tuple(pods))


def avoided_nodes(pod: JsonObject) -> frozenset[str]:
    """Return the nodes that the pod prefers to avoid. Longhorn adds such a preference after a stale lease."""
    preferred = mappings(pod, "spec", "affinity", "nodeAffinity", "preferredDuringSchedulingIgnoredDuringExecution")
    return frozenset(
        name
        for term in preferred
        for requirement in mappings(term, "preference", "matchFields")
        if requirement.get("key") == NODE_NAME_FIELD and requirement.get("operator") == "NotIn"
        for name in requirement.get("values") or ()
    )


def choose(consumers: Consumers, avoided: frozenset[str]) -> Choice | None:
    """Choose the node with the most VMs among the nodes that are not avoided. None if no VM runs on such a node.

    In a tie, the node of a pod that is not a live-migration target wins, then the node of the oldest pod.
    """
    candidates = [pod for pod in consumers.pods if pod.node not in avoided]
    candidates.sort(key=lambda pod: (bool(pod.labels.get("kubevirt.io/migrationJobUID")), pod.created, pod.key))
    return most_voted(pod.node for pod in candidates)
