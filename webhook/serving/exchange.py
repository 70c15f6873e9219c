"""One HTTP exchange: a whole request, and the response to it."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

import structlog

# bytes; a VM's review has 10 KiB and takes 0.2 ms, one of megabytes, made to be slow, takes a second: in a thread, then
LARGE = 64 * 1024

Headers = Sequence[tuple[str, str]]

log = structlog.get_logger("webhook")


@dataclass(frozen=True, slots=True)
class Request:
    """One whole request. `received` is when its first byte was read, in seconds of the loop's clock."""

    method: str
    target: str
    version: tuple[int, int]
    headers: list[tuple[bytes, bytes]]  # names in lower case
    body: bytes
    keep: bool  # whether the peer will use the connection again
    received: float

    @property
    def path(self) -> str:
        """The target without its query, and without what a proxy is told (RFC 9112, 3.2.2)."""
        path = self.target.partition("?")[0]
        return path if path.startswith("/") else "/" + path.partition("://")[2].partition("/")[2]

    @property
    def query(self) -> str:
        """What stands behind the question mark."""
        return self.target.partition("?")[2]

    def header(self, name: bytes) -> bytes:
        """Return the first header of this name (in lower case), empty where there is none."""
        return next((value for key, value in self.headers if key == name), b"")


@dataclass(frozen=True, slots=True)
class Response:
    """What is sent back. `headers` are those besides length, date and connection."""

    status: HTTPStatus
    body: bytes
    headers: Headers = (("Content-Type", "application/json"),)


def error_response(status: HTTPStatus, sentence: str, uid: str | None = None, headers: Headers = ()) -> Response:
    """Answer with an error in JSON, and log it."""
    log.warning("refused", code=status.value, error=sentence, **({"uid": uid[:253]} if uid else {}))
    body = json.dumps({"error": sentence} | ({"uid": uid} if uid else {}))
    plain = Response(status, body.encode() + b"\n")
    return replace(plain, headers=[*plain.headers, *headers])


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)


def serialize(answer: Response, *, keep: bool, head_only: bool = False) -> bytes:
    """Return head and body of an answer as one piece: two writes are two records of TLS, and two packets."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in answer.headers)
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\nDate: {_date(int(time.time()))}\r\n"
        f"Connection: {'keep-alive' if keep else 'close'}\r\nContent-Length: {len(answer.body)}\r\n{lines}\r\n"
    )
    return head.encode("latin-1") + (b"" if head_only else answer.body)
