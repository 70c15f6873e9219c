"""Read objects of the API server as dicts, for the commands. A missing right is an exception of its own."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from webhook.cluster.client import ClusterClient
from webhook.cluster.credentials import ClusterError
from webhook.placement.objects.fields import JsonObject
from webhook.reading.documents import BadInput

REQUEST_TIMEOUT = 15.0  # seconds
UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 401, 403, 404
REMEDIES = {
    UNAUTHORIZED: "; renew the token or the client certificate of the kubeconfig's user, for example by a new login",
    FORBIDDEN: "; docs/reference/rights.md lists the rights of each command",
}


class Denied(BadInput):
    """The user lacks the right for a request."""


@contextmanager
def answered() -> Iterator[None]:
    """Raise Denied instead of a ClusterError for a missing right, and BadInput for any other failed request."""
    try:
        yield
    except ClusterError as error:
        raise (Denied if error.code == FORBIDDEN else BadInput)(describe_failure(error)) from None


def describe_failure(error: ClusterError) -> str:
    """Return the message for a failed request: no usable response, or the API server's error."""
    problem = f"the API server responded with {error.code}" if error.code else "cannot reach the API server"
    return f"{problem}: {error}{REMEDIES.get(error.code, '')}"


def list_raw(cluster: ClusterClient, path: str, **query: str) -> list[msgspec.Raw]:
    """List objects, all pages, without decoding them. Raises ClusterError."""
    return [item for _, page in cluster.pages(path, **query) for item in page]


def list_objects(cluster: ClusterClient, path: str, **query: str) -> Iterator[JsonObject]:
    """List objects like `list_raw`, without nulls. Raises ClusterError from the call."""
    found = map(msgspec.json.decode, list_raw(cluster, path, **query))
    return (item for item in found if isinstance(item, dict))


def read_object(cluster: ClusterClient, path: str) -> JsonObject | None:
    """Read one object; None if it or its kind doesn't exist. Raises Denied, or BadInput like `answered`."""
    with answered():
        return cluster.get(path, REQUEST_TIMEOUT)


def read_list(cluster: ClusterClient, path: str, **query: str) -> list[JsonObject]:
    """List objects; none if their kind doesn't exist. Raises Denied, or BadInput like `answered`."""
    with answered():
        try:
            return list(list_objects(cluster, path, **query))
        except ClusterError as error:
            if error.code != NOT_FOUND:
                raise
    return []
