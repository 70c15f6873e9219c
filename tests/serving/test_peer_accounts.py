"""The accounts of the peers: which waiting connection is served next, given how much time each peer has used."""

from types import SimpleNamespace
from typing import Any

import pytest

from webhook.serving.worker.connection import Phase
from webhook.serving.worker.peer_accounts import MAX_PEERS, SMALL_REQUEST, Connections

COSTS = {"a": 12 / 1024, "b": 1 / 1024}  # seconds of one step; binary fractions, so that sums are exact


class Waiting(SimpleNamespace):
    """A connection that is a key of a dict."""

    __hash__ = object.__hash__


class Server:
    """Connections that wait in a queue, without sockets."""

    def __init__(self) -> None:
        self.table = Connections()
        self.waiting: list[Any] = []
        self.now = 0.0

    def connections(self, address: str, number: int = 1, **rest: Any) -> list[Any]:
        fields = {"peer": self.table.peer(address), "counted_bytes": 0} | rest
        return [Waiting(**({"served": each} | fields)) for each in range(number)]

    def fill(self, waiting: list[Any]) -> None:
        if not self.waiting:
            self.table.forget_times()
        self.waiting += waiting

    def advance(self, budget: float = 1.0) -> str:
        """Advance connections for so many seconds; their peers in order."""
        order = []
        for each in self.table.in_turn(self.waiting[:], budget, lambda: self.now):
            self.waiting.remove(each)
            self.now += COSTS.get(each.peer.address, 0.0)
            order.append(each.peer.address)
        return "".join(order)


@pytest.fixture
def server() -> Server:
    return Server()


def test_peers_share_the_time_and_alternate_if_they_take_none(server: Server) -> None:
    server.fill(server.connections("a", 3) + server.connections("b", 30))
    assert server.advance() == "a" + 12 * "b" + "a" + 12 * "b" + "a" + 6 * "b"
    server.fill(server.connections("x", 3) + server.connections("y", 2))
    assert server.advance() == "xyxyx"


def test_used_time_counts_until_no_connection_waits(server: Server) -> None:
    server.fill(server.connections("a", 3))
    assert server.advance(COSTS["a"] / 2) == "a"
    server.fill(server.connections("b", 20))
    assert server.advance() == 12 * "b" + "a" + 8 * "b" + "a"
    server.fill(server.connections("a", served=1) + server.connections("b", served=2))
    assert server.advance() == "ab"


def test_time_used_in_one_queue_counts_in_another(server: Server) -> None:
    """A peer that floods the server with handshakes waits with its requests, too."""
    for _ in server.table.in_turn(server.connections("a"), 1.0, lambda: server.now):
        server.now += 1.0
    server.waiting = server.connections("a") + server.connections("b")
    assert server.advance() == "ba"


def test_a_peer_has_no_claim_on_the_time_before_it_came(server: Server) -> None:
    server.fill(server.connections("b", 100))
    assert server.advance(49.5 * COSTS["b"]) == 50 * "b"
    server.fill(server.connections("a", 3))
    assert server.advance().startswith("a" + 11 * "b" + "abb")


def test_of_one_peer_the_small_request_that_waits_the_longest_is_next(server: Server) -> None:
    large, late, early = (
        *server.connections("a", counted_bytes=SMALL_REQUEST + 1),
        *server.connections("a", counted_bytes=SMALL_REQUEST, served=2),
        *server.connections("a", served=1),
    )
    assert list(server.table.in_turn([large, late, early], 1.0, lambda: 0.0)) == [early, late, large]


def test_the_accounts_of_many_peers_are_not_kept(server: Server) -> None:
    for number in range(2 * MAX_PEERS):  # as if another connection always waited: the used times are not forgotten
        server.waiting = server.connections(f"peer-{number}")
        assert server.advance()
    assert len(server.table._peers) <= MAX_PEERS


@pytest.mark.parametrize(
    ("opened", "phases", "evicted"),
    [
        ("api:answered api:answered a:idle b:idle", "", "a:idle"),
        ("a:answered a:answered b:answered api:handshake", "", "api:handshake"),
        ("api:answered a:answered a:answered b:answered", "", "a:answered"),
        ("a:idle b:closing a:idle", "", "b:closing"),
        ("a:idle a:idle api:handshake b:handshake", "handshake", "api:handshake"),
        ("", "", None),
    ],
)
def test_a_flood_evicts_closing_connections_then_those_without_an_answered_review_then_those_of_the_largest_peer(
    opened: str, phases: str, evicted: str | None
) -> None:
    """An API server with 25 connections was the largest of 210 peers, and lost 438 of 612 reviews."""
    table = Connections()
    for number, name in enumerate(opened.split()):
        address, state = name.split(":")
        phase = Phase.__members__.get(state.upper(), Phase.IDLE)
        fields = {"peer": table.peer(address), "phase": phase, "phase_started": number}
        table.add(Waiting(name=name, answered=state == "answered", **fields))
    found = table.to_evict(*([Phase[phases.upper()]] if phases else Phase))
    assert (found and found.name) == evicted


@pytest.mark.parametrize(
    ("address", "account"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_a_64_network_of_ipv6_is_one_peer(address: str, account: str) -> None:
    assert Connections().peer(address).address == account
