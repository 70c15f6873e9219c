"""Choose one node from the votes of a pod's claims."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from webhook.placement.reasons import ClaimFinding


class Choice(Struct, frozen=True):
    """The node with the most votes."""

    node: str
    others: tuple[str, ...] = ()  # the other nodes with a vote, those with the most votes first
    certain: bool = True  # a share-manager serves one of the claims there; otherwise, they are starting


def voters(findings: Iterable[ClaimFinding]) -> Sequence[ClaimFinding]:
    """Return the claims that have a vote and a node."""
    return [finding for finding in findings if finding.decides and finding.node]


def choose(findings: Iterable[ClaimFinding]) -> Choice | None:
    """Choose the node that serves most of the claims with a vote. In a tie, the first claim wins.

    None if no claim with a vote has a node.
    """
    voting = voters(findings)
    nodes = [finding.node for finding in voting if finding.node]
    if not nodes:
        return None
    winner, *others = sorted(dict.fromkeys(nodes), key=nodes.count, reverse=True)
    return Choice(winner, tuple(others), any(each.node == winner and not each.reason for each in voting))
