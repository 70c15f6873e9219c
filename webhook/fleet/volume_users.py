"""The other users of a VM's volumes: they keep its share-managers running when the VM stops."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from webhook.placement.catalog import Catalog
from webhook.placement.objects.facts import Key
from webhook.placement.reasons import ClaimFinding
from webhook.placement.volume_consumers import claims_of

# A volume can have thousands of users, and each VM of a report lists the others.
MAX_USERS = 10

POD, VMI = "Pod", "VirtualMachineInstance"


@dataclass(frozen=True, slots=True)
class VolumeUser:
    """A VMI, or a pod that belongs to no VM."""

    kind: str  # of the object
    namespace: str
    name: str

    def __str__(self) -> str:
        """Return the user for sentences, such as "pod backup/nightly-0"."""
        return f"{'VM' if self.kind == VMI else 'pod'} {self.namespace}/{self.name}"


def other_users(served: Iterable[ClaimFinding], namespace: str, vmi: str, catalog: Catalog) -> tuple[VolumeUser, ...]:
    """Return the first users of the volumes of a VMI's claims other than this VMI: first the pods of no VM.

    `vmi` is the UID of the VMI. A user mounts any claim of a volume, and is bound to a node.
    """
    keys = (key for each in served for key in ((namespace, each.claim), *claims_of(each.volume or "", catalog)))
    return tuple(dict.fromkeys(islice(_users(dict.fromkeys(keys), vmi, catalog), MAX_USERS)))


def users_of(volume: str, catalog: Catalog) -> Iterator[VolumeUser]:
    """Yield all users of a Longhorn volume, some of them several times."""
    return _users(dict.fromkeys(claims_of(volume, catalog)), "", catalog)


def _users(claims: Iterable[Key], vmi: str, catalog: Catalog) -> Iterator[VolumeUser]:
    for claim in claims:
        for pod in catalog.other_mounting_pods(*claim):
            yield VolumeUser(POD, *pod.key)
    for claim in claims:
        for pod in catalog.mounting_pods(*claim):
            if pod.node and pod.alive and pod.vmi_uid != vmi:
                yield VolumeUser(VMI, pod.namespace, pod.vm or pod.name)
