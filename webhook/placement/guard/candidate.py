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
from webhook.placement.objects.resources import compared_requests
from webhook.placement.objects.selectors import required_terms
from webhook.placement.settings import Action, Settings


class ResourceFit(NamedTuple):
    """A pod's request for one resource and the free amount on a node: CPU in millicores, others in whole units."""

    resource: str
    requested: int
    free: int


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

    @cached_property
    def resource_fits(self) -> tuple[ResourceFit, ...]:
        """Compare the pod's requests with the node's free resources. Empty if the allocatable resources are unknown."""
        node = self.node
        if node is None or node.allocatable is None:
            return ()
        load = self.catalog.requested(node.name, self.pod_facts.key)
        nominated = self.catalog.nominated_pods(node.name)
        ignored = [pod.requests for pod in nominated if pod.is_ignored_for(self.pod_facts)]

        def free(resource: str, allocatable: int) -> int:
            return allocatable + sum(each.get(resource, 0) for each in ignored) - load.get(resource, 0)

        return tuple(
            ResourceFit(name, requested, free(name, allocatable))
            for name, requested, allocatable in compared_requests(self.pod_facts.requests, node.allocatable)
            if name not in self.unreported_resources
        )

    @cached_property
    def unreported_resources(self) -> tuple[str, ...]:
        """Return the requested extended resources that no node reports. Each may be a device of a DeviceClass."""
        if self.node is None or self.node.allocatable is None:
            return ()
        allocatable = self.node.allocatable
        missing = (name for name in self.pod_facts.requests if "/" in name and name not in allocatable)
        return tuple(name for name in missing if not self.catalog.is_reported(name))

    def fits(self) -> bool:
        """Return whether the node has enough free resources for the pod."""
        return all(item.requested <= item.free for item in self.resource_fits)

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
