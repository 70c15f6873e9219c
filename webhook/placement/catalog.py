"""What the decision knows of the cluster: the facts kept of each object, and the questions asked about them.

Two things answer the questions: a store that follows the live cluster, and one filled from files.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from webhook.placement.selectors import AffinityTerm
from webhook.placement.shape import JsonObject

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Claim:
    """A PersistentVolumeClaim. `volume_name` is the PV's, empty while unbound; `shared` means ReadWriteMany."""

    namespace: str
    name: str
    volume_name: str
    shared: bool
    persistent_state: bool

    @property
    def key(self) -> Key:
        """Namespace and name, as the API server tells objects of one kind apart."""
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class Volume:
    """A PersistentVolume. `handle` is the Longhorn volume, empty where another driver made it; `claim` its claimRef."""

    name: str
    handle: str
    claim: Key | None
    node_affinity: JsonObject | None

    @property
    def key(self) -> Key:
        """An empty namespace and the name."""
        return "", self.name


@dataclass(frozen=True, slots=True)
class ShareManager:
    """A ShareManager, named after its Longhorn volume. `state` and `owner` are empty where the status has none."""

    namespace: str
    name: str
    state: str
    owner: str
    deleting: bool

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class Node:
    """A node. `ready` is None without a Ready condition, `allocatable` None where it is not told."""

    name: str
    labels: Mapping[str, str]
    ready: bool | None
    unschedulable: bool
    taints: tuple[JsonObject, ...]
    allocatable: Mapping[str, int] | None

    @property
    def key(self) -> Key:
        """An empty namespace and the name."""
        return "", self.name


@dataclass(frozen=True, slots=True)
class Pod:
    """An unfinished pod.

    `effective_node` is the node that the pod is bound to; for an unbound pod, the node that we pinned it to. `alive` means
    Pending or Running, and not terminating. `claims`, `true_annotations` and `owners` (uids) are kept of VMs' pods only.
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
        """Namespace and name."""
        return self.namespace, self.name


class Catalog(Protocol):
    """The questions. An object that is not there is None or absent, never an error."""

    def claim(self, namespace: str, name: str) -> Claim | None:
        """Find a claim."""

    def volume(self, name: str) -> Volume | None:
        """Find a PV by its own name."""

    def volume_by_handle(self, handle: str) -> Volume | None:
        """Find the PV of a Longhorn volume: by its handle, else by its name."""

    def share_manager(self, namespace: str, volume: str) -> ShareManager | None:
        """Find the ShareManager of a Longhorn volume."""

    def share_manager_pods(self, namespace: str, volume: str) -> Collection[Pod]:
        """List the share-manager pods of a Longhorn volume, in order of their names."""

    def mounting_pods(self, namespace: str, claim: str) -> Collection[Pod]:
        """List the virt-launcher pods that mount a claim, directly or through their hotplug pod."""

    def node(self, name: str) -> Node | None:
        """Find a node."""

    def has_nodes(self) -> bool:
        """Say whether any node is known at all."""

    def requested(self, node: str, excluding: Key) -> Mapping[str, int]:
        """Sum up the effective requests of the pods whose site is `node`, without the pod `excluding`."""

    def placed_pods(self, namespaces: Collection[str]) -> Iterable[Pod]:
        """List the pods of some namespaces that have a site."""

    def pods_with_anti_affinity(self, namespace: str) -> Iterable[Pod]:
        """List the pods that have a site and a required anti-affinity to pods of a namespace.

        An empty name stands for the namespaces that a term selects by labels.
        """
