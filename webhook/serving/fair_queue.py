"""Fair queuing of connections: the peer addresses share the loop's time equally, however many connections each has.

Start-time fair queuing (Goyal, Vin, Cheng: ACM SIGCOMM 1996), the principle of Kubernetes' API Priority and Fairness.
"""

from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heapreplace
from itertools import count

from webhook.serving.connection import SMALL_REQUEST, Connection

MAX_PEERS = 4096  # addresses whose used time is kept; above it, all start at 0 again


def _urgency(connection: Connection) -> tuple[bool, float]:
    return connection.held > SMALL_REQUEST, connection.served


class FairQueue:
    """The connections that wait for their turn. The first one is of the peer that has used the least time so far.

    Of one peer, small requests come before large ones, then the connection whose last turn is the longest ago. The used
    times are forgotten as soon as no connection waits: only peers that compete are compared.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Connection]] = {}
        # For each peer in `_waiting`: the used time at which its next connection starts, a number, and its address.
        self._peers: list[tuple[float, int, str]] = []
        self._numbers = count()  # of two peers with the same time, the one that has waited longer is next
        self._used: dict[str, float] = {}  # seconds
        self._latest_start = 0.0  # a peer that was absent joins here: it has no claim on the time before

    def __bool__(self) -> bool:
        return bool(self._peers)

    def fill(self, connections: Iterable[Connection]) -> None:
        """Replace the waiting connections."""
        if not self._peers or len(self._used) > MAX_PEERS:
            self._used.clear()
            self._latest_start = 0.0
        self._waiting = {}
        for connection in sorted(connections, key=_urgency):
            self._waiting.setdefault(connection.peer, deque()).append(connection)
        self._peers = [(self._start(peer), next(self._numbers), peer) for peer in self._waiting]
        heapify(self._peers)

    def first(self) -> Connection:
        """Return the first connection. It waits until `charge` removes it."""
        return self._waiting[self._peers[0][2]][0]

    def charge(self, seconds: float) -> None:
        """Remove the first connection, which has used so many seconds."""
        self._latest_start, _, peer = self._peers[0]
        self._used[peer] = self._latest_start + seconds
        waiting = self._waiting[peer]
        waiting.popleft()
        if waiting:
            heapreplace(self._peers, (self._used[peer], next(self._numbers), peer))
        else:
            heappop(self._peers)
            del self._waiting[peer]

    def waiting(self) -> Iterable[Connection]:
        """Return the connections that still wait."""
        return (connection for waiting in self._waiting.values() for connection in waiting)

    def _start(self, peer: str) -> float:
        return max(self._used.get(peer, 0.0), self._latest_start)
