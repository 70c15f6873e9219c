"""Read a live cluster once, and return its objects with only the fields that a snapshot keeps."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import msgspec

from webhook import __version__
from webhook.cluster.caches.kinds import TOOL_KINDS, Kind, all_kinds
from webhook.cluster.client import ClusterClient, ClusterError
from webhook.fleet.webhook import Webhook
from webhook.placement.objects.fields import JsonObject
from webhook.reading.api import describe_failure, list_raw
from webhook.reading.documents import BadInput
from webhook.reading.kept_fields import reduced
from webhook.reading.snapshot import DESCRIPTION

# The resource version of a list's next page has expired: the API server keeps it for 5 to 10 minutes.
_EXPIRED = 410
# By the group of their CRDs.
PRODUCTS = {"longhorn.io": "Longhorn", "kubevirt.io": "KubeVirt", "instancetype.kubevirt.io": "KubeVirt"}


@dataclass(frozen=True, slots=True)
class Omission:
    """A resource kind that the snapshot lacks, and why. `denied` means that the user may not list it."""

    plural: str
    cause: str
    denied: bool


def description(cluster: ClusterClient, webhook: Webhook, time: str) -> JsonObject:
    """Return the object by which a snapshot describes itself. `time` is in RFC 3339."""
    api_version, kind = DESCRIPTION
    metadata = {"name": cluster.name or "cluster", "creationTimestamp": time}
    about = {"cluster": cluster.name, "version": __version__, "webhook": webhook.as_json()}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata} | about


def export(
    cluster: ClusterClient, longhorn: str, opt_in: Collection[str], omit: Callable[[Omission], None]
) -> Iterator[JsonObject]:
    """Yield the cluster's objects, reduced to the kept fields.

    Calls `omit` for each kind that the API server doesn't have or that the user may not list. Raises BadInput if the
    API server can't be reached.
    """
    for kind in (*all_kinds(longhorn), *TOOL_KINDS):
        product = PRODUCTS.get(kind.group, "")
        try:
            items = _list(cluster, kind)
        except ClusterError as error:
            if error.code != 403 and not (error.code == 404 and product):
                raise BadInput(f"{kind.plural}: {describe_failure(error)}") from None
            denied = error.code == 403
            omit(Omission(kind.plural, str(error) if denied else f"{product} is not installed", denied))
            continue
        yield from (reduced(kind, item, opt_in) for item in items)


def _list(cluster: ClusterClient, kind: Kind) -> list[msgspec.Raw]:
    try:
        return list_raw(cluster, kind.path, **kind.query)
    except ClusterError as error:
        if error.code != _EXPIRED:
            raise
    return list_raw(cluster, kind.path, **kind.query)
