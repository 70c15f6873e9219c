"""The event loop of a port: one thread serves all connections without blocking and enforces time limits.

A turn is one iteration. It polls the sockets, serves requests for at most TURN_BUDGET, continues handshakes for at
most as long, accepts connections, and ends those that have reached the time limit of their phase. Requests come
first, so that no flood of handshakes delays a review. A connection that gets no time in this turn, or that has more
in memory than one turn reads, is continued in the next one without an event of its socket.

The loop responds to the requests itself, so nothing on the way of a request may wait: no API call, no lock that
another thread holds while it works, no large body. Who is served next, and whose connection is evicted, is decided by
the accounts of `peer_accounts`. Only `drain` and the methods that return seconds are for other threads; `_wake` ends
their poll.
"""

import errno
import logging
import select
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from webhook.serving.worker.channel import Channel, ConnectionLost
from webhook.serving.worker.connection import Connection, Phase, RequestHandler
from webhook.serving.worker.peer_accounts import Connections

DRAIN_TIMEOUT = 15.0  # seconds; with a preStop wait of 5 s before it, within Kubernetes' grace period of 30 s
QUIET_PERIOD = 1.0  # seconds without a request; then the Service no longer routes requests to this replica
POLL_TIMEOUT = 1.0  # seconds; the longest time between two turns
STALLED_AFTER = 10.0  # seconds without a turn; the API server gives up a call after the same time
MAX_CONNECTIONS = 2048  # an API server keeps 25 open
# Of the connections. OpenSSL takes 50 KB for a handshake, besides the 16 KiB that a client may send, so handshakes take
# at most 35 MB.
MAX_HANDSHAKES = 512
MAX_BUFFERED = 32 * 1024 * 1024  # bytes of unfinished requests and unread responses, over all connections
# Seconds for requests, and again for handshakes, of one turn; the rest waits for the next turn. A review takes 0.3 ms,
# but hundreds of peers that send tiny chunks at once took seconds, and every other connection waited.
TURN_BUDGET = 0.01
MAX_PER_TURN = 16  # of new connections and timeouts: they take milliseconds, so requests wait no longer
DRAIN_POLL_TIMEOUT = 0.05  # seconds; while draining, instead of POLL_TIMEOUT
FLUSH_TIMEOUT = 0.5  # seconds to send the last responses
# label values of connections_dropped
DROP_CAUSES = "tls", "certificate", "reset", "handshake", "writing", "evicted", "error"
# The process or the system has no file descriptor or no memory for another connection.
NO_RESOURCES = errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS

log = logging.getLogger("webhook")


class Loop:
    """Serves one listener. `open_channel` makes a channel of an accepted socket; None closes it.

    `on_turn` is called once per turn. `dropped` counts the connections that failed or were evicted, by cause. Other
    threads may call `drain` and the methods that return seconds.
    """

    def __init__(  # noqa: PLR0913, PLR0917 (the collaborators, a clock and a limit)
        self,
        listener: socket.socket,
        open_channel: Callable[[socket.socket], Channel | None],
        handler: RequestHandler,
        on_turn: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._listener, self._open_channel, self._handler = listener, open_channel, handler
        self._on_turn, self._clock, self.max_connections = on_turn, clock, max_connections
        self._table = Connections()
        self._continuing: dict[Connection, None] = {}  # connections that can continue without an event
        self._is_behind = False  # whether the last turn left connections waiting
        self._next_limit = 0.0  # when to look for connections that have reached their limit
        # Times of the clock: when the last turn began, a connection last made progress, and the shutdown began.
        self._turn = self._last_activity = self._drain_started = clock()
        self._longest_turn, self._drain_is_forced = 0.0, False
        self.dropped = Counter(dict.fromkeys(DROP_CAUSES, 0))
        self._wake_w, self._wake_r = socket.socketpair()  # a byte written to _wake_w ends the poll
        self._wake_w.setblocking(False)
        self._epoll = select.epoll()
        self._registered: dict[int, Connection | Callable[[], object]] = {}  # by file descriptor
        for sock, callback in ((listener, self._accept), (self._wake_r, partial(self._wake_r.recv, 4096))):
            sock.setblocking(False)
            self._epoll.register(sock, select.EPOLLIN)
            self._registered[sock.fileno()] = callback

    def connections(self) -> int:
        """Return the number of open connections."""
        return len(self._table)

    @property
    def draining(self) -> bool:
        """Whether the loop is shutting down."""
        return self._handler.draining

    def drain(self) -> None:
        """Shut down gracefully; a second call forces it. Any thread and any signal handler may call it."""
        if self.draining:
            self._drain_is_forced = True
        else:
            self._drain_started = self._clock()
        self._handler.draining = True
        self._wake()

    def stalled_seconds(self) -> float:
        """Return the seconds since the last turn began, or 0 up to STALLED_AFTER."""
        elapsed = self._clock() - self._turn
        return elapsed if elapsed > STALLED_AFTER else 0.0

    def take_longest_turn(self) -> float:
        """Return the seconds of the longest turn since the last call, or of the current one."""
        longest, self._longest_turn = self._longest_turn, 0.0
        elapsed = self._clock() - self._turn
        return max(longest, elapsed if elapsed > 2 * POLL_TIMEOUT else 0.0)  # up to POLL_TIMEOUT may be an idle poll

    def run(self) -> None:
        """Serve until drained, then close all connections."""
        while not self._is_drained():
            self.run_once()
        self._epoll.unregister(self._listener)  # the master has the same socket open, so a close alone doesn't do it
        self._listener.close()
        self.run_once()  # serve the requests that have just arrived
        for connection in list(self._table.in_phases(Phase.READING)):
            # Immediately: the Service routes the new connection to another replica.
            self._perform(connection, partial(connection.ask_to_retry, "this replica is shutting down", 0))
        deadline = self._clock() + FLUSH_TIMEOUT
        while any(self._table.in_phases(Phase.WRITING, Phase.CLOSING)) and self._clock() < deadline:
            self.run_once()
        for connection in list(self._table.in_phases(*Phase)):
            connection.channel.half_close()
            self._remove(connection, connection.channel.close)
        for resource in (self._epoll, self._wake_w, self._wake_r):
            resource.close()

    def run_once(self) -> None:
        """Run one turn."""
        longest = DRAIN_POLL_TIMEOUT if self.draining else POLL_TIMEOUT
        wait = 0.0 if self._continuing else max(0.0, min(self._next_limit - self._clock(), longest))
        events = self._epoll.poll(wait)
        self._turn = now = self._clock()
        self._on_turn()
        if not self._is_behind:
            self._table.forget_times()
        waiting, self._continuing, self._is_behind = self._continuing, {}, False
        callbacks = []
        for descriptor, _ in events:
            found = self._registered[descriptor]
            if isinstance(found, Connection):
                waiting[found] = None
            else:
                callbacks.append(found)
        requests = list[Connection]()
        handshakes = list[Connection]()
        for each in waiting:
            (handshakes if each.phase is Phase.HANDSHAKE else requests).append(each)
        for connections in filter(None, (requests, handshakes)):
            self._advance(connections)
        for callback in callbacks:
            callback()
        if now >= self._next_limit:
            for connection in self._table.expired(now, MAX_PER_TURN):
                self._perform(connection, connection.time_out)
            # No phase that begins until then is shorter than POLL_TIMEOUT.
            self._next_limit = self._table.next_limit(default=now + POLL_TIMEOUT)
        self._longest_turn = max(self._longest_turn, self._clock() - now)

    def _advance(self, connections: list[Connection]) -> None:
        """Advance connections within the budget. epoll reports the others again, or they are continued."""
        left = dict.fromkeys(connections)
        for connection in self._table.in_turn(connections, TURN_BUDGET, self._clock):
            del left[connection]
            connection.served = self._turn
            self._perform(connection, connection.advance)
        if left:
            self._is_behind = True
            self._continuing |= dict.fromkeys(each for each in left if each.can_continue)

    def _perform(self, connection: Connection, action: Callable[[float], None]) -> None:
        """Run one method of a connection, then update the bookkeeping and epoll."""
        try:
            action(self._turn)
        except ConnectionLost as error:
            if not error.rejected:
                return self._drop(connection, str(error))
            log.warning(
                "client certificate rejected", extra={"peer": connection.peer.address, "reason": error.rejected}
            )
            self.dropped[str(error)] += 1
            connection.start_closing(self._turn)  # an immediate close could overtake the alert with a reset
        except Exception:
            log.exception("connection failed")
            return self._drop(connection, "error")
        if connection.has_moved:
            self._table.move(connection)
            self._last_activity = self._turn
        if connection.phase is Phase.CLOSED:
            return self._remove(connection, connection.channel.close)
        if connection.can_continue:
            self._continuing[connection] = None
        if connection.channel.wanted_events != connection.registered_events:
            self._wait_for_events(connection)
        if (number := connection.bytes_in_memory) != connection.counted_bytes:
            self._table.count_bytes(connection, number)
            if self._table.bytes > MAX_BUFFERED and (largest := self._table.largest_request()):
                self._perform(largest, partial(largest.ask_to_retry, "too many requests are buffered", 1))
        return None

    def _wait_for_events(self, connection: Connection) -> None:
        descriptor = connection.channel.sock.fileno()
        change = self._epoll.modify if connection.registered_events else self._epoll.register
        connection.registered_events = connection.channel.wanted_events
        change(descriptor, connection.registered_events)
        self._registered[descriptor] = connection

    def _drop(self, connection: Connection, cause: str) -> None:
        self.dropped[cause] += 1
        log.debug("connection dropped", extra={"peer": connection.peer.address, "cause": cause})
        # If the peer closed the connection, flush pending data; if we close it, discard.
        closed_by_peer = cause in ("tls", "reset")
        self._remove(connection, connection.channel.close if closed_by_peer else connection.channel.reset)

    def _remove(self, connection: Connection, close: Callable[[], None]) -> None:
        self._table.remove(connection)
        self._continuing.pop(connection, None)
        self._registered.pop(connection.channel.sock.fileno(), None)
        connection.phase = Phase.CLOSED
        close()  # also for epoll

    def _accept(self) -> None:
        for index in range(MAX_PER_TURN):
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in NO_RESOURCES:  # the peer is gone
                    self.dropped["reset"] += 1
                    continue
                if index == 0:  # Linux reports this even if the backlog is empty
                    self._evict()
                return
            sock.setblocking(False)
            if channel := self._open_channel(sock):
                self._add(channel, str(address[0]))
            else:
                self.dropped["tls"] += 1
                sock.close()

    def _add(self, channel: Channel, address: str) -> None:
        if self.connections() >= self.max_connections:
            self._evict()
        if self._table.number_in(Phase.HANDSHAKE) >= MAX_HANDSHAKES:
            self._evict(Phase.HANDSHAKE)
        connection = Connection(channel, self._table.peer(address), self._handler, self._turn)
        self._table.add(connection)
        self._wait_for_events(connection)
        self._last_activity = self._turn  # while draining, a new connection gets time to send its request

    def _evict(self, *phases: Phase) -> None:
        if connection := self._table.to_evict(*(phases or Phase)):
            self._drop(connection, "evicted")

    def _is_drained(self) -> bool:
        """Return whether a shutdown that has begun ends: forced, after a quiet period, or after DRAIN_TIMEOUT."""
        if not self.draining:
            return False
        now = self._clock()
        is_busy = any(self._table.in_phases(Phase.WRITING)) or bool(self._continuing)
        is_quiet = not is_busy and now - max(self._last_activity, self._drain_started) > QUIET_PERIOD
        return self._drain_is_forced or is_quiet or now - self._drain_started > DRAIN_TIMEOUT

    def _wake(self) -> None:
        with suppress(OSError):  # buffer full: a wake-up is pending; closed: the loop has ended
            self._wake_w.send(b".")
