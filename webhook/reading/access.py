"""Read objects of the API server, with a missing right as an exception of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from webhook.cluster.client import ClusterClient, ClusterError
from webhook.placement.objects.fields import JsonObject
from webhook.reading.api import answered, list_raw, read_object

REQUEST_TIMEOUT = 15.0  # seconds
_FORBIDDEN, _NOT_FOUND = 403, 404


class Denied(Exception):
    """The user lacks the right for a request. The message is the API server's."""


@contextmanager
def allowed() -> Iterator[None]:
    """Raise Denied instead of a ClusterError for a missing right, and BadInput for any other failure."""
    try:
        with answered(_FORBIDDEN):
            yield
    except ClusterError as error:
        raise Denied(str(error)) from None


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads objects as dicts. Each method raises Denied, or BadInput if the API server can't be reached."""

    cluster: ClusterClient

    def get(self, path: str) -> JsonObject | None:
        """Read one object; None if it or its kind doesn't exist."""
        with allowed():
            return read_object(self.cluster, path, REQUEST_TIMEOUT)

    def items(self, path: str, **query: str) -> list[JsonObject]:
        """List objects; none if their kind doesn't exist."""
        return [msgspec.json.decode(raw, type=JsonObject) for raw in self.raw_items(path, query)]

    def raw_items(self, path: str, query: dict[str, str]) -> list[msgspec.Raw]:
        """List objects without decoding them; none if their kind doesn't exist."""
        with allowed():
            try:
                return list_raw(self.cluster, path, **query)
            except ClusterError as error:
                if error.code != _NOT_FOUND:
                    raise
        return []
