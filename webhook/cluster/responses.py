"""The API server's responses: the pages of a list, the events of a watch, and errors."""

from collections.abc import Iterable, Iterator

import msgspec

# The API server stores no object over 3 MiB, so a line over this limit isn't a watch event.
MAX_LINE_BYTES = 16 * 1024 * 1024  # bytes


class ListMetadata(msgspec.Struct, frozen=True):
    """The metadata of one page. `more` is the token for the next page, empty on the last one."""

    version: str = msgspec.field(name="resourceVersion", default="")
    more: str = msgspec.field(name="continue", default="")


class Page(msgspec.Struct, frozen=True):
    """One page of a list. Each object is decoded separately, so that a malformed object doesn't fail the page."""

    metadata: ListMetadata = ListMetadata()
    items: list[msgspec.Raw] | None = None


class Event(msgspec.Struct, frozen=True):
    """One event of a watch. The type determines the object: the object of an ERROR event is a Status."""

    type: str
    object: msgspec.Raw


class Status(msgspec.Struct, frozen=True):
    """The API server's error response."""

    code: int = 0
    message: str = ""


def lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Split chunks of any size into lines. Raises ValueError for a line over MAX_LINE_BYTES."""
    rest = bytearray()
    for chunk in chunks:
        *ends, tail = chunk.split(b"\n")
        for end in ends:
            line = bytes(rest + end)
            rest.clear()
            if line:
                yield line
        rest += tail
        if len(rest) > MAX_LINE_BYTES:
            raise ValueError("a line exceeds the limit")
    if rest:
        yield bytes(rest)
