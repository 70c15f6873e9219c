"""A pod and its target node: what the node guard evaluates."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from webhook.placement.catalog import Catalog
from webhook.placement.guard.comparison_limit import Comparisons
from webhook.placement.guard.pod_affinity import InterPodAffinity
from webhook.placement.objects.facts import MAX_START_FAILURES, Key, Node, Pod, Volume
from webhook.placement.objects.fields import JsonObject, text
from webhook.placement.objects.kubevirt import is_virt_launcher, vmi_name, vmi_uid
from webhook.placement.objects.pod import pod_facts
from webhook.placement.objects.resources import PODS
from webhook.placement.objects.selectors import required_terms
from webhook.placement.settings import Action, Settings


@dataclass(frozen=True)  # no slots: cached_property needs a __dict__
class Candidate:
    """A pod, its target node, and the PVs of the claims that it mounts.

    `replicas` is the number of webhook replicas that may pin other pods to the node at the same moment. `comparisons`
    is what is left for the review. `releases` means that the webhook deletes a pod
    whose pin fails.
    """

    pod: JsonObject
    namespace: str
    node_name: str
    volumes: tuple[Volume, ...]
    catalog: Catalog
    replicas: int = 1
    comparisons: Comparisons = field(default_factory=Comparisons)
    releases: bool = True

    @property
    def node(self) -> Node | None:
        """Return the target node, or None if it is unknown."""
        return self.catalog.node(self.node_name)

    @property
    def key(self) -> Key:
        """Return the pod's namespace and name.

        A pod without a name gets the UID of its VMI instead: the store's reservations use that UID, too.
        """
        return self.namespace, text(self.pod, "metadata", "name") or vmi_uid(self.pod)

    @cached_property
    def pod_facts(self) -> Pod:
        """Return the facts of the pod as if it ran on the target node. Raises Malformed."""
        return pod_facts(self.pod, *self.key, self.node_name)

    @cached_property
    def pod_affinity(self) -> InterPodAffinity:
        """Return the evaluator of required pod (anti-)affinity for this pod and the pods around the node."""
        facts = self.pod_facts
        terms = () if facts.oversized else required_terms(self.pod, self.namespace, "podAffinity")
        return InterPodAffinity(facts, terms, self.catalog, self.comparisons)

    def is_restartable(self) -> bool:
        """Return whether the release could restart the VM if its pin failed. True for a pod that is no VM's."""
        if not is_virt_launcher(self.pod):
            return True
        vm = self.catalog.virtual_machine(self.namespace, vmi_name(self.pod))
        return self.releases and vm is not None and vm.restarts and vm.start_failures < MAX_START_FAILURES


def pinning_replicas(catalog: Catalog, settings: Settings) -> int:
    """Return how many replicas may be pinning VMs at this moment, this replica included.

    virt-controller creates all VM pods through one API server. So with session affinity, one replica gets all calls.
    """
    alone = settings.session_affinity and not catalog.has_other_pinning_replicas()
    return 1 if alone else settings.replicas


def releases_pins(settings: Settings) -> bool:
    """Return whether the webhook deletes Pending pods whose pin can't hold."""
    return settings.release and settings.node_guard and settings.action is Action.INJECT


class ResourceFit(NamedTuple):
    """A pod's request for one resource and the free amount on a node: CPU in millicores, others in whole units."""

    resource: str
    requested: int
    free: int


def resource_fits(candidate: Candidate) -> list[ResourceFit]:
    """Compare the pod's requests with the node's free resources. Empty if the allocatable resources are unknown."""
    node = candidate.node
    if node is None or node.allocatable is None:
        return []
    load = candidate.catalog.requested(node.name, candidate.pod_facts.key)
    unreported = unreported_resources(candidate)
    nominated = candidate.catalog.nominated_pods(node.name)
    ignored = [pod.requests for pod in nominated if pod.is_ignored_for(candidate.pod_facts)]

    allocatable = {
        name: amount + sum(requests.get(name, 0) for requests in ignored) for name, amount in node.allocatable.items()
    }
    return [
        ResourceFit(resource, requested, allocatable.get(resource, 0) - load.get(resource, 0))
        for resource, requested in candidate.pod_facts.requests.items()
        # Every kubelet reports its pod capacity, so a node without one comes from a hand-written file.
        if (resource != PODS or PODS in node.allocatable) and resource not in unreported
    ]


def unreported_resources(candidate: Candidate) -> list[str]:
    """Return the requested extended resources that no node reports. Each may be a device of a DeviceClass."""
    node = candidate.node
    if node is None or node.allocatable is None:
        return []
    missing = [name for name in candidate.pod_facts.requests if "/" in name and name not in node.allocatable]
    return [name for name in missing if not candidate.catalog.is_reported(name)]


def fits(candidate: Candidate) -> bool:
    """Return whether the node has enough free resources for the pod."""
    return all(item.requested <= item.free for item in resource_fits(candidate))
