"""The state machine of one HTTPS connection: handshake, read, respond, close. No method blocks."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus

from webhook.serving.channel import Channel, ConnectionLost
from webhook.serving.exchange import Head, Request, Response, error_response, serialize
from webhook.serving.gunicorn_parser import BODY_LIMIT
from webhook.serving.large_review import INLINE_BODY_LIMIT
from webhook.serving.request_parser import CONTINUE, RequestParser

# Per connection, because other connections wait: 16 KiB of tiny chunks take 1 ms, a record of one byte takes 10 µs.
BYTES_PER_TURN = 64 * 1024
RECORDS_PER_TURN = 16
SMALL_REQUEST = 16 * 1024  # bytes; the review of a VM has 10 KiB and is accepted even during overload


class Phase(Enum):
    """What the connection is waiting for: the label for metrics and the limit in seconds."""

    HANDSHAKE = "hello", 3.0  # the TLS handshake, which takes milliseconds: 3 s tolerate four lost packets in a row
    IDLE = "idle", 95.0  # the next request: the API server closes after 90 s; an earlier close could truncate a request
    READING = "reading", 10.0  # the rest of a request: 10 s is the API server's default timeout
    DECIDING = "deciding", 30.0  # the response from a thread: its API reads together are limited to far less
    WRITING = "writing", 10.0  # the peer, to read the rest of the response
    CLOSING = "leaving", 2.0  # the peer, to close after our close
    CLOSED = "gone", 0.0

    def __init__(self, label: str, limit: float) -> None:
        self.label, self.limit = label, limit


def is_large(request: Request) -> bool:
    """Return whether a review is large: a decision on 8 MiB takes much memory, and two would reach the limit."""
    return len(request.body) > INLINE_BODY_LIMIT


RECEIVING = Phase.HANDSHAKE, Phase.IDLE, Phase.READING


@dataclass(slots=True)
class RequestHandler:
    """Responds to requests: `inline` on the loop, or `threaded` if `inline` returns None.

    `count` is called with each HTTP status. Requests for which `one_at_a_time` returns True share one thread. A body
    over `body_limit` bytes is rejected. While `draining`, each response closes its connection.
    """

    inline: Callable[[Request], Response | None]
    threaded: Callable[[Request, str], Response]
    count: Callable[[int], None]
    one_at_a_time: Callable[[Request], bool] = is_large
    body_limit: int = BODY_LIMIT
    draining: bool = False


class Connection:
    """One connection, from the TLS handshake on. Methods never block, and may return a request for a thread.

    `phase_started` is a time of the loop's clock. `has_next_request` means that the next request is already buffered;
    `advance` serves it in the loop's next turn. `pending` is the request that a thread decides. Methods raise
    ConnectionLost.
    """

    def __init__(self, channel: Channel, peer: str, handler: RequestHandler, now: float) -> None:
        self.channel, self.peer = channel, peer
        self.phase = Phase.HANDSHAKE if channel.starts_with_handshake else Phase.IDLE
        self.phase_started, self.has_next_request = now, False
        self.parser = RequestParser(handler.body_limit)
        self.pending: Request | None = None
        self._result: tuple[Head, Response | None] | None = None  # of the request that a thread has decided
        # The loop's bookkeeping: the events in the selector, the bytes counted toward its limit, the last turn.
        self.registered_events = self.held = 0
        self.served = now
        self._handler = handler
        self._keep_alive = True

    @property
    def can_continue(self) -> bool:
        """Whether `advance` can do more without an event of the socket."""
        if self.phase is Phase.DECIDING:
            return self._result is not None
        return self.has_next_request or (self.phase in RECEIVING and self.channel.has_input)

    @property
    def bytes_in_memory(self) -> int:
        """The bytes of this connection that are in memory: of its requests, and of a response that is not read yet."""
        return self.parser.buffered + self.channel.held + (len(self.pending.body) if self.pending else 0)

    def advance(self, now: float) -> Request | None:
        """Continue the current phase with the bytes that the socket can read or write."""
        if self.has_next_request:
            return self._respond_to_next(now)
        match self.phase:
            case Phase.HANDSHAKE:
                if self.channel.handshake():
                    self._enter_phase(Phase.IDLE, now)
            case Phase.WRITING:
                self._send(b"", now)
            case Phase.DECIDING if self._result:
                self._send_result(*self._result, now)
            case Phase.CLOSING:
                self._discard_input()
            case Phase.CLOSED:  # by the loop, earlier in this turn
                return None
            case _:
                return self._read(now)
        return None

    def _respond_to_next(self, now: float) -> Request | None:
        """Respond to the buffered request, or send the parser's error and close."""
        self.has_next_request = False
        if not self.parser.complete:
            self.send_error(*(self.parser.failure or (HTTPStatus.INTERNAL_SERVER_ERROR, "internal error")), now)
            return None
        request = self.parser.take(now)
        response = self._handler.inline(request)
        if response is None:
            self.pending = request
            self._enter_phase(Phase.DECIDING, now)
            return request
        self._respond(request.head, response, now)
        return None

    def keep_result(self, request: Request, response: Response | None) -> bool:
        """Keep the response of a thread for `advance`; None means that the peer has closed the connection.

        Return false if the connection has closed, or if the request has already got another response.
        """
        if request is not self.pending:
            return False
        self.pending, self._result = None, (request.head, response)
        return True

    def _send_result(self, head: Head, response: Response | None, now: float) -> None:
        self._result = None
        if response is None:
            raise ConnectionLost("reset")
        self._respond(head, response, now)

    def _respond(self, head: Head, response: Response, now: float) -> None:
        """Send the response to the request with this head."""
        self._keep_alive = head.keep_alive and not self._handler.draining and not self.channel.outdated
        self._handler.count(response.status)
        self._send(serialize(response, keep_alive=self._keep_alive, head_only=head.method == "HEAD"), now)

    def send_error(self, status: HTTPStatus, sentence: str, now: float, *headers: tuple[str, str]) -> None:
        """Send an error and close the connection. What has arrived of a request is dropped."""
        self._keep_alive = self.has_next_request = False
        self.pending = self._result = None
        self.parser = RequestParser(self._handler.body_limit)
        self._handler.count(status)
        self._send(serialize(error_response(status, sentence, headers=headers), keep_alive=False), now)

    def ask_to_retry(self, now: float) -> None:
        """Send 503 with `Retry-After: 0`, so that the API server retries immediately, over a new connection.

        The Service routes the new connection to another replica.
        """
        self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "this replica is shutting down", now, ("Retry-After", "0"))

    def reject_for_memory(self, now: float) -> None:
        """Send 503 with `Retry-After`, so that the API server retries in a second."""
        reason = "too many requests are buffered"
        self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, reason, now, ("Retry-After", "1"))

    def time_out(self, now: float) -> None:
        """Apply the time limit of the phase: send 408, close, or raise ConnectionLost."""
        if self.phase is Phase.READING:
            self.send_error(HTTPStatus.REQUEST_TIMEOUT, "the request did not arrive in time", now)
        elif self.phase is Phase.IDLE:
            self.start_closing(now)
        elif self.phase is Phase.CLOSING:
            self.phase = Phase.CLOSED
        else:
            raise ConnectionLost(self.phase.label)

    def start_closing(self, now: float) -> None:
        """Close the sending side, and wait for the peer to close its own."""
        self.channel.half_close()
        self._enter_phase(Phase.CLOSING, now)

    def _read(self, now: float) -> Request | None:
        parser, read = self.parser, 0
        for _ in range(RECORDS_PER_TURN):
            data = self.channel.receive()
            if data is None:
                break
            if not data and not parser.started:
                self.phase = Phase.CLOSED
                return None
            parser.feed(data, now) if data else parser.end_of_stream()
            if parser.complete or parser.failure:
                return self._respond_to_next(now)
            read += len(data)
            if read >= BYTES_PER_TURN:
                break
        if parser.started and self.phase is Phase.IDLE:
            self._enter_phase(Phase.READING, now)
        if parser.expects_continue():
            self.channel.send(CONTINUE)
        return None

    def _send(self, data: bytes, now: float) -> None:
        if not self.channel.send(data):
            if self.phase is not Phase.WRITING:
                self._enter_phase(Phase.WRITING, now)
        elif self._keep_alive:
            self._enter_phase(Phase.READING if self.parser.started else Phase.IDLE, now)
            self.has_next_request = self.parser.complete or self.parser.failure is not None
        else:
            self.start_closing(now)

    def _discard_input(self) -> None:
        with suppress(ConnectionLost):  # the peer may also reset: the response was sent
            for _ in range(RECORDS_PER_TURN):
                if not (data := self.channel.receive()):
                    break
            if data != b"":  # not the end of the stream: continue in a later turn
                return
        self.phase = Phase.CLOSED

    def _enter_phase(self, phase: Phase, now: float) -> None:
        self.phase, self.phase_started = phase, now
