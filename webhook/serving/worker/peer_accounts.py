"""One account per peer address: the time of the loop, the connections, and the bytes in memory that the peer uses.

The accounts answer each question of fairness: which connection is served next, which one is evicted, and which request
is rejected when the memory is full. An API server is one peer, so nothing here protects its tenants from each other.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from ipaddress import IPv6Address, IPv6Network
from itertools import chain, count, islice, takewhile

from webhook.serving.worker.connection import LIMITS, Connection, Peer, Phase

SMALL_REQUEST = 16 * 1024  # bytes; the review of a VM has 10 KiB and is accepted even during overload
MAX_PEERS = 4096  # addresses whose used time is kept; above it, all start at 0 again


class Connections:
    """The open connections, by phase and by peer. `bytes` counts those in memory, of all connections together.

    The used times are forgotten as soon as no connection waits: only peers that compete are compared.
    """

    def __init__(self) -> None:
        # Each inner dict is ordered: the connection that entered the phase first comes first.
        self._by_phase: dict[Phase, dict[Connection, None]] = {phase: {} for phase in Phase}
        self._opened: dict[Connection, None] = {}  # the connection that was opened first comes first
        self._peers: dict[str, Peer] = {}
        self._latest_start = 0.0  # a peer that was absent joins here: it has no claim on the time before
        self._charged = False
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._opened)

    # --- bookkeeping ---

    def peer(self, address: str) -> Peer:
        """Return the account of an address, for a connection that `add` adds."""
        address = account_of(address)
        if address not in self._peers:
            if len(self._peers) >= MAX_PEERS:
                self._charged = True  # forget also the peers that have used no time
                self.forget_times()
            self._peers[address] = Peer(address)
        return self._peers[address]

    def add(self, connection: Connection) -> None:
        """Add a connection under its current phase, as the newest."""
        self._list(connection)
        self._opened[connection] = None
        connection.peer.connections += 1

    def move(self, connection: Connection) -> None:
        """Move a connection to the end of its current phase."""
        del self._by_phase[connection.listed_phase][connection]
        self._list(connection)

    def remove(self, connection: Connection) -> None:
        """Remove a connection, if it is still there."""
        if connection in (members := self._by_phase[connection.listed_phase]):
            del members[connection], self._opened[connection]
            self.count_bytes(connection, 0)
            connection.peer.connections -= 1

    def _list(self, connection: Connection) -> None:
        connection.has_moved, connection.listed_phase = False, connection.phase
        self._by_phase[connection.phase][connection] = None

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

    def in_turn(
        self, connections: Iterable[Connection], budget: float, clock: Callable[[], float]
    ) -> Iterator[Connection]:
        """Yield connections for a budget of seconds: the next is one of the peer that has used the least time so far.

        The peer of a connection pays for the time until the next one. Of one peer, small requests come before large
        ones, then the connection whose last turn is the longest ago. This is start-time fair queuing (Goyal, Vin,
        Cheng: ACM SIGCOMM 1996), the principle of Kubernetes' API Priority and Fairness.
        """
        waiting: dict[Peer, deque[Connection]] = {}
        for connection in sorted(connections, key=_urgency):
            waiting.setdefault(connection.peer, deque()).append(connection)
        # For each peer: the used time at which its next connection starts, a number, and the peer. Of two peers with
        # the same time, the one that has waited longer is next.
        numbers = count()
        peers = [(max(peer.used, self._latest_start), next(numbers), peer) for peer in waiting]
        heapify(peers)
        begin = clock()
        deadline = begin + budget
        while peers and begin <= deadline:
            start, _, peer = peers[0]
            yield waiting[peer].popleft()
            end = clock()
            self._latest_start = max(self._latest_start, start)
            self._charged = True
            peer.used = start + end - begin
            begin = end
            if waiting[peer]:
                heapreplace(peers, (peer.used, next(numbers), peer))
            else:
                heappop(peers)

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
            return connection.phase_started + LIMITS[connection.phase] <= now

        found = [islice(takewhile(is_expired, members), most) for members in self._by_phase.values()]
        return list(chain.from_iterable(found))

    def next_limit(self, default: float) -> float:
        """Return when the next connection reaches the limit of its phase; `default` without connections."""
        oldest = (next(iter(members)) for members in self._by_phase.values() if members)
        return min((each.phase_started + LIMITS[each.phase] for each in oldest), default=default)

    def largest_request(self) -> Connection | None:
        """Return the unfinished large request to reject: the largest of the peer with the most bytes in memory."""
        large = (each for each in self.in_phases(Phase.READING) if each.counted_bytes > SMALL_REQUEST)
        return max(large, key=lambda each: (each.peer.bytes, each.counted_bytes), default=None)

    def to_evict(self, *phases: Phase) -> Connection | None:
        """Return the connection in these phases to evict, so that a flood closes no API server's connections.

        The first is one that is closing. The next one never had a successful request, and was opened first: an API
        server sends a review as soon as it has connected. Of the others, the peer with the most connections loses the
        one that has waited the longest.
        """
        candidates = [each for each in self._opened if each.phase in phases]
        if closing := next((each for each in candidates if each.phase is Phase.CLOSING), None):
            return closing
        if unanswered := next((each for each in candidates if not each.answered), None):
            return unanswered
        return max(candidates, key=lambda each: (each.peer.connections, -each.phase_started), default=None)


def account_of(address: str) -> str:
    """Return the name of an address's account: a host has one IPv4 address, but a whole /64 network of IPv6."""
    if ":" not in address:
        return address
    found = IPv6Address(address)
    return str(found.ipv4_mapped or IPv6Network((found.packed[:8] + bytes(8), 64)))


def _urgency(connection: Connection) -> tuple[bool, float]:
    return connection.counted_bytes > SMALL_REQUEST, connection.served
