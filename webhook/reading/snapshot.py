"""Load a snapshot: read files that `kubevirt-scheduler snapshot` or `kubectl get -o yaml` wrote."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from webhook.cluster.caches.kinds import TOOL_KINDS, Kind, all_kinds
from webhook.cluster.caches.store import parse_time
from webhook.cluster.machines import Inventory
from webhook.placement.objects.fields import JsonObject, mapping, mappings, printable, text
from webhook.placement.objects.longhorn import COMPONENT_LABEL, SHARE_MANAGER
from webhook.reading.documents import BadInput, Document, read_all

COMMAND = "kubevirt-scheduler snapshot"
# The object by which a snapshot describes itself: its time, its cluster, and the webhook there.
DESCRIPTION = ("kubevirt-scheduler/v1", "Snapshot")
SHARE_MANAGER_ENVIRONMENT = (
    "the environment of share-manager pods, where Longhorn stores the passphrases of encrypted volumes"
)
CLOUD_INIT = "the cloud-init data of VMs, which may include passwords"
_CLOUD_INIT_SOURCES = ("cloudInitNoCloud", "cloudInitConfigDrive")


@dataclass(slots=True)
class Loaded:
    """The objects of files. The inventory lacks malformed objects; `malformed` has a line for each.

    `description` is the object by which a snapshot describes itself, empty without one. `secrets` says what may hold
    secrets: `kubectl get` prints it, and a snapshot doesn't have it.
    """

    inventory: Inventory
    malformed: list[str] = field(default_factory=list)
    description: JsonObject = field(default_factory=dict)
    secrets: set[str] = field(default_factory=set)


def read(paths: Sequence[Path]) -> Loaded:
    """Read files and folders; a later object replaces an earlier one of the same name. Raises BadInput."""
    loaded, found = Loaded(Inventory()), 0
    kinds = all_kinds("")  # files may be of any namespace of Longhorn's
    for document in read_all(paths):
        for version_and_kind, item in document.objects():
            if version_and_kind == DESCRIPTION:  # a snapshot begins with it
                loaded.description = item
                loaded.inventory.store.taken_at = parse_time(text(item, "metadata", "creationTimestamp"))
            for kind in (each for each in (*kinds, *TOOL_KINDS) if each.is_of(*version_and_kind)):
                found += kind in kinds
                _put(loaded, document, kind, item)
    if not found:
        where = printable(", ".join(map(str, paths)))
        raise BadInput(f"{where}: no object that decisions read; to write a snapshot: {COMMAND}")
    return loaded


def _put(loaded: Loaded, document: Document, kind: Kind, item: JsonObject) -> None:
    def skip(name: str, error: str) -> None:
        where = "/".join(filter(None, (text(item, "metadata", "namespace"), name)))
        loaded.malformed.append(str(document.error(f"{kind.name} {where}".rstrip() + f": {error}")))

    loaded.inventory.keep(kind.name, item)
    loaded.secrets |= _secrets_of(kind.name, item)
    if (fact := kind.extract(item, skip)) is not None:
        loaded.inventory.store.put(fact)


def _secrets_of(kind: str, item: JsonObject) -> set[str]:
    if kind == "Pod":
        is_share_manager = mapping(item, "metadata", "labels").get(COMPONENT_LABEL) == SHARE_MANAGER
        has_environment = any(container.get("env") for container in mappings(item, "spec", "containers"))
        return {SHARE_MANAGER_ENVIRONMENT} if is_share_manager and has_environment else set()
    spec = mapping(item, "spec", "template", "spec") if kind == "VirtualMachine" else mapping(item, "spec")
    sources = (mapping(volume, each) for volume in mappings(spec, "volumes") for each in _CLOUD_INIT_SOURCES)
    has_data = any(key in source for source in sources for key in ("userData", "userDataBase64"))
    return {CLOUD_INIT} if has_data else set()
