"""From a claim to the node of its share-manager, and from several nodes to one."""

import pytest

from tests.support.builders import (
    Object,
    catalog,
    claim,
    decided,
    node,
    share_manager,
    share_manager_pod,
    storage,
    virt_launcher,
    volume,
)
from webhook.placement.decision import ClaimFinding, Outcome, Reason, Source
from webhook.placement.resolve import Choice, choose, known_volumes, most_voted, resolve, resolve_all

LONGHORN = "longhorn-system"
BEHIND = [claim(), volume()]


def found(*objects: Object) -> ClaimFinding:
    return resolve("disk1", "default", catalog(*objects), LONGHORN)


@pytest.mark.parametrize(
    ("objects", "handle", "reason"),
    [
        pytest.param([], None, Reason.CLAIM_NOT_FOUND, id="no claim"),
        pytest.param([claim(namespace="other"), volume()], None, Reason.CLAIM_NOT_FOUND, id="a claim elsewhere"),
        pytest.param([claim(modes=["ReadWriteOnce"])], None, Reason.CLAIM_NOT_RWX, id="ReadWriteOnce"),
        pytest.param([claim(modes=["ReadWriteOncePod", "ReadOnlyMany"])], None, Reason.CLAIM_NOT_RWX, id="other modes"),
        pytest.param([claim(modes=[])], None, Reason.CLAIM_NOT_RWX, id="no mode"),
        pytest.param([claim(modes=["ReadWriteOnce"], volume="")], None, Reason.CLAIM_NOT_RWX, id="neither nor"),
        pytest.param([claim(volume="")], None, Reason.CLAIM_NOT_BOUND, id="unbound"),
        pytest.param([claim(), volume(driver="nfs.csi.k8s.io")], None, Reason.NOT_LONGHORN, id="another driver"),
        pytest.param([claim(), volume(handle="")], None, Reason.NOT_LONGHORN, id="no handle"),
        pytest.param(
            [claim(), volume() | {"spec": {"nfs": {"server": "x"}}}],
            None,
            Reason.NOT_LONGHORN,
            id="no CSI volume at all",
        ),
        pytest.param([claim(), volume() | {"spec": None}], None, Reason.NOT_LONGHORN, id="a PV without a spec"),
        pytest.param(BEHIND, "vol-disk1", Reason.NO_SHARE_MANAGER, id="nothing serves it"),
        pytest.param([claim()], "pvc-disk1", Reason.NO_SHARE_MANAGER, id="an unknown PV, by its name"),
        pytest.param(
            [*BEHIND, share_manager("pvc-disk1")], "vol-disk1", Reason.NO_SHARE_MANAGER, id="named after the PV"
        ),
        pytest.param(
            [*BEHIND, share_manager(namespace="default")],
            "vol-disk1",
            Reason.NO_SHARE_MANAGER,
            id="in another namespace",
        ),
        *(
            pytest.param([*BEHIND, share_manager(state=s)], "vol-disk1", Reason.SHARE_MANAGER_STOPPED, id=f"state {s}")
            for s in ("stopped", "stopping", "error", "unknown", "Running", "tomorrow's")
        ),
        pytest.param(
            [*BEHIND, share_manager(deleting=True)], "vol-disk1", Reason.SHARE_MANAGER_STOPPED, id="being deleted"
        ),
        pytest.param(
            [*BEHIND, share_manager(state="stopped", owner="")],
            "vol-disk1",
            Reason.SHARE_MANAGER_STOPPED,
            id="stopped and without an owner",
        ),
        *(
            pytest.param(
                [*BEHIND, share_manager(state=state, owner=owner)],
                "vol-disk1",
                Reason.SHARE_MANAGER_UNASSIGNED,
                id=f"owner {owner!r} in state {state!r}",
            )
            for state, owner in (("running", ""), ("starting", None), ("", ""), (None, None))
        ),
    ],
)
def test_a_claim_without_a_node_says_why(objects: list[Object], handle: str | None, reason: Reason) -> None:
    finding = found(*objects)
    assert (finding.volume, finding.node, finding.source, finding.reason) == (handle, None, None, reason)


RUNNING_HERE = share_manager_pod(node="node-b")


@pytest.mark.parametrize(
    ("objects", "where", "source"),
    [
        pytest.param([RUNNING_HERE], "node-b", Source.SHARE_MANAGER_POD, id="its pod"),
        pytest.param(
            [share_manager_pod(node="node-b", phase="Pending")], "node-b", Source.SHARE_MANAGER_POD, id="Pending"
        ),
        pytest.param(
            [RUNNING_HERE, share_manager()], "node-b", Source.SHARE_MANAGER_POD, id="its pod before the owner"
        ),
        pytest.param(
            [RUNNING_HERE, share_manager(state="stopped")],
            "node-b",
            Source.SHARE_MANAGER_POD,
            id="its pod, in any state",
        ),
        pytest.param([share_manager()], "node-a", Source.SHARE_MANAGER, id="running"),
        pytest.param([share_manager(state="starting")], "node-a", Source.SHARE_MANAGER, id="starting"),
        pytest.param([share_manager(state="")], "node-a", Source.SHARE_MANAGER, id="an empty state"),
        pytest.param([share_manager(state=None)], "node-a", Source.SHARE_MANAGER, id="no state"),
        pytest.param([share_manager_pod(), share_manager()], "node-a", Source.SHARE_MANAGER, id="its pod is not bound"),
        *(
            pytest.param(
                [share_manager_pod(node="node-b", phase=phase), share_manager()],
                "node-a",
                Source.SHARE_MANAGER,
                id=phase,
            )
            for phase in ("Succeeded", "Failed", "Unknown")
        ),
        pytest.param(
            [share_manager_pod(node="node-b", deleting=True), share_manager()],
            "node-a",
            Source.SHARE_MANAGER,
            id="terminating",
        ),
        pytest.param(
            [share_manager_pod(namespace="default", node="node-b"), share_manager()],
            "node-a",
            Source.SHARE_MANAGER,
            id="a pod with its labels in another namespace",
        ),
        pytest.param(
            [share_manager_pod("vol-disk2", node="node-b"), share_manager()],
            "node-a",
            Source.SHARE_MANAGER,
            id="another's pod",
        ),
    ],
)
def test_a_claim_is_where_its_share_manager_is(objects: list[Object], where: str, source: Source) -> None:
    assert found(*BEHIND, *objects) == ClaimFinding("disk1", "vol-disk1", where, source)


@pytest.mark.parametrize(
    ("objects", "handle"),
    [
        pytest.param([claim(), volume(handle="restored")], "restored", id="a restored PV"),
        pytest.param([claim(volume="static"), volume(name="static", handle="by-hand")], "by-hand", id="a static PV"),
        pytest.param([claim(volume="vol-9")], "vol-9", id="a PV that is not known"),
        pytest.param([claim(modes=["ReadWriteOnce", "ReadWriteMany"]), volume()], "vol-disk1", id="several modes"),
    ],
)
def test_the_longhorn_volume_is_the_handle(objects: list[Object], handle: str) -> None:
    finding = found(*objects, share_manager(handle))
    assert (finding.volume, finding.node) == (handle, "node-a")


def test_claims_are_followed_in_volume_order_and_once() -> None:
    known = catalog(claim("b"), volume("b"), *storage("a", "node-a"))
    findings = resolve_all(virt_launcher(claims=["b", "a", "gone", "b"]), "default", known, LONGHORN)
    assert [(finding.claim, finding.node, finding.reason) for finding in findings] == [
        ("b", None, Reason.NO_SHARE_MANAGER),
        ("a", "node-a", None),
        ("gone", None, Reason.CLAIM_NOT_FOUND),
    ]


def test_the_pvs_of_all_claims_are_returned_whatever_their_driver() -> None:
    known = catalog(*storage("a"), claim("b", modes=["ReadWriteOnce"]), volume("b", driver="local"), claim("c"))
    findings = resolve_all(virt_launcher(claims=["a", "b", "c", "gone"]), "default", known, LONGHORN)
    assert [found.name for found in known_volumes(findings, "default", known)] == ["pvc-a", "pvc-b"]


@pytest.mark.parametrize(
    ("votes", "choice"),
    [
        pytest.param("", None, id="none"),
        pytest.param("a", Choice("a"), id="one"),
        pytest.param("aa", Choice("a"), id="two for one"),
        pytest.param("abb", Choice("b", ("a",)), id="the most"),
        pytest.param("ba", Choice("b", ("a",)), id="a tie goes to the first"),
        pytest.param("abba", Choice("a", ("b",)), id="a longer tie, too"),
        pytest.param("cabba", Choice("a", ("c", "b")), id="a tie behind a loser"),
        pytest.param("cbaabc", Choice("c", ("b", "a")), id="a tie of three"),
    ],
)
def test_the_most_votes_win_and_the_first_of_equals(votes: str, choice: Choice | None) -> None:
    assert most_voted(votes) == choice


@pytest.mark.parametrize(
    ("nodes", "choice"),
    [
        pytest.param(["a", "b!"], Choice("a"), id="behind a disk"),
        pytest.param(["b!", "a"], Choice("a"), id="before a disk"),
        pytest.param(["b!", "b!", "a"], Choice("a"), id="more of them"),
        pytest.param(["", "b!"], Choice("b"), id="beside a disk that no node serves"),
        pytest.param(["b!"], Choice("b"), id="alone"),
        pytest.param(["b!", "a!"], Choice("b", ("a",)), id="among themselves"),
        pytest.param(["!", ""], None, id="no node"),
        pytest.param(["a", "", "b", "b"], Choice("b", ("a",)), id="no such claim at all"),
    ],
)
def test_a_persistent_state_claim_votes_only_where_no_disk_does(nodes: list[str], choice: Choice | None) -> None:
    """A `!` marks the claim of a persistent vTPM or EFI state."""
    assert choose(ClaimFinding("x", node=n.strip("!") or None, persistent_state="!" in n) for n in nodes) == choice


def test_claims_in_disagreement_are_reported_and_the_most_win() -> None:
    served = [*storage("a", "node-a"), *storage("b", "node-b"), *storage("c", "node-b")]
    decision = decided(virt_launcher(claims=["a", "b", "c"]), *served, node("node-a"), node("node-b"))
    assert (decision.outcome, decision.node, decision.conflict) == (Outcome.PINNED, "node-b", True)
    assert decision.message == "pinned to node-b, which serves claims b and c; claim a is served by node-a"


def test_the_state_of_a_vm_elsewhere_is_no_disagreement() -> None:
    state = [claim("state", labels={"persistent-state-for": "vm1"}), *storage("state", "node-b")[1:]]
    decision = decided(virt_launcher(claims=["state", "disk1"]), *storage(), *state)
    assert (decision.node, decision.conflict) == ("node-a", False)
    assert [finding.node for finding in decision.claims] == ["node-b", "node-a"]


@pytest.mark.parametrize(
    ("objects", "why"),
    [
        ([], "disk1 (ClaimNotFound), disk2 (ClaimNotFound)"),
        ([claim(volume=""), claim("disk2", modes=["ReadWriteOnce"])], "disk1 (ClaimNotBound), disk2 (ClaimNotRWX)"),
        (
            [*BEHIND, claim("disk2"), share_manager(state="stopped")],
            "disk1 (ShareManagerStopped), disk2 (NoShareManager)",
        ),
    ],
    ids=["no claims", "two reasons", "a cold start"],
)
def test_without_any_node_the_reason_of_each_claim_is_told(objects: list[Object], why: str) -> None:
    decision = decided(virt_launcher(claims=["disk1", "disk2"]), *objects, node())
    assert (decision.outcome, decision.reason, decision.node) == (Outcome.UNCHANGED, Reason.NO_SHARE_MANAGER, None)
    assert (decision.message, decision.conflict, len(decision.claims)) == (f"no claim has a node: {why}", False, 2)
