"""Choose one node from the votes of a pod's claims."""

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from webhook.placement.reasons import ClaimFinding


class Choice(Struct, frozen=True):
    """The node with the most votes, and the other nodes with a vote, in the order of their first vote.

    `certain` means that a share-manager serves one of the claims there. Otherwise, their share-managers are starting.
    """

    node: str
    others: tuple[str, ...] = ()
    certain: bool = True


def ranked(votes: Iterable[str]) -> tuple[str, ...]:
    """Return the nodes, those with the most votes first. In a tie, the node with the earlier vote is first."""
    return tuple(node for node, _ in Counter(votes).most_common())  # a stable sort: a Counter keeps insertion order


def most_voted(votes: Iterable[str]) -> Choice | None:
    """Return the node with the most votes. In a tie, the node with the earliest vote wins. None without votes."""
    votes = list(votes)
    nodes = list(dict.fromkeys(votes))
    if len(nodes) < 2:  # most VMs; to count takes a while
        return Choice(nodes[0]) if nodes else None
    winner = ranked(votes)[0]
    return Choice(winner, tuple(other for other in nodes if other != winner))


def voters(findings: Iterable[ClaimFinding]) -> Sequence[ClaimFinding]:
    """Return the claims that have a vote and a node."""
    return [finding for finding in findings if finding.decides and finding.node]


def choose(findings: Iterable[ClaimFinding]) -> Choice | None:
    """Choose the node that serves most of the claims with a vote. In a tie, the first claim wins.

    None if no claim with a vote has a node.
    """
    voting = voters(findings)
    choice = most_voted(finding.node for finding in voting if finding.node)
    if choice is None or any(finding.node == choice.node and not finding.reason for finding in voting):
        return choice
    return Choice(choice.node, choice.others, certain=False)
