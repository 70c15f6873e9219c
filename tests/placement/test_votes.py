"""The claims of a VM elect one node."""

import pytest

from webhook.placement.decision import ClaimFinding, Reason
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


@pytest.mark.parametrize(
    ("nodes", "choice"),
    [
        pytest.param(["a", "b!"], Choice("a"), id="a disk before the state wins"),
        pytest.param(["b!", "a"], Choice("a"), id="a disk after the state wins"),
        pytest.param(["b!", "b!", "a"], Choice("a"), id="a disk wins against two states"),
        pytest.param(["", "b!"], Choice("b"), id="a state wins against an unserved disk"),
        pytest.param(["b!"], Choice("b"), id="a single state wins"),
        pytest.param(["b!", "a!"], Choice("b", ("a",)), id="the first of two states wins"),
        pytest.param(["!", ""], None, id="unserved claims elect no node"),
        pytest.param(["a", "", "b", "b"], Choice("b", ("a",)), id="disks without a state elect by majority"),
    ],
)
def test_a_persistent_state_claim_votes_only_if_no_disk_does(nodes: list[str], choice: Choice | None) -> None:
    """A `!` marks the claim of a persistent vTPM or EFI state."""
    assert choose(ClaimFinding("x", node=n.strip("!") or None, persistent_state="!" in n) for n in nodes) == choice


@pytest.mark.parametrize(
    ("nodes", "choice"),
    [
        pytest.param(["a+", "b"], Choice("b"), id="a disk of the VM alone before a shared one"),
        pytest.param(["a+", "a+", "b"], Choice("b"), id="a disk of the VM alone before two shared ones"),
        pytest.param(["a+", "b!"], Choice("a"), id="a shared disk before the state"),
        pytest.param(["a+", ""], Choice("a"), id="a shared disk before an unserved one"),
        pytest.param(["a+", "b+"], Choice("a", ("b",)), id="the first of two shared disks"),
    ],
)
def test_a_shared_disk_votes_only_if_no_disk_of_the_vm_alone_does(nodes: list[str], choice: Choice) -> None:
    """A `+` marks a claim that other VMs mount, a `!` the claim of a persistent vTPM or EFI state."""
    findings = [
        ClaimFinding("x", node=n.strip("!+") or None, persistent_state="!" in n, mounted_by_others="+" in n)
        for n in nodes
    ]
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
