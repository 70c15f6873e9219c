"""An incremental HTTP/1.1 request parser with limits on head, body and framing."""

from http import HTTPStatus

from webhook.serving.exchange import Request
from webhook.serving.gunicorn_parser import BODY_BROKEN, BODY_LIMIT, HEAD_BROKEN, GunicornParser, Rejected
from webhook.serving.known_heads import KnownHeadParser, parser_for

HEAD_LIMIT = 64 * 1024  # bytes; the API server sends less than 1 KB
EMPTY_LINE = b"\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class RequestParser:
    """Parses the requests of one connection, one at a time.

    `started` means that bytes of a request have arrived, `complete` that all have. `buffered` is the number of bytes of
    the request so far. `failure` is the HTTP status and error sentence for the bytes after the last complete request.
    """

    __slots__ = ("_body_limit", "_parser", "_received", "_was_asked_to_continue", "buffered", "failure", "started")

    def __init__(self, body_limit: int = BODY_LIMIT) -> None:
        self.failure: tuple[HTTPStatus, str] | None = None
        self._body_limit = body_limit
        self._reset()

    def _reset(self) -> None:
        self._parser: GunicornParser | KnownHeadParser | None = None  # of the current request
        self.buffered = 0
        self._received = 0.0
        self.started = self._was_asked_to_continue = False

    @property
    def complete(self) -> bool:
        """Whether `take` can return a request."""
        parser = self._parser
        return parser is not None and parser.is_complete and self.failure is None

    def feed(self, data: bytes, now: float) -> None:
        """Parse received bytes; `now` is in seconds of the loop's clock. Sets `failure` if they are invalid."""
        if not self.started:
            self.started, self._received = True, now
        self.buffered += len(data)
        parser, rest = (self._parser, data) if self._parser else parser_for(data, self._body_limit)
        self._parser = parser
        try:
            parser.feed(rest)
        except Rejected as error:
            self.failure = error.args
        # An empty line before a request is not part of it (RFC 9112, 2.2). The parser rejects a line without a CR.
        if self.buffered == len(EMPTY_LINE) and data.endswith(b"\n") and not self.failure:
            self.started, self.buffered = False, 0
        # Limit the bytes that are not body. Chunks of 128 bytes or more never reach the limit.
        framing = self.buffered - len(parser.body)
        if framing > HEAD_LIMIT + len(parser.body) // 16 and not (self.complete or self.failure):
            self.failure = HTTPStatus.BAD_REQUEST, BODY_BROKEN if parser.has_head else HEAD_BROKEN

    def end_of_stream(self) -> None:
        """Record the end of the stream: an incomplete request becomes a failure."""
        if self.started and not self.complete:
            self.failure = HTTPStatus.BAD_REQUEST, BODY_BROKEN

    def expects_continue(self) -> bool:
        """Return whether the peer waits for `100 Continue` before it sends the body. True only once per request."""
        parser = self._parser
        if parser is None or not parser.expects_continue or self._was_asked_to_continue:
            return False
        self._was_asked_to_continue = True
        return not parser.body and not self.complete

    def take(self, now: float) -> Request:
        """Return the complete request, and start the next one with the bytes after it."""
        parser = self._parser
        if parser is None or not parser.is_complete:
            raise ValueError("no request is complete")
        request = Request(parser.head, bytes(parser.body), self._received)
        self._reset()
        if rest := parser.remaining():
            self.feed(rest, now)
        return request
