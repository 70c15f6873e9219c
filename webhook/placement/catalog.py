"""The decision's view of the cluster: the facts about each object, and the queries on them.

A store answers the queries. The store mirrors the live cluster, reads objects on demand, or is filled from files.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from webhook.placement.selectors import AffinityTerm
from webhook.placement.shape import JsonObject

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Claim:
    """A PersistentVolumeClaim.

    `volume_name` is the name of the PV, empty while unbound. `shared` means ReadWriteMany. `persistent_state` marks the
    claim of a persistent vTPM or EFI state.
    """

    namespace: str
    name: str
    volume_name: str
    shared: bool
    persistent_state: bool

    @property
    def key(self) -> Key:
        """Return the namespace and name, which identify an object within its kind."""
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class Volume:
    """A PersistentVolume. `handle` is its Longhorn volume, empty for another driver; `claim` is its claimRef."""

    name: str
    handle: str
    claim: Key | None
    node_affinity: JsonObject | None

    @property
    def key(self) -> Key:
        """Return an empty namespace and the name."""
        return "", self.name


@dataclass(frozen=True, slots=True)
class ShareManager:
    """A Longhorn ShareManager, named after its volume. `state` and `owner` are empty if the status has none."""

    namespace: str
    name: str
    state: str
    owner: str
    deleting: bool

    @property
    def key(self) -> Key:
        """Return the namespace and name."""
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class Node:
    """A node. `ready` is None without a Ready condition; `allocatable` is None if the status does not report it."""

    name: str
    labels: Mapping[str, str]
    ready: bool | None
    unschedulable: bool
    taints: tuple[JsonObject, ...]
    allocatable: Mapping[str, int] | None

    @property
    def key(self) -> Key:
        """Return an empty namespace and the name."""
        return "", self.name


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that has not finished.

    `effective_node` is the node that the pod is bound to. For an unbound pod, it is the node that the webhook pinned it
    to, or else the node that the scheduler nominated.
    `alive` means Pending or Running, and not terminating. Only pods of VMs have `claims`, `true_annotations` (the
    keys of annotations with the value "true") and `owners` (UIDs).
    """

    namespace: str
    name: str
    uid: str
    node: str
    effective_node: str
    alive: bool
    created: str
    labels: Mapping[str, str]
    requests: Mapping[str, int]
    anti_affinity: tuple[AffinityTerm, ...]
    claims: tuple[str, ...]
    true_annotations: frozenset[str]
    owners: frozenset[str]

    @property
    def key(self) -> Key:
        """Return the namespace and name."""
        return self.namespace, self.name


class Catalog(Protocol):
    """The queries on the cluster. A missing object is None or absent, never an error."""

    def claim(self, namespace: str, name: str) -> Claim | None:
        """Find a claim."""

    def volume(self, name: str) -> Volume | None:
        """Find a PV by its own name."""

    def volumes_by_handle(self, handle: str) -> Collection[Volume]:
        """List the PVs of a Longhorn volume: those with its handle, otherwise the one with its name."""

    def share_manager(self, namespace: str, volume: str) -> ShareManager | None:
        """Find the ShareManager of a Longhorn volume."""

    def share_manager_pods(self, namespace: str, volume: str) -> Collection[Pod]:
        """List the share-manager pods of a Longhorn volume, in order of their names."""

    def mounting_pods(self, namespace: str, claim: str) -> Collection[Pod]:
        """List the virt-launcher pods that mount a claim, directly or through their hotplug pod."""

    def node(self, name: str) -> Node | None:
        """Find a node."""

    def has_nodes(self) -> bool:
        """Return whether the catalog contains any node."""

    def requested(self, node: str, excluding: Key) -> Mapping[str, int]:
        """Sum the effective requests of the pods whose effective node is `node`, without the pod `excluding`."""

    def placed_pods(self, namespaces: Collection[str]) -> Iterable[Pod]:
        """List the pods in these namespaces that have an effective node."""

    def pods_with_anti_affinity(self, namespace: str) -> Iterable[Pod]:
        """List the pods that have an effective node and a required anti-affinity to pods in the namespace.

        An empty name stands for anti-affinity terms with a namespace selector.
        """
