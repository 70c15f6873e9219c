"""A pod and its target node: what the node guard evaluates."""

from msgspec import Struct

from webhook.placement.catalog import Catalog
from webhook.placement.guard.comparison_limit import Comparisons
from webhook.placement.guard.pod_affinity import InterPodAffinity
from webhook.placement.objects.facts import MAX_START_FAILURES
from webhook.placement.objects.pod import Manifest, pod_facts
from webhook.placement.objects.resources import PODS
from webhook.placement.objects.selectors import required_terms
from webhook.placement.resolve import bound_volume
from webhook.placement.settings import Settings


class ResourceFit(Struct, frozen=True):
    """A pod's request for one resource and the free amount on a node: CPU in millicores, others in whole units."""

    resource: str
    requested: int
    free: int


class Candidate:
    """A pod, its target node, and the known PVs of its claims: a PV of any driver may restrict the pod to some nodes.

    `hotplugged` are more claims that the node must reach. `serves` is False while the share-manager is only starting.
    """

    def __init__(  # noqa: PLR0913 (what the guard evaluates)
        self,
        manifest: Manifest,
        node_name: str,
        catalog: Catalog,
        *,
        comparisons: Comparisons | None = None,
        releases: bool = True,
        serves: bool = True,
        hotplugged: tuple[str, ...] = (),
    ) -> None:
        """Read the facts of the pod. Raises Malformed."""
        self.manifest = manifest
        self.namespace = manifest.namespace
        self.node_name = node_name
        self.node = catalog.node(node_name)  # None if unknown
        self.catalog = catalog
        # Whether the webhook deletes a pod whose pin fails.
        self.releases = releases
        self.serves = serves
        # What is left for the review.
        self.comparisons = comparisons or Comparisons()
        # As if the pod ran on the node. Without a name, it has its VMI's UID, like the store's reservations.
        self.pod_facts = facts = pod_facts(manifest, manifest.metadata.name or manifest.vmi_uid, node_name)
        of_pod = manifest.affinity, manifest.labels, self.namespace
        terms = () if facts.oversized else required_terms(*of_pod, "podAffinity")
        self.pod_affinity = InterPodAffinity(facts, terms, catalog, self.comparisons)
        self.vm = catalog.virtual_machine(self.namespace, facts.vm) if facts.vm else None
        # The PVs of the claims that the pod mounts or gets, and of those that KubeVirt may plug in later.
        volumes = {claim: bound_volume((self.namespace, claim), catalog) for claim in (*facts.claims, *hotplugged)}
        self.volumes = [volume for volume in volumes.values() if volume]
        self.claims_without_volume = [claim for claim in facts.claims if volumes[claim] is None]
        later = self.vm.hotpluggable if self.vm else ()
        found = [bound_volume((self.namespace, claim), catalog) for claim in later]
        self.hotpluggable_volumes = [volume for volume in found if volume]
        allocatable = self.node.allocatable if self.node else None
        missing = () if allocatable is None else facts.requests.keys() - allocatable.keys()
        # Extended resources that no node reports: each may be a device of a DeviceClass.
        self.unreported_resources = sorted(name for name in missing if "/" in name and not catalog.is_reported(name))

    def resource_fits(self) -> list[ResourceFit]:
        """Compare the pod's requests with the node's free resources. Empty if the allocatable resources are unknown.

        Every kubelet reports its pod capacity, so a node without one comes from a hand-written file.
        """
        if self.node is None or self.node.allocatable is None:
            return []
        pod, allocatable = self.pod_facts, self.node.allocatable
        load = self.catalog.requested(self.node_name, pod.key)
        for other in self.catalog.unbound_pods(self.node_name):
            if other.is_ignored_for(pod):
                load = {name: amount - other.requests.get(name, 0) for name, amount in load.items()}
        unlimited = {PODS, *self.unreported_resources} - allocatable.keys()
        return [
            ResourceFit(name, requested, allocatable.get(name, 0) - load.get(name, 0))
            for name, requested in pod.requests.items()
            if name not in unlimited
        ]

    def fits(self) -> bool:
        """Return whether the node has enough free resources for the pod."""
        return all(item.requested <= item.free for item in self.resource_fits())

    def is_restartable(self) -> bool:
        """Return whether the release could restart the VM if its pin failed. True for a pod that is no VM's."""
        if not self.pod_facts.belongs_to_vm:
            return True
        restarts = self.vm is not None and self.vm.restarts and self.vm.start_failures < MAX_START_FAILURES
        return self.releases and restarts


def releases_pins(settings: Settings) -> bool:
    """Return whether the webhook deletes Pending pods whose pin can't hold."""
    return settings.release and settings.node_guard
