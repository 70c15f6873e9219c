"""Split the response of a watch into lines: one event per line."""

from collections.abc import Iterable, Iterator

# The API server stores no object over 3 MiB, so a line over this limit isn't a watch event.
MAX_LINE_BYTES = 16 * 1024 * 1024  # bytes


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
            raise ValueError("a line does not end")
    if rest:
        yield bytes(rest)
