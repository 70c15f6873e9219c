"""The resource kinds that the webhook and the commands read: their API paths, and the facts that they take from each.

The watches, the lists and the reads of single objects decode and read objects by `Kind.read_all`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import quote

import msgspec

from webhook.cluster import kind_fields
from webhook.cluster.caches import fact_readers
from webhook.fleet.instance_type import KINDS, NAME_LABEL, REVISION
from webhook.placement.objects import facts
from webhook.placement.objects.facts import Fact, Key
from webhook.placement.objects.fields import JsonObject, Malformed, text
from webhook.placement.objects.kubevirt import APP_LABEL, HOTPLUG_POD, VIRT_LAUNCHER
from webhook.placement.settings import OptIn, Settings

# Called with the name of a malformed object, which may be empty, and what is wrong with it.
Skip = Callable[[str, str], None]

KUBEVIRT_API, STORAGE_API = "/apis/kubevirt.io/v1", "/apis/storage.k8s.io/v1"
VM_POD_SELECTOR = f"{APP_LABEL} in ({VIRT_LAUNCHER},{HOTPLUG_POD})"


@dataclass(frozen=True, slots=True)
class Kind:
    """A resource kind, by its `name` in manifests.

    The API server's JSON decodes to `shape`, and a snapshot keeps no other fields. `read` extracts the `fact`, or
    returns None for an object to ignore. Of a kind without a `fact`, only the tool reads the manifests. `query` holds
    the parameters of list and watch requests. `optional` marks a CRD, which may be missing. Without a `required` kind,
    the webhook isn't ready. Of a `metadata_only` kind, the API server sends nothing but the metadata.
    """

    name: str
    path: str
    shape: Any
    fact: Any = None
    read: Callable[[JsonObject], Fact | None] = lambda _item: None
    query: dict[str, str] = field(default_factory=dict)
    optional: bool = False
    required: bool = True
    metadata_only: bool = False

    @property
    def plural(self) -> str:
        """Return the resource's name in the API."""
        return self.path.rpartition("/")[2]

    @property
    def api_version(self) -> str:
        """Return the `apiVersion` of manifests, such as `v1` or `longhorn.io/v1beta2`."""
        root, *parts = self.path.split("/")[1:]
        return parts[0] if root == "api" else "/".join(parts[:2])

    @property
    def group(self) -> str:
        """Return the group of the API, empty for the core group."""
        return self.api_version.rpartition("/")[0]

    def path_in(self, namespace: str) -> str:
        """Return the path of a namespaced kind's objects in a namespace, of all if the namespace is empty."""
        folder = self.path.removesuffix(self.plural)
        return f"{folder}namespaces/{quote(namespace, safe='')}/{self.plural}" if namespace else self.path

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
            if kind_fields.size_of(raw) > kind_fields.LARGE:
                return kind_fields.decode_large(raw, self.shape)
            item: JsonObject = _decoder(self.shape).decode(raw)
        except (ValueError, RecursionError):
            return _untyped(raw)
        return item

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


def _untyped(raw: msgspec.Raw | bytes) -> JsonObject:
    """Decode an object without a schema."""
    try:
        item = msgspec.json.decode(raw)
    except (ValueError, RecursionError):
        raise Malformed("not valid JSON") from None
    return item if isinstance(item, dict) else {}


# Only the tool reads these.
LONGHORN_VERSION = "current-longhorn-version"
_INSTANCE_TYPE_API = "/apis/instancetype.kubevirt.io/v1beta1"
TOOL_KINDS = (
    Kind("KubeVirt", f"{KUBEVIRT_API}/kubevirts", kind_fields.KUBEVIRT),
    Kind(
        "Setting",
        "/apis/longhorn.io/v1beta2/settings",
        kind_fields.LONGHORN_SETTING,
        query={"fieldSelector": f"metadata.name={LONGHORN_VERSION}"},
    ),
    # Instance types, preferences, and the revisions of both.
    Kind(REVISION, "/apis/apps/v1/controllerrevisions", kind_fields.REVISION, query={"labelSelector": NAME_LABEL}),
    *(
        Kind(name, f"{_INSTANCE_TYPE_API}/{name.lower()}s", kind_fields.INSTANCE_TYPE)
        for name in sorted(KINDS - {REVISION})
    ),
)

# Only the release and the metrics of the fleet read VMs. So a missing right (an older ClusterRole) must not stop the
# decisions.
VIRTUAL_MACHINES = Kind(
    "VirtualMachine",
    f"{KUBEVIRT_API}/virtualmachines",
    kind_fields.VIRTUAL_MACHINE,
    facts.VirtualMachine,
    fact_readers.read_virtual_machine,
    optional=True,
    required=False,
)
# Namespace users control the labels of pods, but only KubeVirt creates a VMI's pod that the VMI owns.
VMIS = Kind(
    "VirtualMachineInstance",
    f"{KUBEVIRT_API}/virtualmachineinstances",
    kind_fields.VIRTUAL_MACHINE_INSTANCE,
    facts.VirtualMachineInstance,
    fact_readers.read_virtual_machine_instance,
    optional=True,
    metadata_only=True,
)
# Namespace selectors of affinity terms read the namespaces. Both kinds opt in VMs, if the setting says so. A missing
# right (an older ClusterRole) must not stop the decisions: VMs with the annotation are still placed.
NAMESPACES = Kind(
    "Namespace",
    "/api/v1/namespaces",
    kind_fields.NAMESPACE,
    facts.Namespace,
    fact_readers.read_namespace,
    required=False,
    metadata_only=True,
)
STORAGE_CLASSES = Kind(
    "StorageClass",
    f"{STORAGE_API}/storageclasses",
    kind_fields.STORAGE_CLASS,
    facts.StorageClass,
    fact_readers.read_storage_class,
    required=False,
    metadata_only=True,
)
# Without the right, which an older ClusterRole lacks, no claim counts as limited.
CSI_NODES = Kind(
    "CSINode",
    f"{STORAGE_API}/csinodes",
    kind_fields.CSI_NODE,
    facts.CSINode,
    fact_readers.read_csi_node,
    required=False,
)
CLAIMS = Kind(
    "PersistentVolumeClaim",
    "/api/v1/persistentvolumeclaims",
    kind_fields.CLAIM,
    facts.Claim,
    fact_readers.read_claim,
)
VOLUMES = Kind(
    "PersistentVolume", "/api/v1/persistentvolumes", kind_fields.VOLUME, facts.Volume, fact_readers.read_volume
)
NODES = Kind("Node", "/api/v1/nodes", kind_fields.NODE, facts.Node, fact_readers.read_node)
PODS = Kind(
    "Pod",
    "/api/v1/pods",
    kind_fields.POD,
    facts.Pod,
    fact_readers.read_pod,
    query={"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"},
)


def metadata_kinds(settings: Settings) -> tuple[Kind, ...]:
    """Return the kinds whose labels or annotations a decision needs: namespaces, and what opts in VMs."""
    return (NAMESPACES, STORAGE_CLASSES) if settings.opt_in is OptIn.NAMESPACE else (NAMESPACES,)


def kinds(longhorn: str) -> tuple[Kind, ...]:
    """Return the kinds that a decision needs; `longhorn` is Longhorn's namespace."""
    share_managers = Kind(
        "ShareManager",
        f"/apis/longhorn.io/v1beta2/namespaces/{longhorn}/sharemanagers",
        kind_fields.SHARE_MANAGER,
        facts.ShareManager,
        fact_readers.read_share_manager,
        optional=True,
    )
    return (CLAIMS, VOLUMES, share_managers, NODES, CSI_NODES, PODS, VMIS)


def all_kinds(longhorn: str) -> tuple[Kind, ...]:
    """Return all kinds that decisions and the report read."""
    return (*kinds(longhorn), NAMESPACES, STORAGE_CLASSES, VIRTUAL_MACHINES)
