"""An incremental HTTP/1.1 request parser with limits on head, body and framing.

It wraps the parser of gunicorn's ASGI worker, which accepts bytes in any pieces and never blocks.
"""

import re
from http import HTTPStatus
from typing import Any

from gunicorn.asgi.parser import ParseError, PythonProtocol

from webhook.serving.exchange import Request

# A review contains an object at most twice, and the API server accepts objects up to 3 MiB (its MaxRequestBodyBytes).
BODY_LIMIT = 8 * 1024 * 1024  # bytes
HEAD_LIMIT = 64 * 1024  # bytes; the API server sends less than 1 KB
FIELDS_LIMIT = 100
BODY_TOO_LARGE = "the body exceeds 8 MiB"
NO_BODY = "this port accepts no body"
BODY_BROKEN = "the body is truncated or its framing is invalid"
NO_HOST = "an HTTP/1.1 request requires a Host header"
UNKNOWN_CODING = "unsupported transfer coding: expected chunked"
EMPTY_LINE = b"\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110, 5.6.2
_CONTROL_CHARACTER = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


class PatternParser(PythonProtocol):
    """The parser of gunicorn, with regular expressions for the two checks that loop over each byte of a head.

    The loops took a tenth of a review's CPU time.
    """

    def _is_valid_token(self, data: bytes) -> bool:
        return _TOKEN.fullmatch(data) is not None

    def _has_invalid_header_chars(self, value: bytes) -> bool:
        return _CONTROL_CHARACTER.search(value) is not None


class _Rejected(Exception):
    """Stops the parser. The arguments are the HTTP status and an error sentence that quotes nothing of the request."""


class _Message:
    """The parts of a request that the parser has reported: whether its head is complete, and its body so far.

    It has no reference to the parser. A cycle would keep the body of a closed connection until a garbage collection,
    which counts objects and not their bytes: 60 connections took 500 MB.
    """

    __slots__ = ("body", "body_limit", "has_head")

    def __init__(self, body_limit: int) -> None:
        self.body, self.body_limit, self.has_head = bytearray(), body_limit, False

    def on_headers_complete(self) -> bool:
        self.has_head = True
        return False  # do not skip the body

    def on_body(self, data: bytes) -> None:
        self.check_size(len(self.body) + len(data))
        self.body += data

    def check_size(self, size: int) -> None:
        if size > self.body_limit:
            sentence = BODY_TOO_LARGE if self.body_limit else NO_BODY
            raise _Rejected(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, sentence)


class RequestParser:
    """Parses the requests of one connection, one at a time.

    `started` means that bytes of a request have arrived, `complete` that all have. `buffered` is the number of bytes of
    the request so far. `failure` is the HTTP status and error sentence for the bytes after the last complete request.
    """

    __slots__ = (
        "_body_limit",
        "_message",
        "_parser",
        "_received",
        "_rejected",
        "_wants_continue",
        "buffered",
        "failure",
        "started",
    )

    def __init__(self, body_limit: int = BODY_LIMIT) -> None:
        self.failure: tuple[HTTPStatus, str] | None = None
        self._body_limit = body_limit
        self._reset()

    def _reset(self) -> None:
        self._message = _Message(self._body_limit)
        self._parser: Any = PatternParser(
            on_headers_complete=self._message.on_headers_complete,
            on_body=self._message.on_body,
            limit_request_fields=FIELDS_LIMIT,
        )
        self.buffered = 0
        self._received = 0.0
        self._wants_continue = self.started = self._rejected = False

    @property
    def complete(self) -> bool:
        """Whether `take` can return a request."""
        whole: bool = self._parser.is_complete
        return whole and not self._rejected

    def feed(self, data: bytes, now: float) -> None:
        """Parse received bytes; `now` is in seconds of the loop's clock. Sets `failure` if they are invalid."""
        if not self.started:
            self.started, self._received = True, now
        self.buffered += len(data)
        message, had_head = self._message, self._message.has_head
        try:
            self._parser.feed(data)
            if message.has_head and not had_head:
                self._check_head()
        except _Rejected as error:
            self.failure, self._rejected = error.args, True
        except (ParseError, ValueError):  # ValueError: int() accepts at most 4,300 digits
            self.failure = self._failure_of_coding() or self._malformed()
        # An empty line before a request is not part of it (RFC 9112, 2.2). The parser rejects a line without a CR.
        if self.buffered == len(EMPTY_LINE) and data.endswith(b"\n") and not self.failure:
            self.started, self.buffered = False, 0
        # Limit the bytes that are not body. Chunks of 128 bytes or more never reach the limit.
        framing = self.buffered - len(message.body)
        if framing > HEAD_LIMIT + len(message.body) // 16 and not (self.complete or self.failure):
            self.failure = self._malformed()

    def end_of_stream(self) -> None:
        """Record the end of the stream: an incomplete request becomes a failure."""
        if self.started and not self.complete:
            self.failure = HTTPStatus.BAD_REQUEST, BODY_BROKEN

    def expects_continue(self) -> bool:
        """Return whether the peer waits for `100 Continue` before it sends the body. True only once per request."""
        wanted, self._wants_continue = self._wants_continue and not self._message.body and not self.complete, False
        return wanted

    def take(self, now: float) -> Request:
        """Return the complete request, and start the next one with the bytes after it."""
        parser, rest = self._parser, self._parser.remaining()
        request = Request(
            parser.method.decode("ascii"),
            parser.path.decode("ascii"),
            parser.http_version,
            parser.headers,
            bytes(self._message.body),
            parser.should_keep_alive and parser.method != b"CONNECT" and not _asks_to_close(parser.headers),
            self._received,
        )
        self._reset()
        if rest:
            self.feed(rest, now)
        return request

    def _malformed(self) -> tuple[HTTPStatus, str]:
        return HTTPStatus.BAD_REQUEST, BODY_BROKEN if self._message.has_head else "malformed HTTP request"

    def _failure_of_coding(self) -> tuple[HTTPStatus, str] | None:
        codings = [value.lower() for name, value in self._parser.headers if name == b"transfer-encoding"]
        known = all(coding.strip() in (b"", b"chunked") for value in codings for coding in value.split(b","))
        return None if known else (HTTPStatus.NOT_IMPLEMENTED, UNKNOWN_CODING)

    def _check_head(self) -> None:
        parser = self._parser
        fields = dict(parser.headers)
        if b"transfer-encoding" in fields and (failure := self._failure_of_coding()):
            raise _Rejected(*failure)  # the parser accepts `gzip, chunked`
        if b"host" not in fields and parser.http_version >= (1, 1):
            raise _Rejected(HTTPStatus.BAD_REQUEST, NO_HOST)
        self._message.check_size(parser.content_length or 0)
        self._wants_continue = parser.http_version >= (1, 1) and fields.get(b"expect", b"").lower() == b"100-continue"


def _asks_to_close(headers: list[tuple[bytes, bytes]]) -> bool:
    """Return whether a Connection header has the option `close`, which wins over `keep-alive` (RFC 9112, 9.6)."""
    return any(
        option.strip().lower() == b"close"
        for name, value in headers
        if name == b"connection"
        for option in value.split(b",")
    )
