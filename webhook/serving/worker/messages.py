"""HTTP messages: a complete request, a response, and the response as bytes."""

import json
import logging
import time
from collections.abc import Sequence
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from msgspec import Struct
from msgspec.structs import replace

Headers = Sequence[tuple[str, str]]

log = logging.getLogger("webhook")


class Head(Struct, frozen=True):
    """What the server uses of a request's head."""

    method: str
    target: str
    content_type: bytes  # b"" if there is none
    keep_alive: bool  # whether the peer reuses the connection

    @property
    def path(self) -> str:
        """The path of the target, also of a target in absolute form (RFC 9112, 3.2.2)."""
        path = self.target.partition("?")[0]
        return path if path.startswith("/") else "/" + path.partition("://")[2].partition("/")[2]

    @property
    def query(self) -> str:
        """The part of the target after the question mark, or an empty string."""
        return self.target.partition("?")[2]


class Request(Struct, frozen=True):
    """A complete request."""

    head: Head
    body: bytes
    received: float  # when its first byte was read, in seconds of the loop's clock


class Response(Struct, frozen=True):
    """A response."""

    status: HTTPStatus
    body: bytes
    # without Content-Length, Date and Connection, which `serialize` adds
    headers: Headers = (("Content-Type", "application/json"),)


def error_response(status: HTTPStatus, sentence: str, uid: str | None = None, headers: Headers = ()) -> Response:
    """Return an error as a JSON response, and log it."""
    log.warning("error response", extra={"code": status.value, "error": sentence} | ({"uid": uid[:64]} if uid else {}))
    body = json.dumps({"error": sentence} | ({"uid": uid} if uid else {}))
    plain = Response(status, body.encode() + b"\n")
    return replace(plain, headers=[*plain.headers, *headers])


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)


def serialize(response: Response, *, keep_alive: bool, head_only: bool = False) -> bytes:
    """Return head and body as one byte string: two writes would be two TLS records and two packets."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in response.headers)
    head = (
        f"HTTP/1.1 {response.status:d} {response.status.phrase}\r\nDate: {_date(int(time.time()))}\r\n"
        f"Connection: {'keep-alive' if keep_alive else 'close'}\r\nContent-Length: {len(response.body)}\r\n{lines}\r\n"
    )
    return head.encode("latin-1") + (b"" if head_only else response.body)
