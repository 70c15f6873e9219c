"""One account per peer address: the time of the loop, the connections, and the bytes in memory that the peer uses.

The accounts answer each question of fairness: which connection is served next, which one is evicted, and which request
is rejected when the memory is full. An API server is one peer, so nothing here protects its tenants from each other.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from itertools import chain, count, islice, takewhile
from operator import attrgetter

from webhook.serving.http.connection import Connection, Peer, Phase

SMALL_REQUEST = 16 * 1024  # bytes; the review of a VM has 10 KiB and is accepted even during overload
MAX_PEERS = 4096  # addresses whose used time is kept; above it, all start at 0 again


class Connections:
    """The open connections, by phase and by peer. `bytes` counts those in memory, of all connections together.

    The used times are forgotten as soon as no connection waits: only peers that compete are compared.
    """

    def __init__(self) -> None:
        # Each inner dict is ordered: the connection that entered the phase first comes first.
        self._by_phase: dict[Phase, dict[Connection, None]] = {phase: {} for phase in Phase}
        self._peers: dict[str, Peer] = {}
        self._latest_start = 0.0  # a peer that was absent joins here: it has no claim on the time before
        self._charged = False
        self.bytes = 0

    def __len__(self) -> int:
        return sum(map(len, self._by_phase.values()))

    # --- bookkeeping ---

    def peer(self, address: str) -> Peer:
        """Return the account of an address, for a connection that `add` adds."""
        if address not in self._peers:
            if len(self._peers) >= MAX_PEERS:
                self._charged = True  # forget also the peers that have used no time
                self.forget_times()
            self._peers[address] = Peer(address)
        return self._peers[address]

    def add(self, connection: Connection) -> None:
        """Add a connection under its current phase, as the newest."""
        self._by_phase[connection.phase][connection] = None
        connection.peer.connections += 1

    def move(self, connection: Connection, previous: Phase) -> None:
        """Move a connection from its previous phase to the end of its current one."""
        del self._by_phase[previous][connection]
        self._by_phase[connection.phase][connection] = None

    def remove(self, connection: Connection) -> None:
        """Remove a connection, if it is still there."""
        for members in self._by_phase.values():
            if connection in members:
                del members[connection]
                self.count_bytes(connection, 0)
                connection.peer.connections -= 1

    def count_bytes(self, connection: Connection, number: int) -> None:
        """Record how many bytes of a connection are in memory."""
        change = number - connection.counted_bytes
        connection.counted_bytes = number
        connection.peer.bytes += change
        self.bytes += change

    # --- time ---

    def forget_times(self) -> None:
        """Forget which peer has used how much time, and the peers without connections."""
        if self._charged:
            self._latest_start, self._charged = 0.0, False
            for peer in list(self._peers.values()):
                peer.used = 0.0
                if not peer.connections:
                    del self._peers[peer.address]

    def start_of(self, peer: Peer) -> float:
        """Return the used time at which the peer's next connection starts."""
        return max(peer.used, self._latest_start)

    def charge(self, peer: Peer, start: float, seconds: float) -> None:
        """Record that a connection of the peer has used so many seconds."""
        self._latest_start, self._charged = max(self._latest_start, start), True
        peer.used = start + seconds

    # --- limits ---

    def in_phases(self, *phases: Phase) -> Iterator[Connection]:
        """Yield the connections in these phases."""
        return chain.from_iterable(self._by_phase[phase] for phase in phases)

    def number_in(self, phase: Phase) -> int:
        """Return the number of connections in a phase."""
        return len(self._by_phase[phase])

    def expired(self, now: float, most: int) -> list[Connection]:
        """Return the connections that have reached the limit of their phase, at most `most` of each phase."""

        def is_expired(connection: Connection) -> bool:
            return connection.phase_started + connection.phase.limit <= now

        found = [islice(takewhile(is_expired, members), most) for members in self._by_phase.values()]
        return list(chain.from_iterable(found))

    def next_limit(self, default: float) -> float:
        """Return when the next connection reaches the limit of its phase; `default` without connections."""
        oldest = (next(iter(members)) for members in self._by_phase.values() if members)
        return min((each.phase_started + each.phase.limit for each in oldest), default=default)

    def largest_request(self) -> Connection | None:
        """Return the unfinished large request to reject: the largest of the peer with the most bytes in memory."""
        large = (each for each in self.in_phases(Phase.READING) if each.counted_bytes > SMALL_REQUEST)
        return max(large, key=lambda each: (each.peer.bytes, each.counted_bytes), default=None)

    def to_evict(self, *phases: Phase) -> Connection | None:
        """Return the connection in these phases to evict: one that is already closing, or the longest waiting one.

        Of all peers, the one with the most connections loses one: a flood must not close an API server's connections.
        Idle connections don't go first: beside many stalled peers, a connection fresh from its handshake would be next.
        """
        closing = next(self.in_phases(Phase.CLOSING), None) if Phase.CLOSING in phases else None
        crowd = max(self._peers.values(), key=attrgetter("connections"), default=None)
        first = closing or self._longest_waiting(
            next((each for each in self._by_phase[phase] if each.peer is crowd), None) for phase in phases
        )
        return first or self._longest_waiting(next(iter(self._by_phase[phase]), None) for phase in phases)

    @staticmethod
    def _longest_waiting(connections: Iterable[Connection | None]) -> Connection | None:
        return min(filter(None, connections), key=attrgetter("phase_started"), default=None)


def _urgency(connection: Connection) -> tuple[bool, float]:
    return connection.counted_bytes > SMALL_REQUEST, connection.served


class FairQueue:
    """The connections that wait for their turn. The first one is of the peer that has used the least time so far.

    Start-time fair queuing (Goyal, Vin, Cheng: ACM SIGCOMM 1996), the principle of Kubernetes' API Priority and
    Fairness. Of one peer, small requests come before large ones, then the connection whose last turn is the longest
    ago.
    """

    def __init__(self, table: Connections, connections: Iterable[Connection]) -> None:
        self._table = table
        self._waiting: dict[Peer, deque[Connection]] = {}
        for connection in sorted(connections, key=_urgency):
            self._waiting.setdefault(connection.peer, deque()).append(connection)
        # For each peer in `_waiting`: the used time at which its next connection starts, a number, and the peer.
        # Of two peers with the same time, the one that has waited longer is next.
        self._numbers = count()
        self._peers = [(table.start_of(peer), next(self._numbers), peer) for peer in self._waiting]
        heapify(self._peers)

    def __bool__(self) -> bool:
        return bool(self._peers)

    def first(self) -> Connection:
        """Return the first connection. It waits until `charge` removes it."""
        return self._waiting[self._peers[0][2]][0]

    def charge(self, seconds: float) -> None:
        """Remove the first connection, which has used so many seconds."""
        start, _, peer = self._peers[0]
        self._table.charge(peer, start, seconds)
        waiting = self._waiting[peer]
        waiting.popleft()
        if waiting:
            heapreplace(self._peers, (peer.used, next(self._numbers), peer))
        else:
            heappop(self._peers)
            del self._waiting[peer]

    def waiting(self) -> Iterable[Connection]:
        """Return the connections that still wait."""
        return (connection for waiting in self._waiting.values() for connection in waiting)
