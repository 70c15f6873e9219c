"""The queue of waiting connections: which one is next, given how much time each peer has used."""

from types import SimpleNamespace
from typing import Any

import pytest

from webhook.serving.connection import SMALL_REQUEST
from webhook.serving.fair_queue import MAX_PEERS, FairQueue

COSTS = {"a": 12 / 1024, "b": 1 / 1024}  # seconds of one step; binary fractions, so that sums are exact


def connections(peer: str, number: int = 1, **rest: Any) -> list[Any]:
    return [SimpleNamespace(**({"peer": peer, "held": 0, "served": each} | rest)) for each in range(number)]


def advance(queue: FairQueue, steps: int = 1000) -> str:
    """Advance up to `steps` connections; their peers in order."""
    order = []
    while queue and len(order) < steps:
        peer = queue.first().peer
        order.append(peer)
        queue.charge(COSTS.get(peer, 0.0))
    return "".join(order)


@pytest.fixture
def queue() -> FairQueue:
    return FairQueue()


def test_peers_share_the_time_and_not_the_number_of_turns(queue: FairQueue) -> None:
    queue.fill(connections("a", 3) + connections("b", 30))
    assert advance(queue) == "a" + 12 * "b" + "a" + 12 * "b" + "a" + 6 * "b"


def test_peers_that_take_no_time_alternate(queue: FairQueue) -> None:
    queue.fill(connections("x", 3) + connections("y", 2))
    assert advance(queue) == "xyxyx"


def test_used_time_counts_while_a_connection_waits(queue: FairQueue) -> None:
    queue.fill(connections("a", 3))
    assert advance(queue, 1) == "a"
    queue.fill([*queue.waiting(), *connections("b", 20)])
    assert advance(queue) == 12 * "b" + "a" + 8 * "b" + "a"


def test_used_time_is_forgotten_when_no_connection_waits(queue: FairQueue) -> None:
    queue.fill(connections("a"))
    assert advance(queue) == "a"
    queue.fill(connections("a", served=1) + connections("b", served=2))
    assert advance(queue) == "ab"


def test_a_peer_has_no_claim_on_the_time_before_it_came(queue: FairQueue) -> None:
    queue.fill(connections("b", 100))
    advance(queue, 50)
    queue.fill([*queue.waiting(), *connections("a", 3)])
    assert advance(queue, 15) == "a" + 11 * "b" + "abb"


def test_of_one_peer_the_small_request_that_waits_the_longest_is_next(queue: FairQueue) -> None:
    large, late, early = (
        *connections("a", held=SMALL_REQUEST + 1),
        *connections("a", held=SMALL_REQUEST, served=2),
        *connections("a", served=1),
    )
    queue.fill([large, late, early])
    found = []
    while queue:
        found.append(queue.first())
        queue.charge(0.001)
    assert found == [early, late, large]


def test_the_used_times_of_many_peers_are_not_kept(queue: FairQueue) -> None:
    for number in range(MAX_PEERS + 2):
        queue.fill([*connections(f"peer-{number}"), *connections("b", 2, served=9)])
        advance(queue, 1)
    assert len(queue._used) <= MAX_PEERS + 1
