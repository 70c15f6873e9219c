"""Read a whole cluster once, in pages: all that the decisions and the report use. Never a request per object."""

from collections.abc import Callable
from datetime import UTC, datetime

from webhook.catalog.inventory import Inventory
from webhook.catalog.kind import Kind
from webhook.catalog.kinds import PODS, kinds, tool_kinds
from webhook.cluster.client import ClusterClient
from webhook.cluster.credentials import ClusterError
from webhook.placement.objects.facts import LonghornVolume, Replica
from webhook.placement.objects.kubevirt import APP_LABEL, VIRT_LAUNCHER
from webhook.placement.objects.longhorn import is_share_manager
from webhook.placement.objects.pod import mounted_claims
from webhook.placement.objects.pod_object import PodObject
from webhook.placement.settings import Settings
from webhook.reading.api import answered


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
            for kind in (*kinds(settings.longhorn_namespace), *tool_kinds(settings.longhorn_namespace)):
                _read_kind(cluster, kind, inventory, show)
    finally:
        show("", 0)
    return inventory


def _read_kind(cluster: ClusterClient, kind: Kind, inventory: Inventory, show: Callable[[str, int], None]) -> None:
    def skip(name: str, error: str) -> None:
        inventory.malformed.append(f"{kind.name} {name}".rstrip() + f": {error}")  # skipped, as by the webhook

    number = 0
    try:
        for _, items in cluster.pages(kind.path, **kind.query):
            for item, fact in kind.read_all(items, skip):
                if fact is not None:
                    inventory.store.put(fact)
                if kind is not PODS or _is_kept(item):
                    inventory.keep(kind.name, item)
            number += len(items)
            show(kind.plural, number)
    except ClusterError as error:
        # Without the right to list a kind that no decision needs, or without its CRD, the inventory lacks it.
        is_extra = kind.fact in (None, LonghornVolume, Replica)
        is_missing = error.code == 404 and (is_extra or kind.optional)
        if not is_missing and not (error.code == 403 and is_extra):
            raise


def _is_kept(pod: PodObject) -> bool:
    """Return whether the tool reads a pod's manifest: KubeVirt or Longhorn created it, or it may be hurt by a drain.

    kubectl evicts no pod without a controller, and Longhorn may delete one that mounts a claim.
    """
    if not pod.metadata.controller.kind or mounted_claims(pod.spec.volumes):
        return True
    labels = pod.metadata.labels
    return labels.get(APP_LABEL) == VIRT_LAUNCHER or is_share_manager(labels)
