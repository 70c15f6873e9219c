"""Read a live cluster once, and return its objects with only the fields that a snapshot keeps."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

import msgspec

from webhook import __version__
from webhook.cluster.client import ClusterClient, ClusterError
from webhook.cluster.kinds import VIRTUAL_MACHINES, VMIS, kinds
from webhook.fleet.webhook import Webhook
from webhook.placement.objects.fields import JsonObject
from webhook.reading.api import describe_failure, list_raw
from webhook.reading.documents import BadInput
from webhook.reading.kept_fields import kept_fields
from webhook.reading.snapshot import DESCRIPTION

# The resource version of a list's next page has expired: the API server keeps it for 5 to 10 minutes.
_EXPIRED = 410


@dataclass(frozen=True, slots=True)
class Source:
    """A resource kind that a snapshot holds, and where the API server lists it. `product` installs an optional one."""

    api_version: str
    kind: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    product: str = ""

    @property
    def plural(self) -> str:
        """Return the resource's name in the API."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Omission:
    """A resource kind that the snapshot lacks, and why. `denied` means that the user may not list it."""

    plural: str
    cause: str
    denied: bool


def sources(longhorn: str) -> Iterator[Source]:
    """Yield the kinds of a snapshot: those that decisions read, then those that only the report reads."""
    for kind in kinds(longhorn):
        if kind is not VMIS:
            version, name = _API_OBJECTS[kind.plural]
            yield Source(version, name, kind.path, kind.query, "Longhorn" if kind.optional else "")
    yield Source("v1", "Namespace", "/api/v1/namespaces")
    yield Source("storage.k8s.io/v1", "StorageClass", "/apis/storage.k8s.io/v1/storageclasses")
    for kind in (VIRTUAL_MACHINES, VMIS):
        yield Source("kubevirt.io/v1", kind.fact.__name__, kind.path, product="KubeVirt")


_API_OBJECTS = {
    "persistentvolumeclaims": ("v1", "PersistentVolumeClaim"),
    "persistentvolumes": ("v1", "PersistentVolume"),
    "sharemanagers": ("longhorn.io/v1beta2", "ShareManager"),
    "nodes": ("v1", "Node"),
    "csinodes": ("storage.k8s.io/v1", "CSINode"),
    "pods": ("v1", "Pod"),
}


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
    kept = kept_fields(opt_in)
    for source in sources(longhorn):
        try:
            items = _list(cluster, source)
        except ClusterError as error:
            if error.code != 403 and not (error.code == 404 and source.product):
                raise BadInput(f"{source.plural}: {describe_failure(error)}") from None
            denied = error.code == 403
            omit(Omission(source.plural, str(error) if denied else f"{source.product} is not installed", denied))
            continue
        for item in items:
            # The API server omits both from the items of a list.
            yield {"apiVersion": source.api_version, "kind": source.kind} | kept[source.kind](msgspec.json.decode(item))


def _list(cluster: ClusterClient, source: Source) -> list[msgspec.Raw]:
    try:
        return list_raw(cluster, source.path, **source.query)
    except ClusterError as error:
        if error.code != _EXPIRED:
            raise
    return list_raw(cluster, source.path, **source.query)
