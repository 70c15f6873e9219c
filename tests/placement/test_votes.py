"""The claims of a VM elect one node."""

import pytest

from webhook.placement.reasons import ClaimFinding, Reason
from webhook.placement.votes import Choice, choose

STARTING = Reason.SHARE_MANAGER_STARTING


def elected(votes: str) -> Choice | None:
    """Choose from the claims' nodes. A `?` marks a claim whose share-manager is starting, a `+` one without a vote."""
    findings = [
        ClaimFinding("x", node=vote[0], reason=STARTING if "?" in vote else None, decides="+" not in vote)
        for vote in votes.split()
    ]
    return choose(findings)


@pytest.mark.parametrize(
    ("votes", "choice"),
    [
        ("", None),
        ("a a", Choice("a")),
        ("a b b", Choice("b", ("a",))),
        ("b a", Choice("b", ("a",))),
        ("c a b b a", Choice("a", ("b", "c"))),
        ("a+", None),
        ("b+ b+ a", Choice("a")),
        ("a?", Choice("a", certain=False)),
        ("a? a", Choice("a")),
        ("b a? a?", Choice("a", ("b",), certain=False)),
        ("a? b", Choice("a", ("b",), certain=False)),
    ],
)
def test_the_claims_with_a_vote_elect_the_node_of_most_and_a_tie_goes_to_the_first(
    votes: str, choice: Choice | None
) -> None:
    assert elected(votes) == choice
