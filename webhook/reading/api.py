"""Read objects of the API server as dicts, for the commands."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from webhook.cluster.client import LIST_TIMEOUT, ClusterClient, ClusterError
from webhook.placement.objects.fields import JsonObject
from webhook.reading.documents import BadInput


@contextmanager
def answered(*tolerated: int) -> Iterator[None]:
    """Raise BadInput instead of a ClusterError, except for the statuses that the caller tolerates."""
    try:
        yield
    except ClusterError as error:
        if error.code in tolerated:
            raise
        raise BadInput(describe_failure(error)) from None


def describe_failure(error: ClusterError) -> str:
    """Return the message for a failed request: no usable response, or the API server's error."""
    problem = f"the API server responded with {error.code}" if error.code else "cannot reach the API server"
    return f"{problem}: {error}"


def read_object(cluster: ClusterClient, path: str, timeout: float = LIST_TIMEOUT) -> JsonObject | None:
    """Read one object; None if it or its kind doesn't exist. Raises ClusterError."""
    body = cluster.get(path, timeout)
    return None if body is None else msgspec.json.decode(body, type=JsonObject)


def list_raw(cluster: ClusterClient, path: str, **query: str) -> list[msgspec.Raw]:
    """List objects, all pages, without decoding them. Raises ClusterError."""
    return [item for _, page in cluster.pages(path, **query) for item in page]


def list_objects(cluster: ClusterClient, path: str, **query: str) -> Iterator[JsonObject]:
    """List objects, all pages. Raises ClusterError from the call, not from the iterator."""
    return (msgspec.json.decode(item, type=JsonObject) for item in list_raw(cluster, path, **query))
