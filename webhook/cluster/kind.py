"""The resource kinds that the webhook and the commands read: their API paths, and the facts that they take from each.

The watches, the lists and the reads of single objects decode and read objects by `Kind.read_all`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any
from urllib.parse import quote

import msgspec

from webhook.cluster import kind_fields as shapes
from webhook.cluster import kinds as readers
from webhook.fleet.instance_type import KINDS, NAME_LABEL, REVISION
from webhook.placement.objects import facts
from webhook.placement.objects.facts import Fact, Key
from webhook.placement.objects.fields import JsonObject, Malformed, text
from webhook.placement.objects.kubevirt import APP_LABEL, HOTPLUG_POD, VIRT_LAUNCHER
from webhook.placement.settings import OptIn

# Called with the name of a malformed object, which may be empty, and what is wrong with it.
Skip = Callable[[str, str], None]

KUBEVIRT, LONGHORN, STORAGE = "kubevirt.io/v1", "longhorn.io/v1beta2", "storage.k8s.io/v1"
KUBEVIRT_API = f"/apis/{KUBEVIRT}"
VM_POD_SELECTOR = f"{APP_LABEL} in ({VIRT_LAUNCHER},{HOTPLUG_POD})"


@dataclass(frozen=True, slots=True)
class Kind:
    """A resource kind, by the `api_version` and the `name` in manifests.

    The API server's JSON decodes to `shape`, and a snapshot keeps no other fields. `read` extracts the `fact`, or
    returns None for an object to ignore. Of a kind without a `fact`, only the tool reads the manifests. `query` holds
    the parameters of list and watch requests. Only the objects of a `namespace` count, if it is not empty. Without
    the right to read a `required` kind, the webhook isn't ready. Of a `metadata_only` kind, the API server sends
    nothing but the metadata.
    """

    api_version: str
    name: str
    shape: Any
    fact: Any = None
    read: Callable[[JsonObject], Fact | None] = lambda _item: None
    query: dict[str, str] = field(default_factory=dict)
    namespace: str = ""
    required: bool = True
    metadata_only: bool = False

    @property
    def plural(self) -> str:
        """Return the resource's name in the API."""
        return self.name.lower() + ("es" if self.name.endswith("s") else "s")

    @property
    def group(self) -> str:
        """Return the group of the API, empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def optional(self) -> bool:
        """Return whether the kind is a CRD, which may be missing."""
        return self.group.endswith(("longhorn.io", "kubevirt.io"))

    @property
    def path(self) -> str:
        """Return the path of all objects."""
        return self.path_in(self.namespace)

    def path_in(self, namespace: str) -> str:
        """Return the path of a namespaced kind's objects in a namespace, of all if the namespace is empty."""
        api = f"/{'apis' if self.group else 'api'}/{self.api_version}"
        return f"{api}/namespaces/{quote(namespace, safe='')}/{self.plural}" if namespace else f"{api}/{self.plural}"

    def object_path(self, key: Key) -> str:
        """Return the path of one object of a namespaced kind."""
        return f"{self.path_in(key[0])}/{quote(key[1], safe='')}"

    def is_of(self, api_version: str, name: str) -> bool:
        """Return whether a manifest is of this kind. KubeVirt and Longhorn have several versions of their API."""
        return (api_version.rpartition("/")[0], name) == (self.group, self.name)

    def read_all(self, raws: Iterable[msgspec.Raw | bytes], skip: Skip) -> Iterator[Fact]:
        """Yield the facts of objects. Calls `skip` for a malformed object."""
        return (found[1] for raw in raws if (found := self.read_one(raw, skip)))

    def read_one(self, raw: msgspec.Raw | bytes, skip: Skip) -> tuple[JsonObject, Fact] | None:
        """Return an object, with the fields of the shape, and its fact; None for one to ignore or to skip."""
        try:
            item = self.decode(raw)
        except Malformed as error:
            skip("", str(error))
            return None
        fact = self.extract(item, skip)
        return None if fact is None else (item, fact)

    def decode(self, raw: msgspec.Raw | bytes) -> JsonObject:
        """Decode an object: the fields of the shape, or all if one of them has another type. Raises Malformed.

        Of a large object, the fields that are too large to decode are missing.
        """
        try:
            if shapes.size_of(raw) > shapes.LARGE:
                return shapes.decode_large(raw, self.shape)
            item: JsonObject = _decoder(self.shape).decode(raw)
        except (ValueError, RecursionError):
            try:
                item = msgspec.json.decode(raw)
            except (ValueError, RecursionError):
                raise Malformed("not valid JSON") from None
        return item if isinstance(item, dict) else {}

    def extract(self, item: JsonObject, skip: Skip) -> Fact | None:
        """Read the fact of an object. Calls `skip` for a malformed object, and returns None for one to ignore."""
        name = text(item, "metadata", "name")
        try:
            if name:
                return self.read(item)
            skip(name, "metadata.name is missing")
        except Malformed as error:
            skip(name, str(error))
        except Exception as error:  # noqa: BLE001 (one malformed object must not fail the whole list)
            skip(name, type(error).__name__)
        return None


@cache
def _decoder(shape: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(shape)


# Only the tool reads these.
LONGHORN_VERSION = "current-longhorn-version"
TOOL_KINDS = (
    Kind(KUBEVIRT, "KubeVirt", shapes.KUBEVIRT),
    Kind(LONGHORN, "Setting", shapes.LONGHORN_SETTING, query={"fieldSelector": f"metadata.name={LONGHORN_VERSION}"}),
    Kind("v1", "ResourceQuota", shapes.RESOURCE_QUOTA),
    # Instance types, preferences, and the revisions of both.
    Kind("apps/v1", REVISION, shapes.REVISION, query={"labelSelector": NAME_LABEL}),
    *(Kind("instancetype.kubevirt.io/v1beta1", name, shapes.INSTANCE_TYPE) for name in sorted(KINDS - {REVISION})),
)

CLAIMS = Kind("v1", "PersistentVolumeClaim", shapes.CLAIM, facts.Claim, readers.read_claim)
VOLUMES = Kind("v1", "PersistentVolume", shapes.VOLUME, facts.Volume, readers.read_volume)
NODES = Kind("v1", "Node", shapes.NODE, facts.Node, readers.read_node)
UNFINISHED = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
PODS = Kind("v1", "Pod", shapes.POD, facts.Pod, readers.read_pod, UNFINISHED)
# Without the right, which an older ClusterRole lacks, no claim counts as limited.
CSI_NODES = Kind(STORAGE, "CSINode", shapes.CSI_NODE, facts.CSINode, readers.read_csi_node, required=False)
# Only the release and the metrics of the fleet read VMs. So a missing right (an older ClusterRole) must not stop the
# decisions.
VIRTUAL_MACHINES = Kind(
    KUBEVIRT, "VirtualMachine", shapes.VM, facts.VirtualMachine, readers.read_virtual_machine, required=False
)
# Namespace users control the labels of pods, but only KubeVirt creates a VMI's pod that the VMI owns.
_VMI = facts.VirtualMachineInstance
VMIS = Kind(KUBEVIRT, "VirtualMachineInstance", shapes.VMI, _VMI, readers.read_vmi, metadata_only=True)
SHARE_MANAGERS = Kind(LONGHORN, "ShareManager", shapes.SHARE_MANAGER, facts.ShareManager, readers.read_share_manager)
# Namespace selectors of affinity terms read the namespaces. Both kinds opt in VMs, if the setting says so. A missing
# right (an older ClusterRole) must not stop the decisions: VMs with the annotation are still placed.
_OPT_IN: dict[str, Any] = {"required": False, "metadata_only": True}
NAMESPACES = Kind("v1", "Namespace", shapes.NAMESPACE, facts.Namespace, readers.read_namespace, **_OPT_IN)
STORAGE_CLASSES = Kind(
    STORAGE, "StorageClass", shapes.STORAGE_CLASS, facts.StorageClass, readers.read_storage_class, **_OPT_IN
)


def kinds(longhorn: str, opt_in: OptIn = OptIn.NAMESPACE) -> tuple[Kind, ...]:
    """Return the kinds that decisions and the report read; `longhorn` is Longhorn's namespace.

    StorageClasses are read only where they can opt in VMs.
    """
    share_managers = replace(SHARE_MANAGERS, namespace=longhorn)
    classes = (STORAGE_CLASSES,) if opt_in is OptIn.NAMESPACE else ()
    return (CLAIMS, VOLUMES, share_managers, NODES, CSI_NODES, PODS, VMIS, VIRTUAL_MACHINES, NAMESPACES, *classes)
