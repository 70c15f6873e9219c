"""Read a whole cluster once, in pages: all that the decisions and the report use. Never a request per object."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import msgspec

from webhook.cluster.caches.kinds import (
    INSTANCE_TYPES,
    KUBEVIRTS,
    LONGHORN_SETTINGS,
    VIRTUAL_MACHINES,
    VMIS,
    Kind,
    kinds,
    metadata_kinds,
)
from webhook.cluster.client import ClusterClient, ClusterError
from webhook.cluster.machines import Inventory
from webhook.fleet.instance_type import has_instance_type
from webhook.placement.objects.fields import JsonObject
from webhook.placement.settings import Settings
from webhook.reading.api import answered, list_objects


def read_inventory(
    cluster: ClusterClient,
    settings: Settings,
    report_progress: Callable[[str, int], None] = lambda _kind, _objects: None,
) -> Inventory:
    """Read the cluster. Calls `report_progress` with the kind and the number of objects after each page.

    Raises BadInput if a request fails.
    """
    inventory = Inventory()
    inventory.store.taken_at = datetime.now(UTC)
    with answered():
        for kind in (*kinds(settings.longhorn_namespace), *metadata_kinds(settings), VIRTUAL_MACHINES):
            for items in _pages(cluster, kind.path, kind.query, optional=kind.optional):
                _store(inventory, kind, items)
                report_progress(kind.plural, len(items))
        read_extras(cluster, inventory)
    return inventory


def read_extras(cluster: ClusterClient, inventory: Inventory, namespace: str = "") -> None:
    """Read what only the tool uses: KubeVirt's configuration, Longhorn's version, and instance types.

    Without the right to list one of them, or without its CRD, the inventory lacks it. Raises ClusterError.
    """
    wanted = [KUBEVIRTS, *([] if namespace else [LONGHORN_SETTINGS])]
    if any(map(has_instance_type, inventory.vms.values())):
        wanted += INSTANCE_TYPES
    for kind in wanted:
        path = kind.path if kind is KUBEVIRTS or "Cluster" in kind.name else kind.path_in(namespace)
        for item in list_objects(cluster, path, (403, 404), **kind.query):
            inventory.keep(kind.name, item)


def _pages(cluster: ClusterClient, path: str, query: dict[str, str], *, optional: bool) -> Iterable[list[msgspec.Raw]]:
    try:
        for _, items in cluster.pages(path, **query):
            yield items
    except ClusterError as error:
        if not optional or error.code != 404:  # 404: the CRD is missing
            raise


def _store(inventory: Inventory, kind: Kind, items: Iterable[msgspec.Raw]) -> None:
    def skip(_name: str, _error: str) -> None:
        inventory.skipped[kind.plural] += 1  # like the webhook, which skips an object that it can't read

    for raw in items:
        if found := kind.read_one(raw, skip):
            item, fact = found
            inventory.store.put(fact)
            if kind in (VIRTUAL_MACHINES, VMIS):  # the next pod of a VM is rendered from all its fields
                item = msgspec.json.decode(raw, type=JsonObject)
            inventory.keep(kind.name, item)
