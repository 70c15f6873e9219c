"""Load a snapshot: read files that `kubevirt-scheduler snapshot` or `kubectl get -o yaml` wrote."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from webhook.catalog.inventory import Inventory
from webhook.catalog.kind import Kind, MalformedObject, identity, key_of
from webhook.catalog.kinds import PODS, VIRTUAL_MACHINES, VMIS, kinds, tool_kinds
from webhook.catalog.storage_kinds import CLAIMS
from webhook.catalog.store import parse_time
from webhook.placement.objects.fields import JsonObject, mapping, mappings, printable, text
from webhook.placement.objects.longhorn import is_share_manager
from webhook.reading.documents import BadInput, Document, read_all

COMMAND = "kubevirt-scheduler snapshot"
# The object by which a snapshot describes itself: its time, its cluster, and the webhook there.
DESCRIPTION = ("kubevirt-scheduler/v1", "Snapshot")
_WITH_SECRETS = frozenset({PODS.name, VIRTUAL_MACHINES.name, VMIS.name})
_CLOUD_INIT = ("cloudInitNoCloud", "cloudInitConfigDrive")


def read(paths: Sequence[Path]) -> tuple[Inventory, JsonObject]:
    """Read files and folders; a later object replaces an earlier one of the same name. Raises BadInput.

    Also returns the object by which a snapshot describes itself, empty without one.
    """
    inventory = Inventory()
    description = JsonObject()
    found = 0
    known = {kind.name: kind for kind in kinds("")}  # files may be of any namespace of Longhorn's
    by_name = {(kind.group, kind.name): kind for kind in (*known.values(), *tool_kinds(""))}
    for document in read_all(paths):
        for version_and_kind, item in document.objects():
            if version_and_kind == DESCRIPTION:  # a snapshot begins with it
                description = item
                inventory.store.taken_at = parse_time(text(item, "metadata", "creationTimestamp"))
            api_version, name = version_and_kind
            if kind := by_name.get((api_version.rpartition("/")[0], name)):
                found += name in known
                if name in _WITH_SECRETS and _holds_secrets(name, item):
                    inventory.with_secrets.append("/".join(key_of(item)))
                _put(inventory, document, kind, item)
    if not found:
        where = printable(", ".join(map(str, paths)))
        raise BadInput(f"{where}: no object that decisions read; to write a snapshot: {COMMAND}")
    return inventory, description


def add(inventory: Inventory, document: Document, namespace: str) -> None:
    """Add the objects of a manifest, except the Pods without a node, which are decided on.

    Objects that the cluster has stay, because a manifest lacks their status, but for VMs and kinds without facts.
    Objects that name no namespace get `namespace`. The claims of DataVolumes count, too.
    """
    for version_and_kind, item in document.objects():
        found = [(kind, item) for kind in (*kinds(""), *tool_kinds("")) if kind.is_of(*version_and_kind)][:1]
        found += [(CLAIMS, claim) for claim in _claims_to_create(version_and_kind[1], item)]
        for kind, each in found:
            own = {"namespace": text(item, "metadata", "namespace") or namespace or "default"}
            added = each | {"metadata": mapping(each, "metadata") | ({} if "Cluster" in kind.name else own)}
            if kind is VIRTUAL_MACHINES:
                status = mapping(inventory.vms.get(key_of(added)), "status")
                _put(inventory, document, kind, {"status": status} | added)
            elif kind is not PODS or text(each, "spec", "nodeName"):
                _put(inventory, document, kind, added, replace=kind.fact is None)


def _claims_to_create(kind: str, item: JsonObject) -> Iterator[JsonObject]:
    """Yield the claims that CDI creates for a DataVolume, or for a VM. Each has the name of its DataVolume."""
    for volume in [item] if kind == "DataVolume" else mappings(item, "spec", "dataVolumeTemplates"):
        spec = mapping(volume, "spec", "pvc") or mapping(volume, "spec", "storage")
        if "accessModes" in spec:  # otherwise CDI chooses them by its StorageProfile
            yield {"metadata": mapping(volume, "metadata"), "spec": spec}


def _put(inventory: Inventory, document: Document, kind: Kind, item: JsonObject, *, replace: bool = True) -> None:
    try:
        converted = kind.convert(item)
        fact = kind.extract(converted)
    except MalformedObject as error:
        name, problem = error.args
        inventory.malformed.append(str(document.error(f"{kind.name} {name}".rstrip() + f": {problem}")))
        if replace and kind.fact is not None:  # like a watch event, it ends what was known of the object
            namespace, name, _ = identity(item)
            for key in ((namespace, name), (namespace or "default", name)):
                inventory.store.apply(kind.fact, key, None)
    else:
        if not replace and fact is not None and inventory.store.table(kind.fact).find(*fact.key):
            return
        inventory.keep(kind.name, converted)
        if fact is not None:
            inventory.store.put(fact)


def _holds_secrets(kind: str, item: JsonObject) -> bool:
    """Return whether a manifest has what a snapshot lacks: the environment of a share-manager, or cloud-init data."""
    if kind == PODS.name:  # Longhorn stores the passphrase of an encrypted volume there
        serves = is_share_manager(mapping(item, "metadata", "labels"))
        return serves and any(container.get("env") for container in mappings(item, "spec", "containers"))
    spec = mapping(item, "spec", "template", "spec") or mapping(item, "spec")
    sources = (mapping(volume, name) for volume in mappings(spec, "volumes") for name in _CLOUD_INIT)
    return any(source.keys() & {"userData", "userDataBase64"} for source in sources)
