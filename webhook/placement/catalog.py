"""The decision's view of the cluster: the queries on the facts about its objects.

A store answers the queries. The store mirrors the live cluster, or is filled once: from the cluster or from files.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from webhook.placement.objects import facts
from webhook.placement.objects.facts import Key, Pod
from webhook.placement.objects.selectors import AffinityTerm, Selector

P = ParamSpec("P")
T = TypeVar("T")


class Catalog(Protocol):
    """The queries on the cluster. A missing object is None or absent, never an error."""

    def claim(self, namespace: str, name: str) -> facts.Claim | None:
        """Find a claim."""

    def volume(self, name: str) -> facts.Volume | None:
        """Find a PV by its own name."""

    def volumes_by_handle(self, handle: str) -> Collection[facts.Volume]:
        """List the PVs of a Longhorn volume: those with its handle, otherwise the one with its name."""

    def share_manager(self, namespace: str, name: str) -> facts.ShareManager | None:
        """Find a ShareManager, which has the name of its Longhorn volume."""

    def share_manager_pod(self, namespace: str, volume: str) -> Pod | None:
        """Find the share-manager pod of a Longhorn volume."""

    def longhorn_volume(self, namespace: str, name: str) -> facts.LonghornVolume | None:
        """Find Longhorn's own object of a volume."""

    def replicas_of(self, volume: str) -> Collection[facts.Replica]:
        """List the replicas of a Longhorn volume."""

    def mounting_pods(self, namespace: str, claim: str) -> Iterable[Pod]:
        """List the virt-launcher pods that mount a claim, directly or through their hotplug pod."""

    def other_mounting_pods(self, namespace: str, claim: str) -> Collection[Pod]:
        """List the bound pods that mount a claim, are Pending or Running, and belong to no VM, sorted by name.

        Of a claim that very many pods mount, only the first ones count.
        """

    def storage_class(self, name: str) -> facts.StorageClass | None:
        """Find a StorageClass."""

    def node(self, name: str) -> facts.Node | None:
        """Find a node."""

    def all_nodes(self) -> Collection[facts.Node]:
        """List the nodes."""

    def tainted_nodes(self) -> Collection[facts.Node]:
        """List the nodes that have a taint."""

    def csi_node(self, name: str) -> facts.CSINode | None:
        """Find the CSI drivers on a node. None if those of all nodes are unknown."""

    def is_reported(self, resource: str) -> bool:
        """Return whether any node reports an extended resource as allocatable."""

    def released_nodes(self, namespace: str, vm: str) -> Collection[str]:
        """List the node of each unschedulable pinned pod of a VM that was deleted within the last hour."""

    def virtual_machine(self, namespace: str, name: str) -> facts.VirtualMachine | None:
        """Find a VM."""

    def requested(self, node: str, excluding: Key) -> Mapping[str, int]:
        """Sum the effective requests of the pods whose effective node is `node`, without the pod `excluding`."""

    def unbound_pods(self, node: str) -> Iterable[Pod]:
        """List the pods that are pinned or nominated to `node`, but not bound yet."""

    def stale_resources(self) -> Collection[str]:
        """List the resources without an update for 5 minutes: for example "nodes"."""

    def placed_pods(self, namespace: str, selector: Selector) -> Iterable[Pod]:
        """List the pods of a namespace that have an effective node: at least those that the selector selects."""

    def repelling_terms(
        self, namespace: str, labels: Mapping[str, str], *, own: bool
    ) -> Iterable[tuple[Pod, AffinityTerm]]:
        """List pods with a required anti-affinity term that may select a pod with these labels in the namespace.

        They have an effective node. With `own`, they are in the namespace, otherwise in all others.
        """

    def oversized_pods(self) -> Collection[str]:
        """List the namespaces that have a pod with an effective node whose labels and terms are unknown."""

    def namespace(self, name: str) -> facts.Namespace | None:
        """Find a namespace."""

    def all_namespaces(self) -> Collection[facts.Namespace]:
        """List the namespaces."""


def _asked(query: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate["CatalogProxy", P], T]:
    """Return the method of a proxy for one query of `Catalog`."""
    name = query.__name__

    def ask(proxy: "CatalogProxy", /, *arguments: P.args, **options: P.kwargs) -> T:
        answer: T = proxy.ask(name, *arguments, **options)
        return answer

    return ask


class CatalogProxy:
    """Answers each query from another catalog, unless a subclass answers it.

    mypy rejects a proxy that lacks a query. For a new query, decide whether the subclasses need an answer of their own.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def ask(self, query: str, *arguments: Any, **options: Any) -> Any:
        """Ask the other catalog."""
        return getattr(self._catalog, query)(*arguments, **options)

    claim = _asked(Catalog.claim)
    volume = _asked(Catalog.volume)
    volumes_by_handle = _asked(Catalog.volumes_by_handle)
    share_manager = _asked(Catalog.share_manager)
    share_manager_pod = _asked(Catalog.share_manager_pod)
    longhorn_volume = _asked(Catalog.longhorn_volume)
    replicas_of = _asked(Catalog.replicas_of)
    mounting_pods = _asked(Catalog.mounting_pods)
    other_mounting_pods = _asked(Catalog.other_mounting_pods)
    storage_class = _asked(Catalog.storage_class)
    node = _asked(Catalog.node)
    all_nodes = _asked(Catalog.all_nodes)
    tainted_nodes = _asked(Catalog.tainted_nodes)
    csi_node = _asked(Catalog.csi_node)
    is_reported = _asked(Catalog.is_reported)
    released_nodes = _asked(Catalog.released_nodes)
    virtual_machine = _asked(Catalog.virtual_machine)
    requested = _asked(Catalog.requested)
    unbound_pods = _asked(Catalog.unbound_pods)
    stale_resources = _asked(Catalog.stale_resources)
    placed_pods = _asked(Catalog.placed_pods)
    repelling_terms = _asked(Catalog.repelling_terms)
    oversized_pods = _asked(Catalog.oversized_pods)
    namespace = _asked(Catalog.namespace)
    all_namespaces = _asked(Catalog.all_namespaces)
