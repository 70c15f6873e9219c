"""The resource kinds that the webhook lists and watches: their API paths, and the facts that it stores of each."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from webhook.cluster import objects, wire
from webhook.cluster.objects import Fact
from webhook.placement.catalog import Claim, Key, Node, Pod, ShareManager, VirtualMachine, Volume
from webhook.placement.shape import JsonObject


@dataclass(frozen=True, slots=True)
class Kind:
    """A resource kind. `query` holds the parameters of its list and watch requests.

    The API server's JSON decodes to `shape`; `read` extracts the `fact`, or returns None for an object to ignore.
    `optional` marks a CRD, which may be missing. Without a `required` kind, the webhook isn't ready.
    """

    fact: type[Fact]
    plural: str
    path: str
    shape: Any
    read: Callable[[JsonObject], Fact | None]
    optional: bool = False
    required: bool = True
    query: dict[str, str] = field(default_factory=dict)


# Only the release and the metrics of the fleet read VMs. So a missing right (an older ClusterRole) must not stop the
# decisions.
VIRTUAL_MACHINES = Kind(
    VirtualMachine,
    "virtualmachines",
    "/apis/kubevirt.io/v1/virtualmachines",
    wire.VirtualMachine,
    objects.read_virtual_machine,
    optional=True,
    required=False,
)


def kinds(longhorn: str) -> tuple[Kind, ...]:
    """Return the kinds that a decision needs; `longhorn` is Longhorn's namespace."""
    unfinished = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
    managers = f"/apis/longhorn.io/v1beta2/namespaces/{longhorn}/sharemanagers"
    return (
        Kind(Claim, "persistentvolumeclaims", "/api/v1/persistentvolumeclaims", wire.Claim, objects.read_claim),
        Kind(Volume, "persistentvolumes", "/api/v1/persistentvolumes", wire.Volume, objects.read_volume),
        Kind(ShareManager, "sharemanagers", managers, wire.ShareManager, objects.read_share_manager, optional=True),
        Kind(Node, "nodes", "/api/v1/nodes", wire.Node, objects.read_node),
        Kind(Pod, "pods", "/api/v1/pods", wire.StoredPod, objects.read_pod, query=unfinished),
    )


def object_path(kind: Kind, key: Key) -> str:
    """Return the API path of one object."""
    namespace, name = (quote(part, safe="") for part in key)
    if kind.fact in (Claim, Pod, VirtualMachine):
        return f"{kind.path.removesuffix(kind.plural)}namespaces/{namespace}/{kind.plural}/{name}"
    return f"{kind.path}/{name}"
