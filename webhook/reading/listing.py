"""Read a whole cluster once, in pages: all that the decisions and the report use. Never a request per object."""

from collections.abc import Callable
from datetime import UTC, datetime

from webhook.cluster.client import ClusterClient, ClusterError
from webhook.cluster.kind import Kind
from webhook.cluster.kinds import PODS, kinds
from webhook.cluster.machines import Inventory
from webhook.placement.objects.kubevirt import is_virt_launcher
from webhook.placement.settings import Settings
from webhook.reading.api import answered, list_objects
from webhook.reading.tool_kinds import TOOL_KINDS


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
            for kind in kinds(settings.longhorn_namespace, settings.opt_in):
                _read_kind(cluster, kind, inventory, show)
            # Only the tool uses these. Without the right to list one, or without its CRD, the inventory lacks it.
            for tool_kind in TOOL_KINDS:
                for item in list_objects(cluster, tool_kind.path, (403, 404), **tool_kind.query):
                    inventory.keep(tool_kind.name, item)
    finally:
        show("", 0)
    return inventory


def _read_kind(cluster: ClusterClient, kind: Kind, inventory: Inventory, show: Callable[[str, int], None]) -> None:
    def skip(name: str, error: str) -> None:
        inventory.malformed.append(f"{kind.name} {name}: {error}")  # skipped, as by the webhook

    number = 0
    try:
        for _, items in cluster.pages(kind.path, **kind.query):
            for item, fact in filter(None, (kind.read_one(raw, skip) for raw in items)):
                inventory.store.put(fact)
                if kind is not PODS or is_virt_launcher(item):
                    inventory.keep(kind.name, item)
            number += len(items)
            show(kind.plural, number)
    except ClusterError as error:
        if not kind.optional or error.code != 404:  # 404: the CRD is missing
            raise
