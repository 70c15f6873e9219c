"""The state machine of one connection: handshake, read, respond, close. No method blocks."""

from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from http import HTTPStatus

from msgspec import Struct

from webhook.serving.worker.channel import Channel, ConnectionLost
from webhook.serving.worker.messages import Request, Response, error_response, serialize
from webhook.serving.worker.parser import BODY_LIMIT, RequestParser

DISCARDS_PER_TURN = 16  # reads of what a peer still sends after our close


class Phase(StrEnum):
    """What the connection is waiting for, as the metrics label it."""

    HANDSHAKE = "handshake"
    IDLE = "idle"  # for the next request
    READING = "reading"  # the rest of a request
    WRITING = "writing"  # for the peer, to read the rest of the response
    CLOSING = "closing"  # for the peer, to close after our close
    CLOSED = "closed"


# Seconds for which a connection may stay in each phase.
LIMITS = {
    Phase.HANDSHAKE: 3.0,  # takes milliseconds: 3 s tolerate four lost packets in a row
    Phase.IDLE: 95.0,  # the API server closes after 90 s; an earlier close could truncate a request
    Phase.READING: 10.0,  # the API server's default timeout
    Phase.WRITING: 10.0,
    Phase.CLOSING: 2.0,
    Phase.CLOSED: 0.0,
}


RECEIVING = Phase.HANDSHAKE, Phase.IDLE, Phase.READING


class Peer:
    """The account of an IPv4 address, or of a /64 network of IPv6.

    It has the peer's open connections, their bytes in memory, and the seconds that they have used.
    """

    __slots__ = ("address", "bytes", "connections", "used")

    def __init__(self, address: str) -> None:
        self.address = address
        self.connections = 0
        self.bytes = 0
        self.used = 0.0


class RequestHandler(Struct):
    """Responds to requests."""

    respond: Callable[[Request], Response]
    count: Callable[[int], None] = lambda _status: None  # called with each HTTP status
    body_limit: int = BODY_LIMIT  # bytes; a larger body is rejected
    draining: bool = False  # each response closes its connection


class Connection:
    """One connection, from the TLS handshake on. Methods raise ConnectionLost.

    `phase_started` is a time of the loop's clock.
    """

    def __init__(self, channel: Channel, peer: Peer, handler: RequestHandler, now: float) -> None:
        self.channel, self.peer = channel, peer
        self.phase = Phase.HANDSHAKE if channel.starts_with_handshake else Phase.IDLE
        self.phase_started = now
        self.parser = RequestParser(handler.body_limit)
        # The loop's bookkeeping: the events that epoll waits for, the bytes in the peer's account, the last turn, and
        # the phase in the table, which has changed if `has_moved`.
        self.registered_events = self.counted_bytes = 0
        self.served, self.listed_phase, self.has_moved = now, self.phase, False
        self.answered = False  # whether a request of this connection was ever successful
        self._handler = handler
        self._keep_alive, self._peer_closes = True, False

    @property
    def can_continue(self) -> bool:
        """Whether `advance` can do more without an event of the socket."""
        return self.phase in RECEIVING and self.channel.has_input

    @property
    def bytes_in_memory(self) -> int:
        """The bytes of this connection that are in memory: of its requests, and of a response that is not read yet."""
        return self.parser.buffered + self.channel.buffered

    def advance(self, now: float) -> None:
        """Continue the current phase with the bytes that the socket can read or write."""
        if self.phase is Phase.HANDSHAKE:
            if self.channel.handshake():
                self._enter_phase(Phase.IDLE, now)
                if self.channel.has_input:  # the first request came with the end of the handshake
                    self._read(now)
        elif self.phase is Phase.WRITING:
            self._send(b"", now)
        elif self.phase is Phase.CLOSING:
            self._discard_input()
        elif self.phase is not Phase.CLOSED:  # by the loop, earlier in this turn
            self._read(now)

    def _read(self, now: float) -> None:
        parser = self.parser
        data = self.channel.receive()
        if data:
            parser.feed(data, now)
        elif data is not None:  # the end of the stream
            if not parser.started:
                self.phase = Phase.CLOSED
            parser.end_of_stream()
        if parser.complete:
            self._respond(parser.take(), now)
        elif parser.failure:
            self.send_error(*parser.failure, now)
        elif parser.started and self.phase is Phase.IDLE:
            self._enter_phase(Phase.READING, now)

    def _respond(self, request: Request, now: float) -> None:
        response = self._handler.respond(request)
        self._peer_closes = not request.head.keep_alive and not self.parser.failure
        self._keep_alive = request.head.keep_alive and not self._handler.draining and not self.channel.is_outdated()
        self._handler.count(response.status)
        self.answered |= response.status == HTTPStatus.OK
        head_only = request.head.method == "HEAD"
        self._send(serialize(response, keep_alive=self._keep_alive, head_only=head_only), now)

    def send_error(self, status: HTTPStatus, sentence: str, now: float, *headers: tuple[str, str]) -> None:
        """Send an error and close the connection. What has arrived of a request is dropped."""
        self._keep_alive = False
        self.parser.discard()
        self._handler.count(status)
        self._send(serialize(error_response(status, sentence, headers=headers), keep_alive=False), now)

    def ask_to_retry(self, reason: str, seconds: int, now: float) -> None:
        """Send 503 with `Retry-After`, so that the API server retries after these seconds, over a new connection."""
        self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, reason, now, ("Retry-After", str(seconds)))

    def time_out(self, now: float) -> None:
        """Apply the time limit of the phase: send 408, close, or raise ConnectionLost."""
        if self.phase is Phase.READING:
            self.send_error(HTTPStatus.REQUEST_TIMEOUT, "the request did not arrive in time", now)
        elif self.phase is Phase.IDLE:
            self.start_closing(now)
        elif self.phase is Phase.CLOSING:
            self.phase = Phase.CLOSED
        else:
            raise ConnectionLost(self.phase)

    def start_closing(self, now: float) -> None:
        """Close the sending side, and wait for the peer to close its own."""
        self.channel.half_close()
        self._enter_phase(Phase.CLOSING, now)

    def _send(self, data: bytes, now: float) -> None:
        if not self.channel.send(data, last=not self._keep_alive):
            if self.phase is not Phase.WRITING:
                self._enter_phase(Phase.WRITING, now)
        elif self._keep_alive:
            self._enter_phase(Phase.IDLE, now)
        elif self._peer_closes:  # it sends nothing more (RFC 9112, 9.6), so no reset overtakes the response
            self._enter_phase(Phase.CLOSED, now)
        else:
            self.start_closing(now)

    def _discard_input(self) -> None:
        with suppress(ConnectionLost):  # the peer may also reset: the response was sent
            for _ in range(DISCARDS_PER_TURN):
                if not (data := self.channel.receive()):
                    break
            if data != b"":  # not the end of the stream: continue in a later turn
                return
        self.phase = Phase.CLOSED

    def _enter_phase(self, phase: Phase, now: float) -> None:
        self.phase, self.phase_started, self.has_moved = phase, now, True
