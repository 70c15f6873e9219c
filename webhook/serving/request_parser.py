"""An incremental HTTP/1.1 request parser with limits on head, body and framing.

It wraps the parser of gunicorn's ASGI worker, which accepts bytes in any pieces and never blocks.
"""

from http import HTTPStatus
from typing import Any

from gunicorn.asgi.parser import ParseError, PythonProtocol

from webhook.serving.exchange import Request

# A review contains an object at most twice, and the API server accepts objects up to 3 MiB (its MaxRequestBodyBytes).
BODY_LIMIT = 8 * 1024 * 1024  # bytes
HEAD_LIMIT = 64 * 1024  # bytes; the API server sends less than 1 KB
FIELDS_LIMIT = 100
BODY_TOO_LARGE = "the body is over 8 MiB"
BODY_BROKEN = "the body ends too early, or is not framed as HTTP wants it"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class _Rejected(Exception):
    """Stops the parser. The arguments are the HTTP status and an error sentence that quotes nothing of the request."""


class RequestParser:
    """Parses the requests of one connection, one at a time.

    `started` means that bytes of a request have arrived, `complete` that all have. `buffered` is the number of bytes of
    the request so far. `failure` is the HTTP status and error sentence for the bytes after the last complete request.
    """

    __slots__ = ("_body", "_in_body", "_parser", "_received", "_wants_continue", "buffered", "failure", "started")

    def __init__(self) -> None:
        self.failure: tuple[HTTPStatus, str] | None = None
        self._reset()

    def _reset(self) -> None:
        self._parser: Any = PythonProtocol(
            on_headers_complete=self._on_headers_complete, on_body=self._on_body, limit_request_fields=FIELDS_LIMIT
        )
        self._body = bytearray()
        self.buffered = 0
        self._received = 0.0
        self._wants_continue = self._in_body = self.started = False

    @property
    def complete(self) -> bool:
        """Whether `take` can return a request."""
        whole: bool = self._parser.is_complete
        return whole

    def feed(self, data: bytes, now: float) -> None:
        """Parse received bytes; `now` is in seconds of the loop's clock. Sets `failure` if they are invalid."""
        if not self.started:
            self.started, self._received = True, now
        self.buffered += len(data)
        try:
            self._parser.feed(data)
        except _Rejected as error:
            self.failure = error.args
        except (ParseError, ValueError):  # ValueError: int() accepts at most 4,300 digits
            self.failure = HTTPStatus.BAD_REQUEST, BODY_BROKEN if self._in_body else "not HTTP"
        # Limit the bytes that are not body. Chunks of 128 bytes or more never reach the limit.
        framing = self.buffered - len(self._body)
        if framing > HEAD_LIMIT + len(self._body) // 16 and not (self.complete or self.failure):
            self.failure = HTTPStatus.BAD_REQUEST, BODY_BROKEN if self._in_body else "not HTTP"

    def end_of_stream(self) -> None:
        """Record the end of the stream: an incomplete request becomes a failure."""
        if self.started and not self.complete:
            self.failure = HTTPStatus.BAD_REQUEST, BODY_BROKEN

    def expects_continue(self) -> bool:
        """Return whether the peer waits for `100 Continue` before it sends the body. True only once per request."""
        wanted, self._wants_continue = self._wants_continue and not self._body and not self.complete, False
        return wanted

    def take(self, now: float) -> Request:
        """Return the complete request, and start the next one with the bytes after it."""
        parser, rest = self._parser, self._parser.remaining()
        request = Request(
            parser.method.decode("ascii"),
            parser.path.decode("ascii"),
            parser.http_version,
            parser.headers,
            bytes(self._body),
            parser.should_keep_alive and parser.method != b"CONNECT",
            self._received,
        )
        self._reset()
        if rest:
            self.feed(rest, now)
        return request

    def _on_headers_complete(self) -> bool:
        parser, self._in_body = self._parser, True
        if (parser.content_length or 0) > BODY_LIMIT:
            raise _Rejected(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, BODY_TOO_LARGE)
        self._wants_continue = parser.http_version >= (1, 1) and any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in parser.headers
        )
        return False  # do not skip the body

    def _on_body(self, data: bytes) -> None:
        if len(self._body) + len(data) > BODY_LIMIT:
            raise _Rejected(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, BODY_TOO_LARGE)
        self._body += data
