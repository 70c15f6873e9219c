"""Read a whole cluster once, in pages: all that the decisions and the report use. Never a request per object."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import msgspec

from webhook.cluster.caches.kinds import (
    NAMESPACES,
    PODS,
    TOOL_KINDS,
    VIRTUAL_MACHINES,
    VMIS,
    Kind,
    kinds,
    metadata_kinds,
)
from webhook.cluster.client import ClusterClient, ClusterError
from webhook.cluster.kind_fields import METADATA_LIST
from webhook.cluster.machines import Inventory
from webhook.placement.objects.fields import text
from webhook.placement.objects.kubevirt import is_virt_launcher
from webhook.placement.settings import Settings
from webhook.reading.api import answered, list_objects

NAMED_KINDS = {
    "vm": VIRTUAL_MACHINES,
    "vmi": VMIS,
    "pod": PODS,
    "namespace": NAMESPACES,
}  # by their names on the command line


def read_inventory(
    cluster: ClusterClient, settings: Settings, show: Callable[[str, int], None] = lambda _plural, _number: None
) -> Inventory:
    """Read the cluster. Raises BadInput if a request fails.

    Calls `show` after each page, with the kind's plural and the number of its objects so far, and at the end with "".
    """
    inventory = Inventory()
    inventory.store.taken_at = datetime.now(UTC)
    try:
        with answered():
            for kind in (*kinds(settings.longhorn_namespace), *metadata_kinds(settings), VIRTUAL_MACHINES):
                _read_kind(cluster, kind, inventory, show)
            # Only the tool uses these. Without the right to list one, or without its CRD, the inventory lacks it.
            for tool_kind in TOOL_KINDS:
                for item in list_objects(cluster, tool_kind.path, (403, 404), **tool_kind.query):
                    inventory.keep(tool_kind.name, item)
    finally:
        show("", 0)
    return inventory


def _read_kind(cluster: ClusterClient, kind: Kind, inventory: Inventory, show: Callable[[str, int], None]) -> None:
    number = 0
    try:
        for _, items in cluster.pages(kind.path, **kind.query):
            _store(inventory, kind, items)
            number += len(items)
            show(kind.plural, number)
    except ClusterError as error:
        if not kind.optional or error.code != 404:  # 404: the CRD is missing
            raise


def _store(inventory: Inventory, kind: Kind, items: Iterable[msgspec.Raw]) -> None:
    def skip(_name: str, _error: str) -> None:
        inventory.skipped[kind.plural] += 1  # like the webhook, which skips an object that it can't read

    for raw in items:
        if found := kind.read_one(raw, skip):
            item, fact = found
            inventory.store.put(fact)
            if kind is not PODS or is_virt_launcher(item):
                inventory.keep(kind.name, item)


def list_names(cluster: ClusterClient, kind: str, namespace: str) -> list[str]:
    """List the names of the objects of a namespace, empty for all namespaces. Empty if the request fails."""
    path = NAMED_KINDS[kind].path_in(namespace)
    try:
        return sorted({text(each, "metadata", "name") for each in list_objects(cluster, path, accept=METADATA_LIST)})
    except ClusterError:
        return []
