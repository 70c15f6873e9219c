"""Load a snapshot: fill a store from files that `kubevirt-scheduler snapshot` or `kubectl get -o yaml` wrote."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from webhook.cluster.caches.kinds import KUBEVIRTS, LONGHORN_SETTINGS, Kind, all_kinds
from webhook.cluster.caches.store import Store, parse_time
from webhook.fleet.instance_type import KINDS as INSTANCE_TYPE_KINDS
from webhook.placement.objects.fields import JsonObject, mapping, mappings, printable, text
from webhook.placement.objects.longhorn import COMPONENT_LABEL, SHARE_MANAGER
from webhook.reading.documents import BadInput, Document, read_all

COMMAND = "kubevirt-scheduler snapshot"
# The object by which a snapshot describes itself: its time, its cluster, and the webhook there.
SNAPSHOT = "Snapshot"
DESCRIPTION = ("kubevirt-scheduler/v1", SNAPSHOT)
_ONLY_THE_TOOLS = INSTANCE_TYPE_KINDS | {KUBEVIRTS.name, LONGHORN_SETTINGS.name}
_KEPT = (("v1", "Pod"), ("v1", "Node"), DESCRIPTION)

Keep = Callable[[str, JsonObject], None]

_KINDS = all_kinds("")  # files may be of any namespace of Longhorn's


@dataclass(frozen=True, slots=True)
class Loaded:
    """A store, and a line for each malformed object, which it lacks."""

    store: Store
    malformed: list[str]


SHARE_MANAGER_ENVIRONMENT = (
    "the environment of share-manager pods, where Longhorn stores the passphrases of encrypted volumes"
)
CLOUD_INIT = "the cloud-init data of VMs, which may include passwords"
_CLOUD_INIT_SOURCES = ("cloudInitNoCloud", "cloudInitConfigDrive")


def keep_nothing(_kind: str, _item: JsonObject) -> None:
    """Ignore an object."""


def load(paths: Sequence[Path]) -> Store:
    """Fill a store from files and folders; a later object replaces an earlier one of the same name. Raises BadInput."""
    return read(paths).store


def read(paths: Sequence[Path], keep: Keep = keep_nothing) -> Loaded:
    """Fill a store like `load`. Skips malformed objects, like the webhook. Raises BadInput.

    `keep` is called with the kind and the manifest of each pod, of each object of KubeVirt, and of the object that
    describes the snapshot.
    """
    loaded, found = Loaded(Store(), []), 0
    for document in read_all(paths):
        for version_and_kind, item in document.objects():
            of_kubevirt = version_and_kind[0].startswith("kubevirt.io/")
            if of_kubevirt or version_and_kind in _KEPT or version_and_kind[1] in _ONLY_THE_TOOLS:
                keep(version_and_kind[1], item)
            if version_and_kind == DESCRIPTION:  # a snapshot begins with it
                loaded.store.taken_at = parse_time(text(item, "metadata", "creationTimestamp"))
            kind = next((each for each in _KINDS if each.is_of(*version_and_kind)), None)
            if kind:
                found += 1
                _put(loaded, document, kind, item)
    if not found:
        where = printable(", ".join(map(str, paths)))
        raise BadInput(f"{where}: no object that decisions read; to write a snapshot: {COMMAND}")
    return loaded


def _put(loaded: Loaded, document: Document, kind: Kind, item: JsonObject) -> None:
    def skip(name: str, error: str) -> None:
        where = "/".join(filter(None, (text(item, "metadata", "namespace"), name)))
        loaded.malformed.append(str(document.error(f"{kind.name} {where}".rstrip() + f": {error}")))

    if (fact := kind.extract(item, skip)) is not None:
        loaded.store.put(fact)


def secrets_of(kind: str, item: JsonObject) -> str:
    """Return what may hold secrets in an object that `kubectl get` printed. Empty for an object of a snapshot."""
    if kind == "Pod":
        is_share_manager = mapping(item, "metadata", "labels").get(COMPONENT_LABEL) == SHARE_MANAGER
        has_environment = any(container.get("env") for container in mappings(item, "spec", "containers"))
        return SHARE_MANAGER_ENVIRONMENT if is_share_manager and has_environment else ""
    spec = mapping(item, "spec", "template", "spec") if kind == "VirtualMachine" else mapping(item, "spec")
    sources = (mapping(volume, each) for volume in mappings(spec, "volumes") for each in _CLOUD_INIT_SOURCES)
    return CLOUD_INIT if any(key in source for source in sources for key in ("userData", "userDataBase64")) else ""
