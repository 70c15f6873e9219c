"""From a share-manager pod to the nodes of the VMs that it serves."""

from dataclasses import dataclass

from webhook.placement.catalog import Catalog, Pod
from webhook.placement.resolve import Choice, most_voted
from webhook.placement.selectors import NODE_NAME_FIELD
from webhook.placement.settings import Settings
from webhook.placement.shape import JsonObject, mapping, mappings, text


@dataclass(frozen=True, slots=True)
class Consumers:
    """The running VMs behind a share-manager pod's volume. `claim` is empty where its PV has no claimRef."""

    volume: str
    claim: str
    pods: tuple[Pod, ...]


def find_consumers(pod: JsonObject, catalog: Catalog, settings: Settings) -> Consumers:
    """Find the opted-in virt-launcher pods that are bound, alive, and mount the claim of the volume served."""
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
    """Return the nodes that the pod itself prefers against: Longhorn adds them after a stale lease."""
    preferred = mappings(pod, "spec", "affinity", "nodeAffinity", "preferredDuringSchedulingIgnoredDuringExecution")
    return frozenset(
        name
        for term in preferred
        for requirement in mappings(term, "preference", "matchFields")
        if requirement.get("key") == NODE_NAME_FIELD and requirement.get("operator") == "NotIn"
        for name in requirement.get("values") or ()
    )


def choose(consumers: Consumers, avoided: frozenset[str]) -> Choice | None:
    """Let the VMs vote for a node that is not avoided; None where none is left.

    A tie goes to the pod that is no live-migration target, then to the oldest.
    """
    left = [pod for pod in consumers.pods if pod.node not in avoided]
    left.sort(key=lambda pod: (bool(pod.labels.get("kubevirt.io/migrationJobUID")), pod.created, pod.key))
    return most_voted(pod.node for pod in left)
