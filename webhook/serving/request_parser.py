"""HTTP/1.1 requests cut out of a stream of bytes; what is held of a request is bounded.

The parser is gunicorn's, the one of its ASGI worker: it takes bytes as they come, and never waits for more.
"""

from http import HTTPStatus
from typing import Any

from gunicorn.asgi.parser import ParseError, PythonProtocol

from webhook.serving.exchange import Request

# A review holds an object twice at most, and the API server accepts none over 3 MiB (its MaxRequestBodyBytes).
BODY_LIMIT = 8 * 1024 * 1024  # bytes
HEAD_LIMIT = 64 * 1024  # bytes; the API server's is under one kilobyte
FIELDS_LIMIT = 100
BODY_TOO_LARGE = "the body is over 8 MiB"
BODY_BROKEN = "the body ends too early, or is not framed as HTTP wants it"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class _Refused(Exception):
    """A request that will not be read to its end: the status, and one sentence that quotes nothing of it."""


class RequestParser:
    """Cuts requests out of what one peer sends.

    `begun` says whether a part of a request is there, `complete` whether a whole one is, `held` how many of its bytes
    are kept. `failure`, a status and a sentence, is why what comes behind the last whole one is of no use.
    """

    __slots__ = ("_body", "_continue", "_in_body", "_parser", "_received", "buffered", "failure", "started")

    def __init__(self) -> None:
        self.failure: tuple[HTTPStatus, str] | None = None
        self._begin()

    def _begin(self) -> None:
        self._parser: Any = PythonProtocol(
            on_headers_complete=self._head_is_there, on_body=self._more_of_the_body, limit_request_fields=FIELDS_LIMIT
        )
        self._body = bytearray()
        self.buffered = 0
        self._received = 0.0
        self._continue = self._in_body = self.started = False

    @property
    def complete(self) -> bool:
        """Whether a whole request is there to be taken."""
        whole: bool = self._parser.is_complete
        return whole

    def feed(self, data: bytes, now: float) -> None:
        """Take what has come; `now` is in seconds of the loop's clock."""
        if not self.started:
            self.started, self._received = True, now
        self.buffered += len(data)
        try:
            self._parser.feed(data)
        except _Refused as error:
            self.failure = error.args
        except (ParseError, ValueError):  # the latter from int(), which takes no more than 4,300 digits
            self.failure = HTTPStatus.BAD_REQUEST, BODY_BROKEN if self._in_body else "not HTTP"
        # What is no body is bounded as well; chunks of 128 bytes and more are free.
        framing = self.buffered - len(self._body)
        if framing > HEAD_LIMIT + len(self._body) // 16 and not (self.complete or self.failure):
            self.failure = HTTPStatus.BAD_REQUEST, BODY_BROKEN if self._in_body else "not HTTP"

    def end_of_stream(self) -> None:
        """Note that no more comes."""
        if self.started and not self.complete:
            self.failure = HTTPStatus.BAD_REQUEST, BODY_BROKEN

    def expects_continue(self) -> bool:
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
