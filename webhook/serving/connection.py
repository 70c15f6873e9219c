"""One peer of the TLS port: it is read, answered, and left, and never waited for."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus

from webhook.serving.channel import Channel, Gone
from webhook.serving.exchange import Answer, Request, refusal, written
from webhook.serving.request_parser import CONTINUE, Reader

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
class Answering:
    """What answers requests: `at_once` where nothing has to be waited for, else `in_thread`. `count` hears each status.

    While `draining` each answer is the last one of its connection; while `crowded` nobody may begin a large request.
    """

    at_once: Callable[[Request], Answer | None]
    in_thread: Callable[[Request, str], Answer]
    count: Callable[[int], None]
    draining: bool = False
    crowded: bool = False


class Connection:
    """A peer, from its TLS hello on. Each method does what can be done now, and may return a request for a thread.

    `since` is when its phase began. `more` says that its next request is there already: it waits for the next turn, and
    so do others. `awaited` is the request that a thread decides on. Methods raise Gone.
    """

    def __init__(self, channel: Channel, peer: str, answering: Answering, now: float) -> None:
        self.channel, self.peer = channel, peer
        self.phase, self.since, self.more = Phase.HELLO, now, False
        self.reader = Reader()
        self.awaited: Request | None = None
        self.watched = self.held = 0  # the loop's notes: what the selector looks for, bytes that it has counted
        self._answering = answering
        self._keep = True

    def go_on(self, now: float) -> Request | None:
        """Do what the socket is ready for."""
        match self.phase:
            case Phase.HELLO:
                if self.channel.shake_hands():
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
        self.more = False
        if not self.reader.complete:
            self.refuse(*(self.reader.failure or (HTTPStatus.INTERNAL_SERVER_ERROR, "the webhook failed")), now)
            return None
        request = self.reader.take(now)
        answer = self._answering.at_once(request)
        if answer is None:
            self.awaited = request
            self._enter(Phase.DECIDING, now)
            return request
        self.answer(request, answer, now)
        return None

    def answer(self, request: Request, answer: Answer, now: float) -> None:
        """Answer a request."""
        self.awaited = None
        self._keep = request.keep and not self._answering.draining
        self._answering.count(answer.status)
        self._send(written(answer, keep=self._keep, head_only=request.method == "HEAD"), now)

    def refuse(self, status: HTTPStatus, sentence: str, now: float, *headers: tuple[str, str]) -> None:
        """Answer with an error, and leave."""
        self._keep = False
        self._answering.count(status)
        self._send(written(refusal(status, sentence, headers=headers), keep=False), now)

    def give_back(self, now: float) -> None:
        """Have the API server ask another replica: it calls again at once, and on a new connection."""
        self.refuse(HTTPStatus.SERVICE_UNAVAILABLE, "this replica is ending", now, ("Retry-After", "0"))

    def give_up(self, now: float) -> None:
        """End what has taken too long."""
        if self.phase is Phase.READING:
            self.refuse(HTTPStatus.REQUEST_TIMEOUT, "the request did not come in time", now)
        elif self.phase is Phase.IDLE:
            self._leave(now)
        elif self.phase is Phase.LEAVING:
            self.phase = Phase.GONE
        else:
            raise Gone(self.phase.label)

    def _read(self, now: float) -> Request | None:
        reader = self.reader
        for _ in range(RECORDS):
            data = self.channel.receive()
            if data is None:
                break
            if not data and not reader.begun:
                self.phase = Phase.GONE
                return None
            reader.feed(data, now) if data else reader.break_off()
            if reader.complete or reader.failure:
                return self.answer_next(now)
        if reader.held > SMALL and self._answering.crowded:
            why = "too much of other requests is held already"
            self.refuse(HTTPStatus.SERVICE_UNAVAILABLE, why, now, ("Retry-After", "1"))
            return None
        if reader.begun and self.phase is Phase.IDLE:
            self._enter(Phase.READING, now)
        if reader.wants_to_go_on():
            self.channel.send(CONTINUE)
        return None

    def _send(self, data: bytes, now: float) -> None:
        if not self.channel.send(data):
            if self.phase is not Phase.WRITING:
                self._enter(Phase.WRITING, now)
        elif self._keep:
            self._enter(Phase.READING if self.reader.begun else Phase.IDLE, now)
            self.more = self.reader.complete or self.reader.failure is not None
        else:
            self._leave(now)

    def _leave(self, now: float) -> None:
        self.channel.say_goodbye()
        self._enter(Phase.LEAVING, now)

    def _hear_out(self) -> None:
        with suppress(Gone):  # it leaves as it likes
            for _ in range(RECORDS):
                if not (data := self.channel.receive()):
                    break
            if data != b"":  # there may be more, in another turn
                return
        self.phase = Phase.GONE

    def _enter(self, phase: Phase, now: float) -> None:
        self.phase, self.since = phase, now
