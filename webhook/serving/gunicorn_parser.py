"""Parse one HTTP/1.1 message with the parser of gunicorn, within limits."""

import re
from http import HTTPStatus
from typing import Any

from gunicorn.asgi.parser import ParseError, PythonProtocol

from webhook.serving.exchange import Head

# A review contains an object at most twice, and the API server accepts objects up to 3 MiB (its MaxRequestBodyBytes).
BODY_LIMIT = 8 * 1024 * 1024  # bytes
FIELDS_LIMIT = 100
BODY_TOO_LARGE = "the body exceeds 8 MiB"
NO_BODY = "this port accepts no body"
BODY_BROKEN = "the body is truncated or its framing is invalid"
HEAD_BROKEN = "malformed HTTP request"
NO_HOST = "an HTTP/1.1 request requires a Host header"
UNKNOWN_CODING = "unsupported transfer coding: expected chunked"

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110, 5.6.2
_CONTROL_CHARACTER = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


class Rejected(Exception):
    """Stops a parser. The arguments are the HTTP status and an error sentence that quotes nothing of the request."""


class PatternParser(PythonProtocol):
    """The parser of gunicorn, with regular expressions for the two checks that loop over each byte of a head.

    The loops took a tenth of a review's CPU time.
    """

    def _is_valid_token(self, data: bytes) -> bool:
        return _TOKEN.fullmatch(data) is not None

    def _has_invalid_header_chars(self, value: bytes) -> bool:
        return _CONTROL_CHARACTER.search(value) is not None


class _Message:
    """The parts of a message that the parser has reported: whether its head is complete, and its body so far.

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
            raise Rejected(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, sentence)


class GunicornParser:
    """Parses any message with the parser of gunicorn, which accepts bytes in any pieces and never blocks.

    `expects_continue` means that the client waits for `100 Continue` before it sends the body.
    """

    __slots__ = ("_message", "_parser", "expects_continue")

    def __init__(self, body_limit: int) -> None:
        self.expects_continue = False
        self._message = _Message(body_limit)
        self._parser: Any = PatternParser(
            on_headers_complete=self._message.on_headers_complete,
            on_body=self._message.on_body,
            limit_request_fields=FIELDS_LIMIT,
        )

    @property
    def has_head(self) -> bool:
        """Whether the head is complete."""
        return self._message.has_head

    @property
    def body(self) -> bytearray:
        """The body so far."""
        return self._message.body

    @property
    def is_complete(self) -> bool:
        """Whether the message is complete."""
        complete: bool = self._parser.is_complete
        return complete

    @property
    def head(self) -> Head:
        """The head, if it is complete."""
        parser = self._parser
        return Head(
            parser.method.decode("ascii"),
            parser.path.decode("ascii"),
            parser.http_version,
            tuple(parser.headers),
            parser.should_keep_alive and parser.method != b"CONNECT" and not _asks_to_close(parser.headers),
        )

    def feed(self, data: bytes) -> None:
        """Parse received bytes. Raises Rejected."""
        had_head = self.has_head
        try:
            self._parser.feed(data)
        except (ParseError, ValueError):  # ValueError: int() accepts at most 4,300 digits
            malformed = HTTPStatus.BAD_REQUEST, BODY_BROKEN if self.has_head else HEAD_BROKEN
            raise Rejected(*(self._failure_of_coding() or malformed)) from None
        if self.has_head and not had_head:
            self._check_head()

    def remaining(self) -> bytes:
        """Return the bytes after the complete message."""
        rest: bytes = self._parser.remaining()
        return rest

    def size_of_body(self) -> int | None:
        """Return the size that the head announces. None if the head does not, or needs more than the size."""
        if not self.has_head or self._parser.is_chunked or self.expects_continue:
            return None
        return self._parser.content_length or 0

    def _failure_of_coding(self) -> tuple[HTTPStatus, str] | None:
        codings = [value.lower() for name, value in self._parser.headers if name == b"transfer-encoding"]
        known = all(coding.strip() in (b"", b"chunked") for value in codings for coding in value.split(b","))
        return None if known else (HTTPStatus.NOT_IMPLEMENTED, UNKNOWN_CODING)

    def _check_head(self) -> None:
        parser = self._parser
        fields = dict(parser.headers)
        if b"transfer-encoding" in fields and (failure := self._failure_of_coding()):
            raise Rejected(*failure)  # the parser accepts `gzip, chunked`
        if b"host" not in fields and parser.http_version >= (1, 1):
            raise Rejected(HTTPStatus.BAD_REQUEST, NO_HOST)
        self._message.check_size(parser.content_length or 0)
        self.expects_continue = parser.http_version >= (1, 1) and fields.get(b"expect", b"").lower() == b"100-continue"


def _asks_to_close(headers: list[tuple[bytes, bytes]]) -> bool:
    """Return whether a Connection header has the option `close`, which wins over `keep-alive` (RFC 9112, 9.6)."""
    return any(
        option.strip().lower() == b"close"
        for name, value in headers
        if name == b"connection"
        for option in value.split(b",")
    )
