"""Load a snapshot: fill a store from files that `kubevirt-scheduler snapshot` or `kubectl get -o yaml` wrote."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from webhook.cluster import objects
from webhook.cluster.objects import Fact
from webhook.cluster.store import Store
from webhook.placement.objects.fields import JsonObject, Malformed, mapping, mappings, printable, text
from webhook.placement.objects.longhorn import COMPONENT_LABEL, SHARE_MANAGER
from webhook.reading.documents import BadInput, Document, Kind, read_all

COMMAND = "kubevirt-scheduler snapshot"
# The object by which a snapshot describes itself: its time, its cluster, and the webhook there.
SNAPSHOT = "Snapshot"
DESCRIPTION = ("kubevirt-scheduler/v1", SNAPSHOT)

Reader = Callable[[JsonObject], Fact | None]
Keep = Callable[[str, JsonObject], None]

_READERS: dict[Kind, Reader] = {
    ("v1", "PersistentVolumeClaim"): objects.read_claim,
    ("v1", "PersistentVolume"): objects.read_volume,
    ("v1", "Node"): objects.read_node,
    ("storage.k8s.io/v1", "CSINode"): objects.read_csi_node,
    ("v1", "Pod"): objects.read_pod,
    ("v1", "Namespace"): objects.read_namespace,
    ("storage.k8s.io/v1", "StorageClass"): objects.read_storage_class,
}


SHARE_MANAGER_ENVIRONMENT = (
    "the environment of share-manager pods, where Longhorn stores the passphrases of encrypted volumes"
)
CLOUD_INIT = "the cloud-init data of VMs, which may include passwords"
_CLOUD_INIT_SOURCES = ("cloudInitNoCloud", "cloudInitConfigDrive")


def keep_nothing(_kind: str, _item: JsonObject) -> None:
    """Ignore an object."""


def load(paths: Sequence[Path]) -> Store:
    """Fill a store from files and folders; a later object replaces an earlier one of the same name. Raises BadInput."""
    return read(paths)[0]


def read(paths: Sequence[Path], keep: Keep = keep_nothing) -> tuple[Store, Counter[str]]:
    """Fill a store like `load`, and count the skipped objects by kind. Raises BadInput.

    `keep` is called with the kind and the manifest of each pod, of each object of KubeVirt, and of the object that
    describes the snapshot.
    """
    store, skipped, loaded = Store(), Counter[str](), 0
    for document in read_all(paths):
        for kind, item in document.objects():
            if kind in (("v1", "Pod"), DESCRIPTION) or kind[0].startswith("kubevirt.io/"):
                keep(kind[1], item)
            reader = _reader(kind)
            if reader is None:
                skipped[kind[1]] += kind != DESCRIPTION  # which `keep` has read
                continue
            loaded += 1
            fact = _fact(document, kind, item, reader)
            if fact is not None:
                store.put(fact)
    if not loaded:
        where = printable(", ".join(map(str, paths)))
        raise BadInput(f"{where}: no object that decisions read; to write a snapshot: {COMMAND}")
    return store, skipped


def secrets_of(kind: str, item: JsonObject) -> str:
    """Return what may hold secrets in an object that `kubectl get` printed. Empty for an object of a snapshot."""
    if kind == "Pod":
        is_share_manager = mapping(item, "metadata", "labels").get(COMPONENT_LABEL) == SHARE_MANAGER
        has_environment = any(container.get("env") for container in mappings(item, "spec", "containers"))
        return SHARE_MANAGER_ENVIRONMENT if is_share_manager and has_environment else ""
    spec = mapping(item, "spec", "template", "spec") if kind == "VirtualMachine" else mapping(item, "spec")
    sources = (mapping(volume, each) for volume in mappings(spec, "volumes") for each in _CLOUD_INIT_SOURCES)
    return CLOUD_INIT if any(key in source for source in sources for key in ("userData", "userDataBase64")) else ""


def _reader(kind: Kind) -> Reader | None:
    if kind[1] == "ShareManager" and kind[0].startswith("longhorn.io/"):
        return objects.read_share_manager
    if kind[1] == "VirtualMachine" and kind[0].startswith("kubevirt.io/"):
        return objects.read_virtual_machine
    if kind[1] == "VirtualMachineInstance" and kind[0].startswith("kubevirt.io/"):
        return objects.read_virtual_machine_instance
    return _READERS.get(kind)


def _fact(document: Document, kind: Kind, item: JsonObject, reader: Reader) -> Fact | None:
    name, namespace = text(item, "metadata", "name"), text(item, "metadata", "namespace")
    if not name:
        raise document.error(f"{kind[1]}: metadata.name is required")
    try:
        return reader(item)
    except (Malformed, TypeError) as error:
        what = error if isinstance(error, Malformed) else "a field has an unexpected type"
        raise document.error(f"{kind[1]} {namespace}{'/' if namespace else ''}{name}: {what}") from None
