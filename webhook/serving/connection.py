"""One peer of the TLS port: it is read, answered, and left, and never waited for."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus

from webhook.serving.channel import Channel, ConnectionLost
from webhook.serving.exchange import Request, Response, error_response, serialize
from webhook.serving.request_parser import CONTINUE, RequestParser

RECORDS = 4  # of one peer in a turn: others wait too, and a record of tiny chunks takes a millisecond
SMALL = 16 * 1024  # bytes; a VM's review has 10 KiB, and no crowd of others keeps it out


class Phase(Enum):
    """What is waited for, and for how many seconds at the most."""

    HELLO = "hello", 3.0  # the TLS handshake; it takes milliseconds, and this is time for four lost packets in a row
    IDLE = "idle", 95.0  # a request; the API server closes after 90 s, and whoever closes first may cut a request off
    READING = "reading", 10.0  # the rest of a request: the API server's default timeout
    DECIDING = "deciding", 30.0  # a thread's answer; all its reads together are bounded by far less
    WRITING = "writing", 10.0  # room for the rest of the answer
    LEAVING = "leaving", 2.0  # the other side's end, after ours
    GONE = "gone", 0.0

    def __init__(self, label: str, limit: float) -> None:
        self.label, self.limit = label, limit


@dataclass(slots=True)
class RequestHandler:
    """What answers requests: `inline` where nothing has to be waited for, else `threaded`. `count` hears each status.

    While `draining` each answer is the last one of its connection; while `overloaded` nobody may begin a large request.
    """

    inline: Callable[[Request], Response | None]
    threaded: Callable[[Request, str], Response]
    count: Callable[[int], None]
    draining: bool = False
    overloaded: bool = False


class Connection:
    """A peer, from its TLS hello on. Each method does what can be done now, and may return a request for a thread.

    `since` is when its phase began. `more` says that its next request is there already: it waits for the next turn, and
    so do others. `awaited` is the request that a thread decides on. Methods raise Gone.
    """

    def __init__(self, channel: Channel, peer: str, answering: RequestHandler, now: float) -> None:
        self.channel, self.peer = channel, peer
        self.phase, self.since, self.has_next_request = Phase.HELLO, now, False
        self.parser = RequestParser()
        self.pending: Request | None = None
        self.registered_events = self.buffered = (
            0  # the loop's notes: what the selector looks for, bytes that it has counted
        )
        self._answering = answering
        self._keep = True

    def advance(self, now: float) -> Request | None:
        """Do what the socket is ready for."""
        match self.phase:
            case Phase.HELLO:
                if self.channel.handshake():
                    self._enter(Phase.IDLE, now)
            case Phase.WRITING:
                self._send(b"", now)
            case Phase.LEAVING:
                self._hear_out()
            case _:
                return self._read(now)
        return None

    def answer_next(self, now: float) -> Request | None:
        """Answer the next request, or say why nothing more is answered on this connection."""
        self.has_next_request = False
        if not self.parser.complete:
            self.send_error(*(self.parser.failure or (HTTPStatus.INTERNAL_SERVER_ERROR, "the webhook failed")), now)
            return None
        request = self.parser.take(now)
        answer = self._answering.inline(request)
        if answer is None:
            self.pending = request
            self._enter(Phase.DECIDING, now)
            return request
        self.answer(request, answer, now)
        return None

    def answer(self, request: Request, answer: Response, now: float) -> None:
        """Answer a request."""
        self.pending = None
        self._keep = request.keep and not self._answering.draining
        self._answering.count(answer.status)
        self._send(serialize(answer, keep=self._keep, head_only=request.method == "HEAD"), now)

    def send_error(self, status: HTTPStatus, sentence: str, now: float, *headers: tuple[str, str]) -> None:
        """Answer with an error, and leave."""
        self._keep = False
        self._answering.count(status)
        self._send(serialize(error_response(status, sentence, headers=headers), keep=False), now)

    def ask_to_retry(self, now: float) -> None:
        """Have the API server ask another replica: it calls again at once, and on a new connection."""
        self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "this replica is ending", now, ("Retry-After", "0"))

    def time_out(self, now: float) -> None:
        """End what has taken too long."""
        if self.phase is Phase.READING:
            self.send_error(HTTPStatus.REQUEST_TIMEOUT, "the request did not come in time", now)
        elif self.phase is Phase.IDLE:
            self._leave(now)
        elif self.phase is Phase.LEAVING:
            self.phase = Phase.GONE
        else:
            raise ConnectionLost(self.phase.label)

    def _read(self, now: float) -> Request | None:
        parser = self.parser
        for _ in range(RECORDS):
            data = self.channel.receive()
            if data is None:
                break
            if not data and not parser.started:
                self.phase = Phase.GONE
                return None
            parser.feed(data, now) if data else parser.end_of_stream()
            if parser.complete or parser.failure:
                return self.answer_next(now)
        if parser.buffered > SMALL and self._answering.overloaded:
            why = "too much of other requests is held already"
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, why, now, ("Retry-After", "1"))
            return None
        if parser.started and self.phase is Phase.IDLE:
            self._enter(Phase.READING, now)
        if parser.expects_continue():
            self.channel.send(CONTINUE)
        return None

    def _send(self, data: bytes, now: float) -> None:
        if not self.channel.send(data):
            if self.phase is not Phase.WRITING:
                self._enter(Phase.WRITING, now)
        elif self._keep:
            self._enter(Phase.READING if self.parser.started else Phase.IDLE, now)
            self.has_next_request = self.parser.complete or self.parser.failure is not None
        else:
            self._leave(now)

    def _leave(self, now: float) -> None:
        self.channel.half_close()
        self._enter(Phase.LEAVING, now)

    def _hear_out(self) -> None:
        with suppress(ConnectionLost):  # it leaves as it likes
            for _ in range(RECORDS):
                if not (data := self.channel.receive()):
                    break
            if data != b"":  # there may be more, in another turn
                return
        self.phase = Phase.GONE

    def _enter(self, phase: Phase, now: float) -> None:
        self.phase, self.since = phase, now
