"""Choose the parser of a message: a short one if its head is already known, otherwise that of gunicorn."""

from functools import lru_cache

from webhook.serving.exchange import Head
from webhook.serving.gunicorn_parser import BODY_LIMIT, GunicornParser, Rejected

# The heads of an API server differ only in their Content-Length, and have 300 bytes.
MAX_KNOWN_HEADS, MAX_KNOWN_HEAD = 256, 1024  # heads, and bytes of one

_END_OF_HEAD = b"\r\n\r\n"


class KnownHeadParser:
    """Parses the rest of a message whose head is known: a body of `size` bytes."""

    __slots__ = ("_rest", "_size", "body", "head")
    has_head, expects_continue = True, False

    def __init__(self, head: Head, size: int) -> None:
        self.head, self.body = head, bytearray()
        self._size, self._rest = size, b""

    @property
    def is_complete(self) -> bool:
        """Whether the message is complete."""
        return len(self.body) == self._size

    def feed(self, data: bytes) -> None:
        """Take received bytes."""
        missing = self._size - len(self.body)
        self.body += data[:missing]
        self._rest += data[missing:]

    def remaining(self) -> bytes:
        """Return the bytes after the complete message."""
        return self._rest


def parser_for(data: bytes, body_limit: int) -> tuple[GunicornParser | KnownHeadParser, bytes]:
    """Return the parser for a message that starts with these bytes, and the bytes that it has not parsed yet.

    gunicorn's parser takes a tenth of a review's CPU time, most of it for the head.
    """
    end = data.find(_END_OF_HEAD, 0, MAX_KNOWN_HEAD)
    if end > 0:
        size_of_head = end + len(_END_OF_HEAD)
        known = _parse_head(data[:size_of_head])
        if known and known[1] <= body_limit:
            return KnownHeadParser(*known), data[size_of_head:]
    return GunicornParser(body_limit), data


@lru_cache(maxsize=MAX_KNOWN_HEADS)
def _parse_head(data: bytes) -> tuple[Head, int] | None:
    """Return a head with the size of its body, or None if the whole message needs gunicorn's parser."""
    parser = GunicornParser(BODY_LIMIT)
    try:
        parser.feed(data)
    except Rejected:
        return None
    size = parser.size_of_body()
    return None if size is None else (parser.head, size)
