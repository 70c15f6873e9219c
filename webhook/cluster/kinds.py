"""The resource kinds that the webhook lists and watches: their API paths, and the facts that it stores of each."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from webhook.cluster import objects, wire
from webhook.cluster.objects import Fact
from webhook.placement.objects.facts import (
    Claim,
    CSINode,
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
from webhook.placement.objects.fields import JsonObject
from webhook.placement.objects.kubevirt import APP_LABEL, HOTPLUG_POD, VIRT_LAUNCHER
from webhook.placement.settings import OptIn, Settings

KUBEVIRT_API = "/apis/kubevirt.io/v1"
VM_POD_SELECTOR = f"{APP_LABEL} in ({VIRT_LAUNCHER},{HOTPLUG_POD})"


@dataclass(frozen=True, slots=True)
class Kind:
    """A resource kind. `query` holds the parameters of its list and watch requests.

    The API server's JSON decodes to `shape`; `read` extracts the `fact`, or returns None for an object to ignore.
    `optional` marks a CRD, which may be missing. Without a `required` kind, the webhook isn't ready. Of a
    `metadata_only` kind, the API server sends nothing but the metadata.
    """

    fact: type[Fact]
    plural: str
    path: str
    shape: Any
    read: Callable[[JsonObject], Fact | None]
    optional: bool = False
    required: bool = True
    metadata_only: bool = False
    query: dict[str, str] = field(default_factory=dict)


# Only the release and the metrics of the fleet read VMs. So a missing right (an older ClusterRole) must not stop the
# decisions.
VIRTUAL_MACHINES = Kind(
    VirtualMachine,
    "virtualmachines",
    f"{KUBEVIRT_API}/virtualmachines",
    wire.VirtualMachine,
    objects.read_virtual_machine,
    optional=True,
    required=False,
)


# Namespace users control the labels of pods, but only KubeVirt creates a VMI's pod that the VMI owns.
VMIS = Kind(
    VirtualMachineInstance,
    "virtualmachineinstances",
    f"{KUBEVIRT_API}/virtualmachineinstances",
    wire.MetadataOnly,
    objects.read_virtual_machine_instance,
    optional=True,
    metadata_only=True,
)


# Namespace selectors of affinity terms read the namespaces. Both kinds opt in VMs, if the setting says so. A missing
# right (an older ClusterRole) must not stop the decisions: VMs with the annotation are still placed.
NAMESPACES = Kind(
    Namespace,
    "namespaces",
    "/api/v1/namespaces",
    wire.MetadataOnly,
    objects.read_namespace,
    required=False,
    metadata_only=True,
)
STORAGE_CLASSES = Kind(
    StorageClass,
    "storageclasses",
    "/apis/storage.k8s.io/v1/storageclasses",
    wire.MetadataOnly,
    objects.read_storage_class,
    required=False,
    metadata_only=True,
)


# Without the right, which an older ClusterRole lacks, no claim counts as limited.
CSI_NODES = Kind(
    CSINode,
    "csinodes",
    "/apis/storage.k8s.io/v1/csinodes",
    wire.CSINode,
    objects.read_csi_node,
    required=False,
)


def metadata_kinds(settings: Settings) -> tuple[Kind, ...]:
    """Return the kinds whose labels or annotations a decision needs: namespaces, and what opts in VMs."""
    return (NAMESPACES, STORAGE_CLASSES) if settings.opt_in is OptIn.NAMESPACE else (NAMESPACES,)


def kinds(longhorn: str) -> tuple[Kind, ...]:
    """Return the kinds that a decision needs; `longhorn` is Longhorn's namespace."""
    unfinished = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
    managers = f"/apis/longhorn.io/v1beta2/namespaces/{longhorn}/sharemanagers"
    return (
        Kind(Claim, "persistentvolumeclaims", "/api/v1/persistentvolumeclaims", wire.Claim, objects.read_claim),
        Kind(Volume, "persistentvolumes", "/api/v1/persistentvolumes", wire.Volume, objects.read_volume),
        Kind(ShareManager, "sharemanagers", managers, wire.ShareManager, objects.read_share_manager, optional=True),
        Kind(Node, "nodes", "/api/v1/nodes", wire.Node, objects.read_node),
        CSI_NODES,
        Kind(Pod, "pods", "/api/v1/pods", wire.StoredPod, objects.read_pod, query=unfinished),
        VMIS,
    )


def object_path(kind: Kind, key: Key) -> str:
    """Return the API path of one object."""
    namespace, name = (quote(part, safe="") for part in key)
    if kind.fact in (Claim, Pod, VirtualMachine, VirtualMachineInstance):
        return f"{kind.path.removesuffix(kind.plural)}namespaces/{namespace}/{kind.plural}/{name}"
    return f"{kind.path}/{name}"
