"""The claims of a VM elect one node."""

import pytest

from webhook.placement.reasons import ClaimFinding, Reason
from webhook.placement.votes import Choice, choose, most_voted


@pytest.mark.parametrize(
    ("votes", "choice"),
    [
        pytest.param("", None, id="no votes elect no node"),
        pytest.param("a", Choice("a"), id="one vote wins"),
        pytest.param("aa", Choice("a"), id="two votes for one node win"),
        pytest.param("abb", Choice("b", ("a",)), id="the majority wins"),
        pytest.param("ba", Choice("b", ("a",)), id="a tie goes to the first"),
        pytest.param("abba", Choice("a", ("b",)), id="a longer tie goes to the first"),
        pytest.param("cabba", Choice("a", ("c", "b")), id="a tie goes to the first behind a loser"),
        pytest.param("cbaabc", Choice("c", ("b", "a")), id="a tie of three goes to the first"),
    ],
)
def test_the_node_with_the_most_votes_wins(votes: str, choice: Choice | None) -> None:
    assert most_voted(votes) == choice


def test_a_claim_without_a_vote_elects_no_node() -> None:
    """A `+` marks a claim that does not decide."""
    elections = {"a+ b": Choice("b"), "b+ b+ a": Choice("a"), "a+": None, "a b b+": Choice("a", ("b",))}
    for nodes, choice in elections.items():
        findings = [ClaimFinding("x", node=n.strip("+"), decides="+" not in n) for n in nodes.split()]
        assert choose(findings) == choice


STARTING = Reason.SHARE_MANAGER_STARTING


@pytest.mark.parametrize(
    ("votes", "choice"),
    [
        pytest.param("a?", Choice("a", certain=False), id="a starting share-manager is not certain"),
        pytest.param("a? a", Choice("a"), id="one served claim on the node makes it certain"),
        pytest.param("b a? a?", Choice("a", ("b",), certain=False), id="the majority wins, certain or not"),
        pytest.param("a? b", Choice("a", ("b",), certain=False), id="a tie goes to the first, certain or not"),
    ],
)
def test_a_choice_is_certain_if_a_share_manager_serves_a_claim_there(votes: str, choice: Choice) -> None:
    """A `?` marks a claim whose share-manager is starting."""
    findings = [ClaimFinding("x", node=vote[0], reason=STARTING if "?" in vote else None) for vote in votes.split()]
    assert choose(findings) == choice
