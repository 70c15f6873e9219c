"""The open connections of an event loop by phase: the oldest of a phase, the next time limit, the bytes held."""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, islice, takewhile
from operator import attrgetter

from webhook.serving.connection import SMALL_REQUEST, Connection, Phase

EVICTABLE = Phase.CLOSING, Phase.IDLE, Phase.HANDSHAKE, Phase.READING, Phase.WRITING


class ConnectionTable:
    """Open connections. `held` is the number of bytes in memory that their peers have sent or have not read yet."""

    def __init__(self) -> None:
        # Each inner dict is ordered: the connection that entered the phase first comes first.
        self._by_phase: dict[Phase, dict[Connection, None]] = {phase: {} for phase in Phase}
        self._by_peer: Counter[str] = Counter()
        self.held = 0

    def __len__(self) -> int:
        return sum(map(len, self._by_phase.values()))

    def add(self, connection: Connection) -> None:
        """Add a connection under its current phase, as the newest."""
        self._by_phase[connection.phase][connection] = None
        self._by_peer[connection.peer] += 1

    def move(self, connection: Connection, previous: Phase) -> None:
        """Move a connection from its previous phase to the end of its current one."""
        del self._by_phase[previous][connection]
        self._by_phase[connection.phase][connection] = None

    def remove(self, connection: Connection) -> None:
        """Remove a connection from its phase, if the table contains it."""
        for members in self._by_phase.values():
            if connection in members:
                del members[connection]
                self._by_peer[connection.peer] -= 1
        if not self._by_peer[connection.peer]:
            del self._by_peer[connection.peer]
        self.track(connection, 0)

    def track(self, connection: Connection, held: int) -> None:
        """Record how many bytes a connection holds."""
        self.held += held - connection.held
        connection.held = held

    def in_phases(self, *phases: Phase) -> Iterator[Connection]:
        """Yield the connections in these phases."""
        return chain.from_iterable(self._by_phase[phase] for phase in phases)

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

    def largest_first(self) -> list[Connection]:
        """Return the connections with large requests that are unfinished or not decided yet.

        Those of the peer that holds the most bytes of them come first, the largest before the others. A flood of large
        requests must not reject those of an API server.
        """
        large = [each for each in self.in_phases(Phase.READING, Phase.DECIDING) if each.held > SMALL_REQUEST]
        held = Counter[str]()
        for each in large:
            held[each.peer] += each.held
        return sorted(large, key=lambda each: (held[each.peer], each.held), reverse=True)

    def number_in(self, phase: Phase) -> int:
        """Return the number of connections in a phase."""
        return len(self._by_phase[phase])

    def evictable(self, phases: tuple[Phase, ...] = EVICTABLE) -> Connection | None:
        """Return the connection in these phases to evict: one that is already closing, or the longest waiting one.

        Of all peers, the one with the most connections loses one: a flood must not close an API server's connections.
        Idle connections don't go first: beside many stalled peers, a connection fresh from its handshake would be next.
        """
        crowd = max(self._by_peer, key=self._by_peer.__getitem__, default="")
        closing = next(self.in_phases(Phase.CLOSING), None) if Phase.CLOSING in phases else None
        of_crowd = closing or self._longest_waiting(phases, lambda each: each.peer == crowd)
        return of_crowd or self._longest_waiting(phases)

    def _longest_waiting(
        self, phases: tuple[Phase, ...], condition: Callable[[Connection], bool] | None = None
    ) -> Connection | None:
        first = (next(filter(condition, self.in_phases(phase)), None) for phase in phases)
        return min(filter(None, first), key=attrgetter("phase_started"), default=None)
