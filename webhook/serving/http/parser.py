"""An incremental HTTP/1.1 request parser: llhttp, with limits, and with checks of what llhttp tolerates.

llhttp rejects ambiguous framing, folded and malformed fields, bare line ends and invalid chunks. The checks here add
the rest of what a server must not leave open (RFC 9112): one `Host`, only the coding `chunked`, `close` wins.
"""

from collections import deque
from http import HTTPStatus

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from webhook.serving.http.messages import Head, Request

# The API server accepts objects up to 3 MiB (its MaxRequestBodyBytes); an update would send two of them.
BODY_LIMIT = 4 * 1024 * 1024  # bytes
HEAD_LIMIT = 64 * 1024  # bytes; the API server sends less than 1 KB
LINE_LIMIT = 8190  # bytes of the target, or of one field
FIELDS_LIMIT = 100
# Complete requests of a connection that wait for their turn; an API server sends one. llhttp can't pause between two.
MAX_PIPELINED = 32
SIZE_OF_HEAD = 1024  # bytes in memory, roughly
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

BODY_TOO_LARGE = "the body exceeds 4 MiB"
NO_BODY = "this port accepts no body"
BODY_BROKEN = "the body is truncated or its framing is invalid"
HEAD_BROKEN = "malformed HTTP request"
NO_HOST = "an HTTP/1.1 request requires a Host header"
UNKNOWN_CODING = "unsupported transfer coding: expected chunked"

VERSIONS = {"1.0": (1, 0), "1.1": (1, 1)}
AT_MOST_ONCE = b"host", b"content-type", b"transfer-encoding"
# A field after the body must not change what the head says (RFC 9110, 6.5.1).
NOT_IN_TRAILERS = frozenset({b"host", b"content-length", b"transfer-encoding", b"trailer", b"authorization", b"te"})


class Rejected(Exception):
    """Stops a parser. The arguments are the HTTP status and an error sentence that quotes nothing of the request."""


class _Messages:
    """What llhttp has reported: complete requests, and the parts of the one that is not complete yet.

    It has a reference to llhttp only while llhttp parses. A cycle would keep the body of a closed connection until a
    garbage collection, which counts objects and not their bytes: 60 connections took 500 MB.
    """

    __slots__ = ("body", "body_limit", "complete", "fields", "head", "llhttp", "now", "received", "started", "target")

    def __init__(self, body_limit: int) -> None:
        self.body_limit = body_limit
        self.complete: deque[Request] = deque()
        self.llhttp: HttpRequestParser | None = None
        self.now = self.received = 0.0
        self._reset(started=False)

    def _reset(self, *, started: bool) -> None:
        self.started, self.target = started, b""
        self.head: Head | None = None
        self.fields: list[tuple[bytes, bytes]] = []
        self.body = bytearray()

    def on_message_begin(self) -> None:
        if len(self.complete) >= MAX_PIPELINED:
            raise Rejected(HTTPStatus.BAD_REQUEST, "too many requests without waiting for a response")
        self._reset(started=True)
        self.received = self.now

    def on_url(self, data: bytes) -> None:
        self.target += data

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if self.head and name in NOT_IN_TRAILERS:
            raise Rejected(HTTPStatus.BAD_REQUEST, BODY_BROKEN)
        self.fields.append((name, value.strip(b" \t")))
        if len(self.fields) > FIELDS_LIMIT or len(name) + len(value) > LINE_LIMIT:
            raise Rejected(HTTPStatus.BAD_REQUEST, BODY_BROKEN if self.head else HEAD_BROKEN)

    def on_headers_complete(self) -> None:
        assert self.llhttp, "llhttp parses"  # noqa: S101 (for the type checker)
        fields, version = dict(self.fields), VERSIONS.get(self.llhttp.get_http_version())
        self._check_head(fields, version)
        keep_alive = self.llhttp.should_keep_alive() and not self.llhttp.should_upgrade()
        self.head = Head(
            self.llhttp.get_method().decode(),
            self.target.decode(),
            version or (1, 0),
            tuple(self.fields),
            keep_alive and not self._asks_to_close(),
        )
        self.fields.clear()  # now for the trailers
        self.check_size(int(fields.get(b"content-length", 0)))

    def _check_head(self, fields: dict[bytes, bytes], version: tuple[int, int] | None) -> None:
        names = [name for name, _ in self.fields]
        coding = fields.get(b"transfer-encoding")
        if coding and coding.lower() != b"chunked":
            raise Rejected(HTTPStatus.NOT_IMPLEMENTED, UNKNOWN_CODING)
        if (
            version is None
            or (self.target == b"*" or len(self.target) > LINE_LIMIT)
            or any(names.count(name) > 1 for name in AT_MOST_ONCE)
            or (coding is not None and (not coding or version == (1, 0)))
        ):
            raise Rejected(HTTPStatus.BAD_REQUEST, HEAD_BROKEN)
        if version >= (1, 1) and b"host" not in fields:
            raise Rejected(HTTPStatus.BAD_REQUEST, NO_HOST)

    def _asks_to_close(self) -> bool:
        """Return whether a Connection field has the option `close`, which wins over `keep-alive` (RFC 9112, 9.6)."""
        return any(
            option.strip().lower() == b"close"
            for name, value in self.fields
            if name == b"connection"
            for option in value.split(b",")
        )

    def on_body(self, data: bytes) -> None:
        self.check_size(len(self.body) + len(data))
        self.body += data

    def check_size(self, size: int) -> None:
        if size > self.body_limit:
            sentence = BODY_TOO_LARGE if self.body_limit else NO_BODY
            raise Rejected(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, sentence)

    def on_message_complete(self) -> None:
        assert self.head, "the head is complete"  # noqa: S101 (for the type checker)
        self.complete.append(Request(self.head, bytes(self.body), self.received))
        self._reset(started=False)


class RequestParser:
    """Parses the requests of one connection.

    `failure` is the HTTP status and error sentence for the bytes after the last complete request.
    """

    __slots__ = ("_in_memory", "_llhttp", "_messages", "_size", "_was_asked_to_continue", "failure")

    def __init__(self, body_limit: int = BODY_LIMIT) -> None:
        self.failure: tuple[HTTPStatus, str] | None = None
        self._messages = _Messages(body_limit)
        self._llhttp = HttpRequestParser(self._messages)
        self._size = self._in_memory = 0  # bytes of the incomplete request, and of the complete ones
        self._was_asked_to_continue = False

    @property
    def started(self) -> bool:
        """Whether bytes of a request have arrived that `take` has not returned yet."""
        return self._messages.started or self.complete or self.failure is not None

    @property
    def complete(self) -> bool:
        """Whether `take` can return a request."""
        return bool(self._messages.complete)

    @property
    def buffered(self) -> int:
        """The bytes of all these requests that are in memory, roughly."""
        return self._in_memory + self._size

    def feed(self, data: bytes, now: float) -> None:
        """Parse received bytes; `now` is in seconds of the loop's clock. Sets `failure` if they are invalid."""
        messages = self._messages
        before = len(messages.complete)
        messages.llhttp, messages.now = self._llhttp, now
        try:
            self._llhttp.feed_data(data)
        except HttpParserUpgrade:
            pass  # the request is complete, and its connection ends after the response
        except HttpParserError as error:
            broken = HTTPStatus.BAD_REQUEST, BODY_BROKEN if messages.head else HEAD_BROKEN
            self.failure = error.__context__.args if isinstance(error.__context__, Rejected) else broken
        finally:
            messages.llhttp = None
        self._count(len(data), before)

    def _count(self, size: int, before: int) -> None:
        messages = self._messages
        for request in list(messages.complete)[before:]:
            self._in_memory += SIZE_OF_HEAD + len(request.body)
            self._size, self._was_asked_to_continue = 0, False
        self._size = self._size + size if messages.started else 0
        # Limit the bytes that are not body. Chunks of 128 bytes or more never reach the limit.
        body = len(messages.body)
        if self._size - body > HEAD_LIMIT + body // 16 and not self.failure:
            self.failure = HTTPStatus.BAD_REQUEST, BODY_BROKEN if messages.head else HEAD_BROKEN

    def end_of_stream(self) -> None:
        """Record the end of the stream: an incomplete request becomes a failure."""
        if self._messages.started:
            self.failure = self.failure or (HTTPStatus.BAD_REQUEST, BODY_BROKEN)

    def expects_continue(self) -> bool:
        """Return whether the peer waits for `100 Continue` before it sends the body. True only once per request."""
        head = self._messages.head
        if head is None or self._was_asked_to_continue or not head.expects_continue:
            return False
        self._was_asked_to_continue = True
        return not self._messages.body

    def take(self) -> Request:
        """Return the first complete request. Raises IndexError if there is none."""
        request = self._messages.complete.popleft()
        self._in_memory -= SIZE_OF_HEAD + len(request.body)
        return request
