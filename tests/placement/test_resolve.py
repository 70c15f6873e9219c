"""A claim resolves to the node of its share-manager, and the claims of a VM elect one node."""

import pytest

from tests.support.builders import (
    Object,
    catalog,
    claim,
    decision_for,
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
CLAIM_AND_PV = [claim(), volume()]


def resolved(*objects: Object) -> ClaimFinding:
    return resolve("disk1", "default", catalog(*objects), LONGHORN)


@pytest.mark.parametrize(
    ("objects", "handle", "reason"),
    [
        pytest.param([], None, Reason.CLAIM_NOT_FOUND, id="a missing claim"),
        pytest.param(
            [claim(namespace="other"), volume()], None, Reason.CLAIM_NOT_FOUND, id="a claim in another namespace"
        ),
        pytest.param([claim(modes=["ReadWriteOnce"])], None, Reason.CLAIM_NOT_RWX, id="ReadWriteOnce"),
        pytest.param(
            [claim(modes=["ReadWriteOncePod", "ReadOnlyMany"])], None, Reason.CLAIM_NOT_RWX, id="other access modes"
        ),
        pytest.param([claim(modes=[])], None, Reason.CLAIM_NOT_RWX, id="no access mode"),
        pytest.param(
            [claim(modes=["ReadWriteOnce"], volume="")],
            None,
            Reason.CLAIM_NOT_RWX,
            id="neither ReadWriteMany nor bound",
        ),
        pytest.param([claim(volume="")], None, Reason.CLAIM_NOT_BOUND, id="an unbound claim"),
        pytest.param(
            [claim(), volume(driver="nfs.csi.k8s.io")], None, Reason.NOT_LONGHORN, id="a PV of another driver"
        ),
        pytest.param([claim(), volume(handle="")], None, Reason.NOT_LONGHORN, id="a PV without a handle"),
        pytest.param(
            [claim(), volume() | {"spec": {"nfs": {"server": "x"}}}],
            None,
            Reason.NOT_LONGHORN,
            id="a PV without CSI",
        ),
        pytest.param([claim(), volume() | {"spec": None}], None, Reason.NOT_LONGHORN, id="a PV without a spec"),
        pytest.param(CLAIM_AND_PV, "vol-disk1", Reason.NO_SHARE_MANAGER, id="no share-manager"),
        pytest.param([claim()], "pvc-disk1", Reason.NO_SHARE_MANAGER, id="an unknown PV is resolved by its name"),
        pytest.param(
            [*CLAIM_AND_PV, share_manager("pvc-disk1")],
            "vol-disk1",
            Reason.NO_SHARE_MANAGER,
            id="a share-manager named after the PV",
        ),
        pytest.param(
            [*CLAIM_AND_PV, share_manager(namespace="default")],
            "vol-disk1",
            Reason.NO_SHARE_MANAGER,
            id="a share-manager in another namespace",
        ),
        *(
            pytest.param(
                [*CLAIM_AND_PV, share_manager(state=s)], "vol-disk1", Reason.SHARE_MANAGER_STOPPED, id=f"state {s}"
            )
            for s in ("stopped", "stopping", "error", "unknown", "Running", "tomorrow's")
        ),
        pytest.param(
            [*CLAIM_AND_PV, share_manager(deleting=True)],
            "vol-disk1",
            Reason.SHARE_MANAGER_STOPPED,
            id="a ShareManager being deleted",
        ),
        pytest.param(
            [*CLAIM_AND_PV, share_manager(state="stopped", owner="")],
            "vol-disk1",
            Reason.SHARE_MANAGER_STOPPED,
            id="a stopped ShareManager without an owner",
        ),
        *(
            pytest.param(
                [*CLAIM_AND_PV, share_manager(state=state, owner=owner)],
                "vol-disk1",
                Reason.SHARE_MANAGER_UNASSIGNED,
                id=f"owner {owner!r} in state {state!r}",
            )
            for state, owner in (("running", ""), ("starting", None), ("", ""), (None, None))
        ),
    ],
)
def test_a_claim_without_a_node_has_a_reason(objects: list[Object], handle: str | None, reason: Reason) -> None:
    finding = resolved(*objects)
    assert (finding.volume, finding.node, finding.source, finding.reason) == (handle, None, None, reason)


RUNNING_POD = share_manager_pod(node="node-b")


@pytest.mark.parametrize(
    ("objects", "serving_node", "source"),
    [
        pytest.param([RUNNING_POD], "node-b", Source.SHARE_MANAGER_POD, id="the pod's node"),
        pytest.param(
            [share_manager_pod(node="node-b", phase="Pending")],
            "node-b",
            Source.SHARE_MANAGER_POD,
            id="a Pending pod's node",
        ),
        pytest.param(
            [RUNNING_POD, share_manager()], "node-b", Source.SHARE_MANAGER_POD, id="the pod's node before the owner"
        ),
        pytest.param(
            [RUNNING_POD, share_manager(state="stopped")],
            "node-b",
            Source.SHARE_MANAGER_POD,
            id="the pod's node in any state",
        ),
        pytest.param([share_manager()], "node-a", Source.SHARE_MANAGER, id="the owner of a running ShareManager"),
        pytest.param(
            [share_manager(state="starting")], "node-a", Source.SHARE_MANAGER, id="the owner of a starting ShareManager"
        ),
        pytest.param(
            [share_manager(state="")],
            "node-a",
            Source.SHARE_MANAGER,
            id="the owner of a ShareManager with an empty state",
        ),
        pytest.param(
            [share_manager(state=None)],
            "node-a",
            Source.SHARE_MANAGER,
            id="the owner of a ShareManager without a state",
        ),
        pytest.param(
            [share_manager_pod(), share_manager()],
            "node-a",
            Source.SHARE_MANAGER,
            id="the owner while the pod is unbound",
        ),
        *(
            pytest.param(
                [share_manager_pod(node="node-b", phase=phase), share_manager()],
                "node-a",
                Source.SHARE_MANAGER,
                id=f"the owner while the pod is {phase}",
            )
            for phase in ("Succeeded", "Failed", "Unknown")
        ),
        pytest.param(
            [share_manager_pod(node="node-b", deleting=True), share_manager()],
            "node-a",
            Source.SHARE_MANAGER,
            id="the owner while the pod is terminating",
        ),
        pytest.param(
            [share_manager_pod(namespace="default", node="node-b"), share_manager()],
            "node-a",
            Source.SHARE_MANAGER,
            id="the owner beside a pod in another namespace",
        ),
        pytest.param(
            [share_manager_pod("vol-disk2", node="node-b"), share_manager()],
            "node-a",
            Source.SHARE_MANAGER,
            id="the owner beside another volume's pod",
        ),
    ],
)
def test_a_claim_resolves_to_the_node_of_its_share_manager(
    objects: list[Object], serving_node: str, source: Source
) -> None:
    assert resolved(*CLAIM_AND_PV, *objects) == ClaimFinding("disk1", "vol-disk1", serving_node, source)


@pytest.mark.parametrize(
    ("objects", "handle"),
    [
        pytest.param([claim(), volume(handle="restored")], "restored", id="a restored PV's handle"),
        pytest.param(
            [claim(volume="static"), volume(name="static", handle="by-hand")], "by-hand", id="a static PV's handle"
        ),
        pytest.param([claim(volume="vol-9")], "vol-9", id="an unknown PV's name"),
        pytest.param(
            [claim(modes=["ReadWriteOnce", "ReadWriteMany"]), volume()], "vol-disk1", id="several access modes"
        ),
    ],
)
def test_the_longhorn_volume_is_the_pvs_handle(objects: list[Object], handle: str) -> None:
    finding = resolved(*objects, share_manager(handle))
    assert (finding.volume, finding.node) == (handle, "node-a")


def test_claims_are_resolved_in_volume_order_and_once() -> None:
    store = catalog(claim("b"), volume("b"), *storage("a", "node-a"))
    findings = resolve_all(virt_launcher(claims=["b", "a", "gone", "b"]), "default", store, LONGHORN)
    assert [(finding.claim, finding.node, finding.reason) for finding in findings] == [
        ("b", None, Reason.NO_SHARE_MANAGER),
        ("a", "node-a", None),
        ("gone", None, Reason.CLAIM_NOT_FOUND),
    ]


def test_known_volumes_include_the_pvs_of_every_driver() -> None:
    store = catalog(*storage("a"), claim("b", modes=["ReadWriteOnce"]), volume("b", driver="local"), claim("c"))
    findings = resolve_all(virt_launcher(claims=["a", "b", "c", "gone"]), "default", store, LONGHORN)
    assert [pv.name for pv in known_volumes(findings, "default", store)] == ["pvc-a", "pvc-b"]


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


def test_conflicting_claims_are_reported_and_the_majority_wins() -> None:
    objects = [*storage("a", "node-a"), *storage("b", "node-b"), *storage("c", "node-b")]
    decision = decision_for(virt_launcher(claims=["a", "b", "c"]), *objects, node("node-a"), node("node-b"))
    assert (decision.outcome, decision.node, decision.conflict) == (Outcome.PINNED, "node-b", True)
    assert decision.message == "pinned to node-b, which serves claims b and c; claim a is served by node-a"


def test_a_persistent_state_on_another_node_is_not_a_conflict() -> None:
    state = [claim("state", labels={"persistent-state-for": "vm1"}), *storage("state", "node-b")[1:]]
    decision = decision_for(virt_launcher(claims=["state", "disk1"]), *storage(), *state)
    assert (decision.node, decision.conflict) == ("node-a", False)
    assert [finding.node for finding in decision.claims] == ["node-b", "node-a"]


@pytest.mark.parametrize(
    ("objects", "reasons"),
    [
        ([], "disk1 (ClaimNotFound), disk2 (ClaimNotFound)"),
        ([claim(volume=""), claim("disk2", modes=["ReadWriteOnce"])], "disk1 (ClaimNotBound), disk2 (ClaimNotRWX)"),
        (
            [*CLAIM_AND_PV, claim("disk2"), share_manager(state="stopped")],
            "disk1 (ShareManagerStopped), disk2 (NoShareManager)",
        ),
    ],
    ids=["two missing claims", "two reasons", "a cold start"],
)
def test_without_any_node_the_message_lists_the_reason_of_each_claim(objects: list[Object], reasons: str) -> None:
    decision = decision_for(virt_launcher(claims=["disk1", "disk2"]), *objects, node())
    assert (decision.outcome, decision.reason, decision.node) == (Outcome.UNCHANGED, Reason.NO_SHARE_MANAGER, None)
    assert (decision.message, decision.conflict, len(decision.claims)) == (f"no claim has a node: {reasons}", False, 2)
