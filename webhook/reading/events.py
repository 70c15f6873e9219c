"""The Warning Events of a namespace: what Kubernetes and KubeVirt say about a pod or a migration that fails."""

from webhook.catalog.kind import Kind
from webhook.cluster.client import ClusterClient
from webhook.placement.objects.typed import Metadata, Typed
from webhook.reading.api import list_raw


class InvolvedObject(Typed, frozen=True):
    """The object that an Event is about."""

    kind: str = ""
    name: str = ""


class Event(Typed, frozen=True):
    """An Event."""

    metadata: Metadata = Metadata()
    involved_object: InvolvedObject = InvolvedObject()
    reason: str = ""
    message: str = ""


EVENTS = Kind("v1", "Event", Event)


def list_warnings(cluster: ClusterClient, namespace: str) -> list[Event]:
    """List the Warning Events of a namespace, the oldest first. Raises ClusterError."""
    raws = list_raw(cluster, EVENTS.path_in(namespace), fieldSelector="type=Warning")
    found = (event for event, _ in EVENTS.read_all(raws, lambda *_: None))
    return sorted(found, key=lambda each: each.metadata.creation_timestamp or "")
