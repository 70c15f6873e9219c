"""A VM's volumes: their other users, which keep their share-managers running, and the nodes of their data."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from msgspec import Struct

from webhook.placement.catalog import Catalog
from webhook.placement.objects.facts import Key, LonghornVolume, Replica
from webhook.placement.reasons import ClaimFinding
from webhook.placement.voting_consumers import claims_of

POD, VMI = "Pod", "VirtualMachineInstance"


class VolumeUser(Struct, frozen=True):
    """A VMI, or a pod that belongs to no VM."""

    kind: str  # of the object
    namespace: str
    name: str

    def __str__(self) -> str:
        """Return the user for sentences, such as "pod backup/nightly-0"."""
        return f"{'VM' if self.kind == VMI else 'pod'} {self.namespace}/{self.name}"


def other_users(served: Iterable[ClaimFinding], namespace: str, vmi: str, catalog: Catalog) -> Iterator[VolumeUser]:
    """Yield the other users of the volumes behind a VMI's claims, some more than once. Pods that aren't VMs come first.

    `vmi` is the UID of the VMI. A user mounts any claim of a volume, and is bound to a node.
    """
    keys = (key for each in served for key in ((namespace, each.claim), *claims_of(each.volume or "", catalog)))
    return _users(dict.fromkeys(keys), vmi, catalog)


def users_of(volume: str, catalog: Catalog) -> Iterator[VolumeUser]:
    """Yield all users of a Longhorn volume, some more than once."""
    return _users(dict.fromkeys(claims_of(volume, catalog)), "", catalog)


def _users(claims: Iterable[Key], vmi: str, catalog: Catalog) -> Iterator[VolumeUser]:
    for claim in claims:
        for pod in catalog.other_mounting_pods(*claim):
            yield VolumeUser(POD, *pod.key)
    for claim in claims:
        for pod in catalog.mounting_pods(*claim):
            if pod.node and pod.alive and pod.vmi_uid != vmi:
                yield VolumeUser(VMI, pod.namespace, pod.vm or pod.name)


class VolumeData(Struct, frozen=True):
    """A Longhorn volume, as far as its fields are known."""

    locality: str = ""  # its dataLocality
    attached_to: str = ""  # the node of its engine
    healthy: frozenset[str] | None = None  # the nodes of its healthy replicas; None if unknown
    used: frozenset[str] = frozenset()  # the nodes of its replicas that have been healthy or have failed

    def is_local_to(self, node: str | None) -> bool | None:
        """Return whether a node has a healthy replica, None if that or the node is unknown."""
        return None if self.healthy is None or not node else node in self.healthy


def data_of(volumes: Iterable[LonghornVolume], replicas: Collection[Replica]) -> dict[str, VolumeData]:
    """Return the data of each Longhorn volume, by name. Without any replica, the user may not list them."""
    healthy: defaultdict[str, set[str]] = defaultdict(set)
    used: defaultdict[str, set[str]] = defaultdict(set)
    for replica in replicas:
        healthy[replica.volume] |= {replica.node} if replica.healthy else set()
        used[replica.volume] |= {replica.node} if replica.used else set()
    return {
        volume.name: VolumeData(
            volume.data_locality,
            volume.attached_to,
            frozenset(healthy[volume.name]) if replicas else None,
            frozenset(used[volume.name]),
        )
        for volume in volumes
    }
