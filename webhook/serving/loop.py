"""Every connection of the TLS port in one thread: nobody is waited for, and what takes too long is ended.

Between two turns lies one poll. A turn serves the requests that are there, then what has only begun: handshakes, new
connections. Reviews are answered right here; what may have to wait for the API server goes to a thread.
"""

import selectors
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, islice, takewhile
from operator import attrgetter

import structlog

from webhook.serving.channel import ConnectionLost, OutOfDescriptors, accept
from webhook.serving.connection import Connection, Phase, RequestHandler
from webhook.serving.decision_pool import DecisionPool
from webhook.serving.exchange import Request

CONNECTIONS = 2048  # at most; an API server keeps 25
HELD = 64 * 1024 * 1024  # bytes of unfinished requests, of all connections together
BEGUN = 16  # handshakes, new connections and ends in a turn: it takes milliseconds, and no request waits for longer
LATEST = 1.0  # seconds between two turns, at the most
STUCK = 10.0  # seconds without a turn: something hangs, for the API server gives up a call after as long
SOON = 0.05  # the same while it drains
DRAIN = 15.0  # seconds; with a preStop wait of 5 s before it, within Kubernetes' grace period of 30 s
QUIET = 1.0  # seconds without a request: nobody is sent here any more
FAREWELL = 0.5  # seconds for the last answers to get out
CAUSES = "tls", "reset", "hello", "writing", "deciding", "evicted", "error"  # why a connection is ended

log = structlog.get_logger("webhook")


class Loop:
    """Serves one listener. `context` makes TLS for a new connection, None while there is no certificate.

    `on_turn` is called once a turn; `last_turn` is when the last turn began. `dropped` counts the connections that
    failed or were evicted, by cause. Only `drain` may be called from elsewhere.
    """

    def __init__(
        self,
        listener: socket.socket,
        context: Callable[[], ssl.SSLContext | None],
        answering: RequestHandler,
        on_turn: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listener, self._context, self._answering = listener, context, answering
        self._turned, self._clock = on_turn, clock
        # In each phase those come first that have been in it for longest.
        self._phases: dict[Phase, dict[Connection, None]] = {phase: {} for phase in Phase}
        self._more: dict[Connection, None] = {}
        self._deciding = DecisionPool(answering, self._ring)
        self._held, self._hurried = 0, False
        self._told_since = self._stirred = self.last_turn = clock()
        self.dropped = Counter(dict.fromkeys(CAUSES, 0))
        self._alarm, self._bell = socket.socketpair()  # a byte into the one ends the poll, which listens at the other
        self._alarm.setblocking(False)
        self._selector = selectors.DefaultSelector()
        for sock, heard in ((listener, self._accept), (self._bell, partial(self._bell.recv, 4096))):
            sock.setblocking(False)
            self._selector.register(sock, selectors.EVENT_READ, heard)

    def stuck(self) -> float:
        """Return for how many seconds there has been no turn, 0 for fewer than STUCK. Any thread may ask."""
        since = self._clock() - self.last_turn
        return since if since > STUCK else 0.0

    def connections(self) -> int:
        """Return how many connections are open."""
        return sum(map(len, self._phases.values()))

    @property
    def draining(self) -> bool:
        """Whether we were told to end."""
        return self._answering.draining

    def drain(self) -> None:
        """Answer what still comes, and end; told twice, end at once. Any thread and any signal may call it."""
        if not self.draining:
            self._told_since = self._clock()
        self._hurried, self._answering.draining = self.draining, True
        self._ring()

    def run(self) -> None:
        """Serve until drained."""
        while not self._is_drained():
            self.run_once()
        self._selector.unregister(self._listener)
        self._listener.close()
        self.run_once()  # for what has come just now
        self._give_back()
        last = self._clock() + FAREWELL
        while (self._phases[Phase.WRITING] or self._phases[Phase.LEAVING]) and self._clock() < last:
            self.run_once()
        for connection in list(self._open(*Phase)):
            connection.channel.half_close()
            self._forget(connection, connection.channel.close)
        self._deciding.end()
        for thing in (self._selector, self._alarm, self._bell):
            thing.close()

    def run_once(self) -> None:
        """Poll once, and do what there is to do."""
        found = [key.data for key, _ in self._selector.select(self._patience())]
        self.last_turn = now = self._clock()
        self._turned()
        self._serve([each for each in found if isinstance(each, Connection)])
        for heard in found:
            if not isinstance(heard, Connection):
                heard()
        for phase in Phase:
            late = takewhile(lambda each: each.since + each.phase.limit <= now, self._open(phase))
            for connection in list(islice(late, BEGUN)):
                self._attend(connection, connection.time_out)

    def _serve(self, peers: list[Connection]) -> None:
        more, self._more = self._more, {}
        for connection in more:
            self._attend(connection, connection.answer_next)
        for connection in peers:
            if connection.phase is not Phase.HELLO:
                self._attend(connection, connection.advance)
        while self._deciding.decided:
            connection, request, answer = self._deciding.decided.popleft()
            # It was not given up meanwhile; nor answered for lack of a thread, and found one later all the same.
            if connection.phase is Phase.DECIDING and request is connection.pending:
                self._attend(connection, partial(connection.answer, request, answer))
        for connection in islice((each for each in peers if each.phase is Phase.HELLO), BEGUN):
            self._attend(connection, connection.advance)

    def _patience(self) -> float:
        if self._more or self._deciding.decided:
            return 0.0
        oldest = (next(iter(members)) for members in self._phases.values() if members)
        due = min((each.since + each.phase.limit for each in oldest), default=self.last_turn + LATEST)
        return max(0.0, min(due - self._clock(), SOON if self.draining else LATEST))

    def _attend(self, connection: Connection, act: Callable[[float], Request | None]) -> None:
        """Have a connection do something, and note what has become of it."""
        phase, since = connection.phase, connection.since
        try:
            request = act(self.last_turn)
        except ConnectionLost as gone:
            return self._drop(connection, str(gone))
        except Exception:
            log.exception("a connection failed")
            return self._drop(connection, "error")
        if connection.phase is Phase.GONE:
            return self._forget(connection, connection.channel.close)
        if (connection.phase, connection.since) != (phase, since):
            del self._phases[phase][connection]
            self._phases[connection.phase][connection] = None
            self._stirred = self.last_turn
        if connection.has_next_request:
            self._more[connection] = None
        self._count_held(connection, connection.parser.buffered + (len(request.body) if request else 0))
        self._watch(connection, 0 if connection.has_next_request or request else connection.channel.wants)
        if request:
            self._deciding.take(connection, request)
        return None

    def _watch(self, connection: Connection, events: int) -> None:
        if events != connection.registered_events:
            if connection.registered_events:
                self._selector.unregister(connection.channel.sock)
            if events:
                self._selector.register(connection.channel.sock, events, connection)
            connection.registered_events = events

    def _count_held(self, connection: Connection, held: int) -> None:
        self._held += held - connection.buffered
        connection.buffered = held
        self._answering.overloaded = self._held > HELD

    def _drop(self, connection: Connection, cause: str) -> None:
        self.dropped[cause] += 1
        log.debug("a connection was ended", peer=connection.peer, cause=cause)
        # Who went by itself may still read what it was sent; whoever is ended by us is owed nothing more.
        by_itself = cause in ("tls", "reset")
        self._forget(connection, connection.channel.close if by_itself else connection.channel.reset)

    def _forget(self, connection: Connection, close: Callable[[], None]) -> None:
        for members in self._phases.values():
            members.pop(connection, None)
        self._more.pop(connection, None)
        self._count_held(connection, 0)
        self._watch(connection, 0)
        connection.phase = Phase.GONE
        close()

    def _accept(self) -> None:
        for number in range(BEGUN):
            try:
                accepted = accept(self._listener, self._context)
            except ConnectionLost as gone:
                self.dropped[str(gone)] += 1
                continue
            except OutOfDescriptors:  # which Linux says before it looks whether somebody waits
                return self._evict() if number == 0 else None
            if accepted is None:
                return None
            if self.connections() >= CONNECTIONS:
                self._evict()
            connection = Connection(*accepted, self._answering, self.last_turn)
            self._phases[connection.phase][connection] = None
            self._watch(connection, connection.channel.wants)
            self._stirred = self.last_turn  # whoever was let in is heard to the end
        return None

    def _evict(self) -> None:
        """Make room for a new connection: end one that leaves already, else the one that has waited for longest.

        Not the idle before the stuck: beside many who never go on, whoever shook hands just now would be next to go.
        """
        first = (next(self._open(phase), None) for phase in (Phase.IDLE, Phase.HELLO, Phase.READING, Phase.WRITING))
        oldest = min(filter(None, first), key=attrgetter("since"), default=None)
        if connection := next(self._open(Phase.LEAVING), oldest):
            self._drop(connection, "evicted")

    def _open(self, *phases: Phase) -> Iterator[Connection]:
        return chain.from_iterable(self._phases[phase] for phase in phases)

    def _is_drained(self) -> bool:
        if not self.draining:
            return False
        now = self._clock()
        busy = any(self._open(Phase.DECIDING, Phase.WRITING)) or self._more or self._deciding.decided
        is_quiet = not busy and now - max(self._stirred, self._told_since) > QUIET
        return self._hurried or is_quiet or now - self._told_since > DRAIN

    def _give_back(self) -> None:
        for connection in list(self._open(Phase.READING, Phase.DECIDING)):
            self._attend(connection, connection.ask_to_retry)

    def _ring(self) -> None:
        with suppress(OSError):  # full: it rings already; closed: nobody listens any more
            self._alarm.send(b".")
