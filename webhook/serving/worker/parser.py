"""An incremental HTTP/1.1 request parser: llhttp, with limits, and with checks of what llhttp tolerates.

llhttp rejects ambiguous framing, folded and malformed fields, bare line ends and invalid chunks. The checks here add
the rest of what a server must not leave open (RFC 9112): one `Host`, only the coding `chunked`.
"""

from http import HTTPStatus

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from msgspec.structs import replace

from webhook.serving.worker.messages import Head, Request

# The API server accepts objects up to 3 MiB (its MaxRequestBodyBytes); an update would send two of them.
BODY_LIMIT = 4 * 1024 * 1024  # bytes
# bytes of the target and the fields, trailers included. The API server sends less than 1 KB. So Flask, the regular
# expressions and all else that reads a head cost at most what 8 KiB cost.
HEAD_LIMIT = 8 * 1024

BODY_TOO_LARGE = f"the body exceeds {BODY_LIMIT >> 20} MiB"
NO_BODY = "this port accepts no body"
HEAD_TOO_LARGE = "the head exceeds 8 KiB"
LARGE_HEAD = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, HEAD_TOO_LARGE
BODY_BROKEN = "the body is truncated or its framing is invalid"
HEAD_BROKEN = "malformed HTTP request"
NO_HOST = "an HTTP/1.1 request requires a Host header"
NO_EXPECTATIONS = "Expect is not supported: send the body at once"
UNKNOWN_CODING = "unsupported transfer coding: expected chunked"

AT_MOST_ONCE = frozenset({b"host", b"content-type", b"transfer-encoding"})
# A field after the body must not change what the head says (RFC 9110, 6.5.1).
NOT_IN_TRAILERS = frozenset({b"host", b"content-length", b"transfer-encoding", b"trailer", b"authorization", b"te"})


class Rejected(Exception):
    """Stops a parser. The arguments are the HTTP status and an error sentence that quotes nothing of the request.

    Without arguments, the head is malformed, or after it the body.
    """


class _Message:
    """What llhttp has reported of one request.

    It has a reference to llhttp only while llhttp parses. A cycle would keep the body of a closed connection until a
    garbage collection, which counts objects and not their bytes: 60 connections took 500 MB.
    """

    def __init__(self, body_limit: int) -> None:
        self.body_limit = body_limit
        self.llhttp: HttpRequestParser | None = None
        self.now = self.received = 0.0
        self.reset()

    def reset(self) -> None:
        self.started = self.complete = False
        self.target = b""
        self.body = bytearray()
        self.head_size = 0
        self.head: Head | None = None
        self.fields: list[tuple[bytes, bytes]] = []

    def on_message_begin(self) -> None:
        if self.complete:
            raise Rejected
        self.started, self.received = True, self.now

    def on_url(self, data: bytes) -> None:
        self.target += data
        self._check_head_size(len(data))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._check_head_size(len(name) + len(value) + len(b": \r\n"))
        self.fields.append((name.lower(), value.strip(b" \t")))
        if self.head and name.lower() in NOT_IN_TRAILERS:
            raise Rejected

    def _check_head_size(self, more: int) -> None:
        self.head_size += more
        if self.head_size > HEAD_LIMIT:
            raise Rejected(*LARGE_HEAD)

    def on_headers_complete(self) -> None:
        assert self.llhttp, "llhttp parses"  # noqa: S101 (for the type checker)
        fields = dict(self.fields)
        llhttp = self.llhttp
        version = llhttp.get_http_version()
        self._check_head(fields, version)
        # Of HTTP/1.0, llhttp would keep a connection with the options `close` and `keep-alive` (RFC 9112, 9.3).
        keep_alive = version == "1.1" and llhttp.should_keep_alive() and not llhttp.should_upgrade()
        content_type = fields.get(b"content-type", b"")
        self.head = Head(llhttp.get_method().decode(), self.target.decode(), content_type, keep_alive)
        self.check_size(int(fields.get(b"content-length", 0)))

    def _check_head(self, fields: dict[bytes, bytes], version: str) -> None:
        if len(self.fields) > len(fields):
            names = [name for name, _ in self.fields]
            if any(names.count(name) > 1 for name in AT_MOST_ONCE):
                raise Rejected
        coding = fields.get(b"transfer-encoding")
        if coding and coding.lower() != b"chunked":
            raise Rejected(HTTPStatus.NOT_IMPLEMENTED, UNKNOWN_CODING)
        if (
            version not in {"1.0", "1.1"}
            or self.target == b"*"
            or (coding is not None and (not coding or version == "1.0"))
        ):
            raise Rejected
        if version == "1.1" and b"host" not in fields:
            raise Rejected(HTTPStatus.BAD_REQUEST, NO_HOST)
        if version == "1.1" and b"expect" in fields:  # no API server sends it; curl retries without it
            raise Rejected(HTTPStatus.EXPECTATION_FAILED, NO_EXPECTATIONS)

    def on_body(self, data: bytes) -> None:
        self.check_size(len(self.body) + len(data))
        self.body += data

    def check_size(self, size: int) -> None:
        if size > self.body_limit:
            sentence = BODY_TOO_LARGE if self.body_limit else NO_BODY
            raise Rejected(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, sentence)

    def on_message_complete(self) -> None:
        self.complete = True


class RequestParser:
    """Parses the requests of one connection, one after the other.

    `failure` is the HTTP status and error sentence for invalid bytes. Bytes of a second request before `take`, which
    no API server sends, are not parsed: the response to the first one closes the connection (RFC 9112, 9.3.2).
    """

    __slots__ = ("_llhttp", "_message", "buffered", "failure")

    def __init__(self, body_limit: int = BODY_LIMIT) -> None:
        self.failure: tuple[HTTPStatus, str] | None = None
        self.buffered = 0  # the bytes of the request that are in memory, roughly
        self._message = _Message(body_limit)
        self._llhttp = HttpRequestParser(self._message)

    @property
    def started(self) -> bool:
        """Whether bytes of a request have arrived that `take` has not returned yet."""
        return self._message.started or self.failure is not None

    @property
    def complete(self) -> bool:
        """Whether `take` can return a request."""
        return self._message.complete

    def feed(self, data: bytes, now: float) -> None:
        """Parse received bytes; `now` is in seconds of the loop's clock. Sets `failure` if they are invalid."""
        message = self._message
        message.llhttp, message.now = self._llhttp, now
        try:
            self._llhttp.feed_data(data)
        except HttpParserUpgrade:
            pass  # the request is complete, and its connection ends after the response
        except HttpParserError as error:
            rejected = isinstance(error.__context__, Rejected) and error.__context__.args
            self.failure = rejected or self._broken()
        finally:
            message.llhttp = None
        self.buffered = self.buffered + len(data) if message.started else 0
        # Limit the bytes that are not body. Chunks of 128 bytes or more never reach the limit.
        body = len(message.body)
        if self.buffered - body > HEAD_LIMIT + body // 16 and not (self.failure or message.complete):
            self.failure = self._broken() if message.head else LARGE_HEAD

    def end_of_stream(self) -> None:
        """Record the end of the stream: an incomplete request becomes a failure."""
        if self._message.started:
            self.failure = self.failure or (HTTPStatus.BAD_REQUEST, BODY_BROKEN)

    def _broken(self) -> tuple[HTTPStatus, str]:
        return HTTPStatus.BAD_REQUEST, BODY_BROKEN if self._message.head else HEAD_BROKEN

    def take(self) -> Request:
        """Return the complete request, and forget it."""
        message = self._message
        assert message.head, "the head is complete"  # noqa: S101 (for the type checker)
        head = replace(message.head, keep_alive=False) if self.failure else message.head
        request = Request(head, bytes(message.body), message.received)
        self.discard()
        return request

    def discard(self) -> None:
        """Free the memory of the request."""
        self._message.reset()
        self.buffered = 0
