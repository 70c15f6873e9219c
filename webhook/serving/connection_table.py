"""The open connections of an event loop by phase: the oldest of a phase, the next time limit, the bytes held."""

from collections.abc import Iterator
from itertools import chain, islice, takewhile
from operator import attrgetter

from webhook.serving.connection import Connection, Phase


class ConnectionTable:
    """Open connections. `held` is the number of bytes in memory that their peers have sent or have not read yet."""

    def __init__(self) -> None:
        # Each inner dict is ordered: the connection that entered the phase first comes first.
        self._by_phase: dict[Phase, dict[Connection, None]] = {phase: {} for phase in Phase}
        self.held = 0

    def __len__(self) -> int:
        return sum(map(len, self._by_phase.values()))

    def add(self, connection: Connection) -> None:
        """Add a connection under its current phase, as the newest."""
        self._by_phase[connection.phase][connection] = None

    def move(self, connection: Connection, previous: Phase) -> None:
        """Move a connection from its previous phase to the end of its current one."""
        del self._by_phase[previous][connection]
        self.add(connection)

    def remove(self, connection: Connection) -> None:
        """Remove a connection from its phase, if the table contains it."""
        for members in self._by_phase.values():
            members.pop(connection, None)
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

    def evictable(self) -> Connection | None:
        """Return the connection to evict: first one that is already closing, otherwise the longest waiting one.

        Idle connections don't go first: beside many stalled peers, a connection fresh from its handshake would be next.
        """
        first = (
            next(self.in_phases(phase), None) for phase in (Phase.IDLE, Phase.HANDSHAKE, Phase.READING, Phase.WRITING)
        )
        oldest = min(filter(None, first), key=attrgetter("phase_started"), default=None)
        return next(self.in_phases(Phase.CLOSING), oldest)
