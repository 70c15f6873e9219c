"""The event loop of the TLS port: one thread serves all connections without blocking and enforces time limits.

A turn is one iteration: poll, serve requests, then continue handshakes and accept connections. Reviews are decided on
the loop; a review that may have to wait for the API server goes to a thread.
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

MAX_CONNECTIONS = 2048  # an API server keeps 25 open
MAX_BUFFERED = 64 * 1024 * 1024  # bytes of unfinished requests, over all connections
MAX_PER_TURN = 16  # of handshakes, new connections and timeouts: they take milliseconds, so requests wait no longer
POLL_TIMEOUT = 1.0  # seconds; the longest time between two turns
STALLED_AFTER = 10.0  # seconds without a turn; the API server gives up a call after the same time
DRAIN_POLL_TIMEOUT = 0.05  # the same while draining
DRAIN_TIMEOUT = 15.0  # seconds; with a preStop wait of 5 s before it, within Kubernetes' grace period of 30 s
QUIET_PERIOD = 1.0  # seconds without a request; then the Service no longer routes requests to this replica
FLUSH_TIMEOUT = 0.5  # seconds to send the last responses
DROP_CAUSES = "tls", "reset", "hello", "writing", "deciding", "evicted", "error"  # label values of connections_dropped

log = structlog.get_logger("webhook")


class Loop:
    """Serves one listener. `tls_context` returns None while there is no certificate.

    `on_turn` is called once per turn; `last_turn` is when the last turn began. `dropped` counts the connections that
    failed or were evicted, by cause. Of the methods that change state, other threads may call only `drain`.
    """

    def __init__(
        self,
        listener: socket.socket,
        tls_context: Callable[[], ssl.SSLContext | None],
        handler: RequestHandler,
        on_turn: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listener, self._tls_context, self._handler = listener, tls_context, handler
        self._on_turn, self._clock = on_turn, clock
        # Each inner dict is ordered: the connection that entered the phase first comes first.
        self._by_phase: dict[Phase, dict[Connection, None]] = {phase: {} for phase in Phase}
        self._pipelined: dict[Connection, None] = {}
        self._pool = DecisionPool(handler, self._wake)
        self._buffered, self._drain_forced = 0, False
        self._drain_started = self._last_activity = self.last_turn = clock()
        self.dropped = Counter(dict.fromkeys(DROP_CAUSES, 0))
        self._wake_w, self._wake_r = socket.socketpair()  # a byte written to _wake_w ends the poll
        self._wake_w.setblocking(False)
        self._selector = selectors.DefaultSelector()
        for sock, callback in ((listener, self._accept), (self._wake_r, partial(self._wake_r.recv, 4096))):
            sock.setblocking(False)
            self._selector.register(sock, selectors.EVENT_READ, callback)

    def stalled_seconds(self) -> float:
        """Return the seconds since the last turn, or 0 up to STALLED_AFTER. Any thread may call it."""
        elapsed = self._clock() - self.last_turn
        return elapsed if elapsed > STALLED_AFTER else 0.0

    def connections(self) -> int:
        """Return the number of open connections."""
        return sum(map(len, self._by_phase.values()))

    @property
    def draining(self) -> bool:
        """Whether the loop is shutting down."""
        return self._handler.draining

    def drain(self) -> None:
        """Shut down gracefully; a second call forces it. Any thread and any signal handler may call it."""
        if not self.draining:
            self._drain_started = self._clock()
        self._drain_forced, self._handler.draining = self.draining, True
        self._wake()

    def run(self) -> None:
        """Serve until drained, then close all connections."""
        while not self._is_drained():
            self.run_once()
        self._selector.unregister(self._listener)
        self._listener.close()
        self.run_once()  # serve the requests that have just arrived
        self._reject_unfinished()
        deadline = self._clock() + FLUSH_TIMEOUT
        while (self._by_phase[Phase.WRITING] or self._by_phase[Phase.CLOSING]) and self._clock() < deadline:
            self.run_once()
        for connection in list(self._in_phases(*Phase)):
            connection.channel.half_close()
            self._remove(connection, connection.channel.close)
        self._pool.shutdown()
        for resource in (self._selector, self._wake_w, self._wake_r):
            resource.close()

    def run_once(self) -> None:
        """Run one turn."""
        ready = [key.data for key, _ in self._selector.select(self._poll_timeout())]
        self.last_turn = now = self._clock()
        self._on_turn()
        self._serve([each for each in ready if isinstance(each, Connection)])
        for callback in ready:
            if not isinstance(callback, Connection):
                callback()
        for phase in Phase:
            expired = takewhile(lambda each: each.phase_started + each.phase.limit <= now, self._in_phases(phase))
            for connection in list(islice(expired, MAX_PER_TURN)):
                self._perform(connection, connection.time_out)

    def _serve(self, selected: list[Connection]) -> None:
        more, self._pipelined = self._pipelined, {}
        for connection in more:
            self._perform(connection, connection.respond_to_next)
        for connection in selected:
            if connection.phase is not Phase.HANDSHAKE:
                self._perform(connection, connection.advance)
        while self._pool.results:
            connection, request, response = self._pool.results.popleft()
            # Skip a result if its connection has closed, or if its request already got 503 for lack of a thread.
            if connection.phase is Phase.DECIDING and request is connection.pending:
                self._perform(connection, partial(connection.respond, request, response))
        for connection in islice((each for each in selected if each.phase is Phase.HANDSHAKE), MAX_PER_TURN):
            self._perform(connection, connection.advance)

    def _poll_timeout(self) -> float:
        if self._pipelined or self._pool.results:
            return 0.0
        oldest = (next(iter(members)) for members in self._by_phase.values() if members)
        deadline = min(
            (each.phase_started + each.phase.limit for each in oldest), default=self.last_turn + POLL_TIMEOUT
        )
        return max(0.0, min(deadline - self._clock(), DRAIN_POLL_TIMEOUT if self.draining else POLL_TIMEOUT))

    def _perform(self, connection: Connection, action: Callable[[float], Request | None]) -> None:
        """Run one method of a connection, then update the bookkeeping and the selector."""
        before = connection.phase, connection.phase_started
        try:
            request = action(self.last_turn)
        except ConnectionLost as error:
            return self._drop(connection, str(error))
        except Exception:
            log.exception("connection failed")
            return self._drop(connection, "error")
        if connection.phase is Phase.CLOSED:
            return self._remove(connection, connection.channel.close)
        if (connection.phase, connection.phase_started) != before:
            del self._by_phase[before[0]][connection]
            self._by_phase[connection.phase][connection] = None
            self._last_activity = self.last_turn
        if connection.has_next_request:
            self._pipelined[connection] = None
        self._track_buffered(connection, connection.parser.buffered + (len(request.body) if request else 0))
        self._set_events(connection, 0 if connection.has_next_request or request else connection.channel.wanted_events)
        if request:
            self._pool.submit(connection, request)
        return None

    def _set_events(self, connection: Connection, events: int) -> None:
        if events != connection.registered_events:
            if connection.registered_events:
                self._selector.unregister(connection.channel.sock)
            if events:
                self._selector.register(connection.channel.sock, events, connection)
            connection.registered_events = events

    def _track_buffered(self, connection: Connection, buffered: int) -> None:
        self._buffered += buffered - connection.buffered
        connection.buffered = buffered
        self._handler.overloaded = self._buffered > MAX_BUFFERED

    def _drop(self, connection: Connection, cause: str) -> None:
        self.dropped[cause] += 1
        log.debug("connection dropped", peer=connection.peer, cause=cause)
        # If the peer closed the connection, flush pending data; if we close it, discard.
        closed_by_peer = cause in ("tls", "reset")
        self._remove(connection, connection.channel.close if closed_by_peer else connection.channel.reset)

    def _remove(self, connection: Connection, close: Callable[[], None]) -> None:
        for members in self._by_phase.values():
            members.pop(connection, None)
        self._pipelined.pop(connection, None)
        self._track_buffered(connection, 0)
        self._set_events(connection, 0)
        connection.phase = Phase.CLOSED
        close()

    def _accept(self) -> None:
        for index in range(MAX_PER_TURN):
            try:
                accepted = accept(self._listener, self._tls_context)
            except ConnectionLost as error:
                self.dropped[str(error)] += 1
                continue
            except OutOfDescriptors:  # Linux reports this even if the backlog is empty
                return self._evict() if index == 0 else None
            if accepted is None:
                return None
            if self.connections() >= MAX_CONNECTIONS:
                self._evict()
            connection = Connection(*accepted, self._handler, self.last_turn)
            self._by_phase[connection.phase][connection] = None
            self._set_events(connection, connection.channel.wanted_events)
            self._last_activity = self.last_turn  # while draining, a new connection gets time to send its request
        return None

    def _evict(self) -> None:
        """Evict a connection: first one that is already closing, otherwise the one that has waited the longest.

        Idle connections don't go first: beside many stalled peers, a connection fresh from its handshake would be next.
        """
        first = (
            next(self._in_phases(phase), None) for phase in (Phase.IDLE, Phase.HANDSHAKE, Phase.READING, Phase.WRITING)
        )
        oldest = min(filter(None, first), key=attrgetter("phase_started"), default=None)
        if connection := next(self._in_phases(Phase.CLOSING), oldest):
            self._drop(connection, "evicted")

    def _in_phases(self, *phases: Phase) -> Iterator[Connection]:
        return chain.from_iterable(self._by_phase[phase] for phase in phases)

    def _is_drained(self) -> bool:
        if not self.draining:
            return False
        now = self._clock()
        busy = any(self._in_phases(Phase.DECIDING, Phase.WRITING)) or self._pipelined or self._pool.results
        is_quiet = not busy and now - max(self._last_activity, self._drain_started) > QUIET_PERIOD
        return self._drain_forced or is_quiet or now - self._drain_started > DRAIN_TIMEOUT

    def _reject_unfinished(self) -> None:
        for connection in list(self._in_phases(Phase.READING, Phase.DECIDING)):
            self._perform(connection, connection.ask_to_retry)

    def _wake(self) -> None:
        with suppress(OSError):  # buffer full: a wake-up is pending; closed: the loop has ended
            self._wake_w.send(b".")
