"""A catalog for the commands, which decide on one pod: it reads an object from the cluster on first use."""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import msgspec

from webhook.cluster.caches.kinds import (
    NAMESPACES,
    STORAGE_CLASSES,
    VIRTUAL_MACHINES,
    VM_POD_SELECTOR,
    Kind,
    kinds,
    object_path,
)
from webhook.cluster.caches.pod_tables import PlacedPods, PodTerm
from webhook.cluster.caches.store import Store
from webhook.cluster.client import ClusterClient, ClusterError
from webhook.placement.objects.facts import (
    Claim,
    CSINode,
    Fact,
    Key,
    Namespace,
    Node,
    Pod,
    ShareManager,
    StorageClass,
    VirtualMachine,
    VirtualMachineInstance,
    Volume,
)
from webhook.placement.objects.longhorn import COMPONENT_LABEL, SHARE_MANAGER, VOLUME_LABEL
from webhook.placement.objects.selectors import Selector
from webhook.reading.api import answered, list_raw


class OnDemand(Store):
    """A store whose queries read missing objects. Each query raises BadInput if the API server request fails."""

    def __init__(self, cluster: ClusterClient, longhorn: str) -> None:
        super().__init__(taken_at=datetime.now(UTC))
        self._cluster = cluster
        self._kinds = {kind.fact: kind for kind in (*kinds(longhorn), VIRTUAL_MACHINES, NAMESPACES, STORAGE_CLASSES)}
        self._queried: set[tuple[Any, ...]] = set()

    def _is_first_query(self, *query: Any) -> bool:
        if query in self._queried:
            return False
        self._queried.add(query)
        return True

    # A tolerated status leaves the objects unknown.

    def _get(self, fact: type[Fact], key: Key, *tolerated: int) -> None:
        if self._is_first_query(fact, key):
            kind = self._kinds[fact]
            with suppress(ClusterError), answered(*tolerated):
                body = self._cluster.get(object_path(kind, key))
                self._store_items(kind, [] if body is None else [msgspec.Raw(body)])

    def _list(self, fact: type[Fact], *tolerated: int, path: str = "", **query: str) -> None:
        kind = self._kinds[fact]
        if self._is_first_query(fact, path, *query.items()):
            with suppress(ClusterError), answered(*tolerated):
                self._store_items(kind, list_raw(self._cluster, path or kind.path, **kind.query, **query))

    def _store_items(self, kind: Kind, items: Iterable[msgspec.Raw]) -> None:
        for fact in kind.read_all(items, lambda *_: None):  # like the webhook, which skips malformed objects
            self.put(fact)

    def claim(self, namespace: str, name: str) -> Claim | None:
        """Read a claim."""
        self._get(Claim, (namespace, name))
        return super().claim(namespace, name)

    def volume(self, name: str) -> Volume | None:
        """Read a PV."""
        self._get(Volume, ("", name))
        return super().volume(name)

    def volumes_by_handle(self, handle: str) -> Collection[Volume]:
        """List the PVs of a Longhorn volume. The API server can't select PVs by handle, so list all PVs."""
        self._list(Volume)
        return super().volumes_by_handle(handle)

    def share_manager(self, namespace: str, volume: str) -> ShareManager | None:
        """Read a ShareManager; return None if the object or the CRD is missing."""
        self._get(ShareManager, (namespace, volume))
        return super().share_manager(namespace, volume)

    def share_manager_pods(self, namespace: str, volume: str) -> Collection[Pod]:
        """Read the share-manager pods of a volume."""
        selector = f"{COMPONENT_LABEL}={SHARE_MANAGER},{VOLUME_LABEL}={volume}"
        self._list(Pod, path=f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector)
        return super().share_manager_pods(namespace, volume)

    def mounting_pods(self, namespace: str, claim: str) -> Iterable[Pod]:
        """Read the VM pods of a namespace, and return the virt-launcher pods that mount a claim."""
        self._list(Pod, path=f"/api/v1/namespaces/{namespace}/pods", labelSelector=VM_POD_SELECTOR)
        return super().mounting_pods(namespace, claim)

    def other_mounting_pods(self, namespace: str, claim: str) -> Collection[Pod]:
        """Return the pods that mount a claim and belong to no VM. Reads all pods, like the node guard."""
        self._list(Pod)
        return super().other_mounting_pods(namespace, claim)

    def namespace_opt_in(self, name: str) -> bool | None:
        """Read a namespace."""
        self._get(Namespace, ("", name))
        return super().namespace_opt_in(name)

    def storage_class_opts_in(self, name: str) -> bool:
        """Read a StorageClass."""
        self._get(StorageClass, ("", name))
        return super().storage_class_opts_in(name)

    def node(self, name: str) -> Node | None:
        """Read a node."""
        self._get(Node, ("", name))
        return super().node(name)

    def csi_node(self, name: str) -> CSINode | None:
        """Read a CSINode; return None without the right, like the webhook: then no claim counts as limited."""
        self._get(CSINode, ("", name), HTTPStatus.FORBIDDEN)
        return super().csi_node(name)

    def virtual_machine(self, namespace: str, name: str) -> VirtualMachine | None:
        """Read a VM; return None if the object or the CRD is missing, or if the user may read pods, but not VMs."""
        self._get(VirtualMachine, (namespace, name), HTTPStatus.FORBIDDEN)
        return super().virtual_machine(namespace, name)

    def has_nodes(self) -> bool:
        """Return True without a read: a cluster without nodes has no pods either."""
        return True

    def is_reported(self, resource: str) -> bool:
        """Return whether any node reports an extended resource. Reads all nodes."""
        self._list(Node)
        return super().is_reported(resource)

    def counting_pins(self) -> PlacedPods:
        """Return the pods that count on the node of their pin. Reads all VMIs, if a pod has a pin."""
        if len(self.pins):
            self._list_vmis()
        return super().counting_pins()

    def vmi(self, namespace: str, name: str) -> VirtualMachineInstance | None:
        """Find a VMI. Reads all VMIs: one alone would make all others unknown."""
        self._list_vmis()
        return super().vmi(namespace, name)

    def _list_vmis(self) -> None:
        # Without VMIs, each one counts as known.
        self._list(VirtualMachineInstance, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)

    def requested(self, node: str, excluding: Key) -> Mapping[str, int]:
        """Sum up the requests of the pods on a node, without the pod `excluding`. Reads all pods."""
        self._list(Pod)
        return super().requested(node, excluding)

    def nominated_pods(self, node: str) -> Collection[Pod]:
        """List the unbound pods for which the scheduler has nominated a node. Reads all pods."""
        self._list(Pod)
        return super().nominated_pods(node)

    def expects_pods(self, node: str, excluding: Key) -> bool:
        """Return whether pods are about to run on a node. Reads all pods."""
        self._list(Pod)
        return super().expects_pods(node, excluding)

    def placed_pods(self, namespace: str, selector: Selector) -> Iterable[Pod]:
        """List the pods with an effective node that a selector may select. Reads all pods."""
        self._list(Pod)
        return super().placed_pods(namespace, selector)

    def repelling_terms(self, namespace: str, labels: Mapping[str, str], *, own: bool) -> Collection[PodTerm]:
        """List the anti-affinity terms that may select a pod. Reads all pods: the API server can't filter by them."""
        self._list(Pod)
        return super().repelling_terms(namespace, labels, own=own)

    def oversized_pods(self) -> Collection[str]:
        """List the namespaces that have an oversized pod. Reads all pods."""
        self._list(Pod)
        return super().oversized_pods()

    def namespace(self, name: str) -> Namespace | None:
        """Read a namespace."""
        self._get(Namespace, ("", name))
        return super().namespace(name)

    def all_namespaces(self) -> Collection[Namespace]:
        """Read all namespaces."""
        self._list(Namespace)
        return super().all_namespaces()
