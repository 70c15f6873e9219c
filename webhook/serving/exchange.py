"""HTTP/1.1 on a stream of bytes: whole requests out of it, answers into it, and what is held of a request is bounded.

The parser is gunicorn's, the one of its ASGI worker: it takes bytes as they come, and never waits for more.
"""

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from io import BytesIO
from typing import Any
from urllib.parse import unquote_to_bytes
from wsgiref.types import WSGIApplication

from gunicorn.asgi.parser import ParseError, PythonProtocol

# A review holds an object twice at most, and the API server accepts none over 3 MiB (its MaxRequestBodyBytes).
BODY_LIMIT = 8 * 1024 * 1024  # bytes
HEAD_LIMIT = 64 * 1024  # bytes; the API server's is under one kilobyte
FIELDS_LIMIT = 100
# bytes; a VM's review has 10 KiB and takes 0.2 ms, one of megabytes, made to be slow, takes a second: in a thread, then
LARGE = 64 * 1024
BODY_TOO_LARGE = "the body is over 8 MiB"
BODY_BROKEN = "the body ends too early, or is not framed as HTTP wants it"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

Headers = Sequence[tuple[str, str]]


class _Refused(Exception):
    """A request that will not be read to its end: the status, and one sentence that quotes nothing of it."""


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
class Answer:
    """What is sent back. `headers` are those besides length, date and connection."""

    status: HTTPStatus
    body: bytes
    headers: Headers = (("Content-Type", "application/json"),)


class Reader:
    """Cuts requests out of what one peer sends.

    `begun` says whether a part of a request is there, `complete` whether a whole one is, `held` how many of its bytes
    are kept. `failure`, a status and a sentence, is why what comes behind the last whole one is of no use.
    """

    __slots__ = ("_body", "_continue", "_in_body", "_parser", "_received", "begun", "failure", "held")

    def __init__(self) -> None:
        self.failure: tuple[HTTPStatus, str] | None = None
        self._begin()

    def _begin(self) -> None:
        self._parser: Any = PythonProtocol(
            on_headers_complete=self._head_is_there, on_body=self._more_of_the_body, limit_request_fields=FIELDS_LIMIT
        )
        self._body = bytearray()
        self.held = 0
        self._received = 0.0
        self._continue = self._in_body = self.begun = False

    @property
    def complete(self) -> bool:
        """Whether a whole request is there to be taken."""
        whole: bool = self._parser.is_complete
        return whole

    def feed(self, data: bytes, now: float) -> None:
        """Take what has come; `now` is in seconds of the loop's clock."""
        if not self.begun:
            self.begun, self._received = True, now
        self.held += len(data)
        try:
            self._parser.feed(data)
        except _Refused as error:
            self.failure = error.args
        except (ParseError, ValueError):  # the latter from int(), which takes no more than 4,300 digits
            self.failure = HTTPStatus.BAD_REQUEST, BODY_BROKEN if self._in_body else "not HTTP"
        # What is no body is bounded as well; chunks of 128 bytes and more are free.
        framing = self.held - len(self._body)
        if framing > HEAD_LIMIT + len(self._body) // 16 and not (self.complete or self.failure):
            self.failure = HTTPStatus.BAD_REQUEST, BODY_BROKEN if self._in_body else "not HTTP"

    def break_off(self) -> None:
        """Note that no more comes."""
        if self.begun and not self.complete:
            self.failure = HTTPStatus.BAD_REQUEST, BODY_BROKEN

    def wants_to_go_on(self) -> bool:
        """Say, once, whether the peer waits for `100 Continue` before it sends the body."""
        wanted, self._continue = self._continue and not self._body and not self.complete, False
        return wanted

    def take(self, now: float) -> Request:
        """Return the request that is complete; what came behind it is the beginning of the next."""
        parser, behind = self._parser, self._parser.remaining()
        request = Request(
            parser.method.decode("ascii"),
            parser.path.decode("ascii"),
            parser.http_version,
            parser.headers,
            bytes(self._body),
            parser.should_keep_alive and parser.method != b"CONNECT",
            self._received,
        )
        self._begin()
        if behind:
            self.feed(behind, now)
        return request

    def _head_is_there(self) -> bool:
        parser, self._in_body = self._parser, True
        if (parser.content_length or 0) > BODY_LIMIT:
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, BODY_TOO_LARGE)
        self._continue = parser.http_version >= (1, 1) and any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in parser.headers
        )
        return False  # the body is wanted

    def _more_of_the_body(self, part: bytes) -> None:
        if len(self._body) + len(part) > BODY_LIMIT:
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, BODY_TOO_LARGE)
        self._body += part


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)


def written(answer: Answer, *, keep: bool, head_only: bool = False) -> bytes:
    """Return head and body of an answer as one piece: two writes are two records of TLS, and two packets."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in answer.headers)
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\nDate: {_date(int(time.time()))}\r\n"
        f"Connection: {'keep-alive' if keep else 'close'}\r\nContent-Length: {len(answer.body)}\r\n{lines}\r\n"
    )
    return head.encode("latin-1") + (b"" if head_only else answer.body)


def environ(request: Request, peer: str) -> dict[str, Any]:
    """Return a request as WSGI has it (PEP 3333)."""
    found = {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(request.path).decode("latin-1"),
        "QUERY_STRING": request.query,
        "SERVER_NAME": "kubevirt-scheduler",
        "SERVER_PORT": "443",
        "SERVER_PROTOCOL": "HTTP/{}.{}".format(*request.version),
        "REMOTE_ADDR": peer,
        "CONTENT_LENGTH": str(len(request.body)),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "https",
        "wsgi.input": BytesIO(request.body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
        "webhook.request": request,
    }
    for name, value in request.headers:
        key = name.decode("latin-1").upper().replace("-", "_")
        if key == "CONTENT_TYPE":
            found[key] = value.decode("latin-1")
        elif key not in ("CONTENT_LENGTH", "TRANSFER_ENCODING") and b"_" not in name:  # CGI can't tell a_b from a-b
            key = f"HTTP_{key}"
            found[key] = f"{found[key]},{value.decode('latin-1')}" if key in found else value.decode("latin-1")
    return found


def answered_by(app: WSGIApplication, request: Request, peer: str) -> Answer:
    """Have a WSGI application answer a request."""
    started: list[Any] = []

    def start_response(status: str, headers: Headers, _exc_info: object = None) -> Any:
        started[:] = status, headers

    parts: Iterable[bytes] = app(environ(request, peer), start_response)
    try:
        body = b"".join(parts)
    finally:
        close: Any = getattr(parts, "close", lambda: None)
        close()
    status, headers = started
    kept = [(name, value) for name, value in headers if name.lower() not in ("content-length", "connection", "date")]
    return Answer(HTTPStatus(int(status[:3])), body, kept)
