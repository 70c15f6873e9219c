"""Required pod (anti-)affinity is judged as the scheduler judges it, in both directions."""

from typing import Any

import pytest

from tests.support.builders import (
    ZONE,
    Object,
    apart,
    catalog,
    decided,
    node,
    pinned,
    pod,
    pod_term,
    storage,
    together,
    virt_launcher,
)
from webhook.placement.decision import Outcome, Reason
from webhook.placement.feasibility import Candidate
from webhook.placement.podaffinity import COMPARISONS, InterPodAffinity

EAST, WEST = {ZONE: "east"}, {ZONE: "west"}
NODES = [node("node-a", labels=EAST), node("node-b", labels=EAST), node("node-c", labels=WEST), node("node-d")]
WEB = {"app": "web"}
NO_WEB, WITH_WEB = apart(pod_term(WEB)), together(pod_term(WEB))


def reason(vm: Object, *others: Object, nodes: list[Object] = NODES) -> Reason:
    return decided(vm, *storage(), *nodes, *others).reason


def web(where: str, name: str = "web", **rest: Any) -> Object:
    return pod(name, labels=WEB, node=where, **rest)


def unbound_web(where: str, *, affinity: Object | None = None) -> Object:
    """A pod that we pinned and that is not bound yet."""
    fields = pinned(where)
    return pod("web", labels=WEB, **(fields | {"affinity": fields["affinity"] | (affinity or {})}))


@pytest.mark.parametrize(
    ("vm", "other", "refused"),
    [
        pytest.param(NO_WEB, web("node-a"), True, id="on the node"),
        pytest.param(NO_WEB, web("node-b"), False, id="on another node"),
        pytest.param(NO_WEB, web("node-a", namespace="other"), False, id="of another namespace"),
        pytest.param(NO_WEB, pod("db", labels={"app": "db"}, node="node-a"), False, id="of another label"),
        pytest.param(NO_WEB, web("node-a", deleting=True), True, id="terminating"),
        pytest.param(NO_WEB, web("node-a", phase="Failed"), False, id="finished"),
        pytest.param(NO_WEB, pod("web", labels=WEB), False, id="without a node"),
        pytest.param(NO_WEB, unbound_web("node-a"), True, id="pinned to the node"),
        pytest.param(NO_WEB, unbound_web("node-b"), False, id="pinned to another node"),
        pytest.param(apart(pod_term(None)), web("node-a"), False, id="no selector"),
        pytest.param(apart(pod_term(None, labelSelector={})), web("node-a"), True, id="an empty selector"),
        pytest.param(apart(pod_term(WEB, ZONE)), web("node-b"), True, id="in the zone"),
        pytest.param(apart(pod_term(WEB, ZONE)), web("node-c"), False, id="in another zone"),
        pytest.param(apart(pod_term(WEB, ZONE)), web("node-d"), False, id="on a node without a zone"),
        pytest.param(apart(pod_term(WEB, "rack")), web("node-a"), False, id="by a label that no node has"),
        pytest.param(apart(pod_term(WEB)), web("node-gone"), False, id="on a node that is gone"),
        pytest.param(
            apart(pod_term(WEB, namespaces=["other"])), web("node-a", namespace="other"), True, id="a named namespace"
        ),
        pytest.param(apart(pod_term(WEB, namespaces=["other"])), web("node-a"), False, id="not the named namespace"),
        pytest.param(apart(pod_term({"app": "db"}), pod_term(WEB)), web("node-a"), True, id="the second term"),
    ],
)
def test_a_vm_does_not_go_where_the_pods_are_that_it_repels(vm: Object, other: Object, refused: bool) -> None:
    expected = Reason.POD_AFFINITY if refused else Reason.CO_SCHEDULED
    assert reason(virt_launcher(affinity=vm), other) is expected


@pytest.mark.parametrize(
    ("other", "refused"),
    [
        pytest.param(pod("x", node="node-a", affinity=NO_WEB), True, id="on the node"),
        pytest.param(pod("x", node="node-b", affinity=NO_WEB), False, id="on another node"),
        pytest.param(pod("x", "other", node="node-a", affinity=NO_WEB), False, id="of another namespace"),
        pytest.param(
            pod("x", "other", node="node-a", affinity=apart(pod_term(WEB, namespaces=["default"]))),
            True,
            id="from elsewhere",
        ),
        pytest.param(
            pod("x", node="node-a", affinity=apart(pod_term({"app": "db"}))), False, id="repels another label"
        ),
        pytest.param(pod("x", node="node-b", affinity=apart(pod_term(WEB, ZONE))), True, id="in the zone"),
        pytest.param(pod("x", node="node-c", affinity=apart(pod_term(WEB, ZONE))), False, id="in another zone"),
        pytest.param(
            pod("x", node="node-d", affinity=apart(pod_term(WEB, ZONE))), False, id="on a node without a zone"
        ),
        pytest.param(pod("x", node="node-a", affinity=NO_WEB, deleting=True), True, id="terminating"),
        pytest.param(pod("x", node="node-a", affinity=NO_WEB, phase="Succeeded"), False, id="finished"),
        pytest.param(pod("x", affinity=NO_WEB), False, id="without a node"),
        pytest.param(unbound_web("node-a", affinity=NO_WEB), True, id="pinned to the node"),
        pytest.param(
            pod("x", node="node-a", affinity=together(pod_term({"app": "db"}))),
            False,
            id="its affinity binds only itself",
        ),
        pytest.param(
            pod("x", node="node-a", labels={"tier": "front"}, affinity=apart(pod_term(WEB, matchLabelKeys=["tier"]))),
            False,
            id="only those of its own tier",
        ),
    ],
)
def test_a_vm_does_not_go_where_a_pod_repels_it(other: Object, refused: bool) -> None:
    expected = Reason.POD_AFFINITY if refused else Reason.CO_SCHEDULED
    assert reason(virt_launcher(labels=WEB), other) is expected


@pytest.mark.parametrize(
    ("keys", "tier", "refused"),
    [
        ({"matchLabelKeys": ["tier"]}, "front", True),
        ({"matchLabelKeys": ["tier"]}, "back", False),
        ({"mismatchLabelKeys": ["tier"]}, "front", False),
        ({"mismatchLabelKeys": ["tier"]}, "back", True),
        ({"matchLabelKeys": ["absent"]}, "back", True),
    ],
    ids=["the same tier", "another tier", "not the same tier", "not another tier", "a label it has not"],
)
def test_label_keys_are_those_of_the_vm(keys: Object, tier: str, refused: bool) -> None:
    vm = virt_launcher(labels={"tier": "front"}, affinity=apart(pod_term(WEB, **keys)))
    other = pod("x", labels=WEB | {"tier": tier}, node="node-a")
    assert reason(vm, other) is (Reason.POD_AFFINITY if refused else Reason.CO_SCHEDULED)


SELF = virt_launcher(labels=WEB, affinity=WITH_WEB)
BY_ZONE_AND_NODE = together(pod_term(WEB, ZONE), pod_term({"tier": "front"}))


@pytest.mark.parametrize(
    ("vm", "others", "refused"),
    [
        pytest.param(virt_launcher(affinity=WITH_WEB), [web("node-a")], False, id="its friend is there"),
        pytest.param(virt_launcher(affinity=WITH_WEB), [web("node-b")], True, id="its friend is elsewhere"),
        pytest.param(
            virt_launcher(affinity=WITH_WEB), [web("node-b"), web("node-a", "two")], False, id="one of its friends"
        ),
        pytest.param(virt_launcher(affinity=WITH_WEB), [], True, id="it has no friend"),
        pytest.param(
            virt_launcher(affinity=WITH_WEB), [web("node-a", namespace="other")], True, id="a friend elsewhere"
        ),
        pytest.param(
            virt_launcher(affinity=WITH_WEB), [unbound_web("node-a")], True, id="its friend may come too late"
        ),
        pytest.param(virt_launcher(affinity=together(pod_term(WEB, ZONE))), [web("node-b")], False, id="in the zone"),
        pytest.param(
            virt_launcher(affinity=together(pod_term(WEB, "rack"))), [web("node-a")], True, id="by no node's label"
        ),
        pytest.param(SELF, [], False, id="the first of its kind fulfils it itself"),
        pytest.param(SELF, [web("node-a")], False, id="the second joins the first"),
        pytest.param(SELF, [web("node-b")], True, id="the second does not stay alone"),
        pytest.param(SELF, [web("node-b", namespace="other")], False, id="the first of its namespace"),
        pytest.param(SELF, [web("node-b", phase="Succeeded")], False, id="the others have finished"),
        pytest.param(SELF, [web("node-b", deleting=True)], True, id="the other is terminating"),
        pytest.param(SELF, [pod("web", labels=WEB)], False, id="the other has no node yet"),
        pytest.param(SELF, [unbound_web("node-b")], True, id="the other is pinned elsewhere"),
        pytest.param(SELF, [unbound_web("node-a")], False, id="the other is pinned here"),
        pytest.param(
            virt_launcher(labels=WEB, affinity=together(pod_term(WEB, "rack"))),
            [],
            True,
            id="alone, by no node's label",
        ),
        pytest.param(
            virt_launcher(labels=WEB, affinity=together(pod_term(WEB, "rack"))),
            [web("node-b")],
            True,
            id="by no node's label at all",
        ),
        pytest.param(
            virt_launcher(labels=WEB, affinity=together(pod_term(WEB), pod_term({"tier": "x"}))),
            [],
            True,
            id="itself but for a term",
        ),
        pytest.param(
            virt_launcher(affinity=BY_ZONE_AND_NODE),
            [pod("x", labels=WEB, node="node-b"), pod("y", labels={"tier": "front"}, node="node-a")],
            True,
            id="two friends that each know one term",
        ),
        pytest.param(
            virt_launcher(affinity=BY_ZONE_AND_NODE),
            [pod("x", labels=WEB | {"tier": "front"}, node="node-a")],
            False,
            id="a friend that knows both terms",
        ),
        pytest.param(
            virt_launcher(affinity=BY_ZONE_AND_NODE),
            [pod("x", labels=WEB | {"tier": "front"}, node="node-b")],
            True,
            id="a friend in the zone and not on the node",
        ),
    ],
)
def test_a_vm_goes_where_the_pods_are_that_it_requires(vm: Object, others: list[Object], refused: bool) -> None:
    assert reason(vm, *others) is (Reason.POD_AFFINITY if refused else Reason.CO_SCHEDULED)


def test_a_friend_by_a_label_that_only_its_own_node_has_is_a_friend_elsewhere() -> None:
    racked = [node("node-a", labels={"rack": "1"}), node("node-b", labels={"rack": "2"}), node("node-c")]
    vm = virt_launcher(labels=WEB, affinity=together(pod_term(WEB, "rack")))
    assert reason(vm, web("node-c"), nodes=racked) is Reason.CO_SCHEDULED
    assert reason(vm, web("node-b"), nodes=racked) is Reason.POD_AFFINITY


def test_a_friend_on_a_node_that_is_gone_is_none() -> None:
    assert reason(SELF, web("node-gone")) is Reason.CO_SCHEDULED


def test_a_vm_does_not_repel_itself() -> None:
    vm = virt_launcher("vm", labels=WEB, affinity=NO_WEB)
    here = virt_launcher("vm", labels=WEB, node="node-a", affinity=NO_WEB)
    assert reason(vm, here) is Reason.CO_SCHEDULED
    assert reason(virt_launcher("another", labels=WEB, affinity=NO_WEB), here) is Reason.POD_AFFINITY


def test_two_vms_that_share_a_disk_and_repel_each_other_are_not_both_pinned() -> None:
    first = virt_launcher("one", labels=WEB, node="node-a", affinity=NO_WEB)
    decision = decided(virt_launcher(labels=WEB, affinity=NO_WEB), *storage(), *NODES, first)
    assert (decision.outcome, decision.reason, decision.node) == (Outcome.PREFERRED, Reason.POD_AFFINITY, "node-a")
    assert "default/one repels this pod" in decision.message


@pytest.mark.parametrize(
    ("vm", "other", "refused"),
    [
        pytest.param(virt_launcher(affinity=NO_WEB), web("node-a"), True, id="on the same node, whatever it is"),
        pytest.param(virt_launcher(affinity=apart(pod_term(WEB, ZONE))), web("node-b"), False, id="on another node"),
        pytest.param(virt_launcher(affinity=WITH_WEB), web("node-b"), False, id="affinity"),
    ],
)
def test_without_any_node_known_only_what_is_on_the_same_node_counts(vm: Object, other: Object, refused: bool) -> None:
    assert reason(vm, other, nodes=[]) is (Reason.POD_AFFINITY if refused else Reason.CO_SCHEDULED)


def test_a_pod_without_a_name_has_an_empty_one() -> None:
    assert Candidate(virt_launcher(), "default", "node-a", (), catalog()).pod_facts.key == ("default", "")


TOO_MUCH = "required pod (anti-)affinity with so many terms and pods"
APART_BY_LABEL = apart(pod_term(WEB, namespaceSelector={}))


@pytest.mark.parametrize(
    ("affinity", "other", "comparisons"),
    [
        pytest.param(NO_WEB, web("node-b"), 2, id="a pod with the VM's term"),
        pytest.param(None, web("node-b", affinity=NO_WEB), 2, id="the VM with a pod's term"),
        pytest.param(None, web("node-b", affinity=APART_BY_LABEL), 2, id="one that can't be judged"),
        pytest.param(
            None, web("node-a", affinity=apart(pod_term(WEB))), 4, id="the VM with the term of a pod beside it"
        ),
        pytest.param(None, web("node-a", affinity=APART_BY_LABEL), 4, id="one beside it that can't be judged"),
        pytest.param(WITH_WEB, web("node-a"), 4, id="a pod that the VM requires"),
    ],
)
def test_more_than_so_much_is_not_compared(affinity: Object | None, other: Object, comparisons: int) -> None:
    vm = virt_launcher(affinity=affinity) if affinity else virt_launcher()
    candidate = Candidate(vm, "default", "node-a", (), catalog(*storage(), *NODES, other))
    whole = candidate.pod_affinity
    verdicts = whole.conflict(), whole.unjudged()
    assert verdicts == (None, None)
    assert COMPARISONS - whole.left == comparisons
    for left in range(comparisons):
        short = InterPodAffinity(whole.pod, whole.affinity_terms, whole.catalog, left)
        assert (short.conflict(), short.unjudged()) == (None, TOO_MUCH), left


def test_a_vm_with_more_terms_than_can_be_compared_is_not_pinned() -> None:
    excluded = {"key": "app", "operator": "NotIn", "values": [f"app-{number}" for number in range(1000)]}
    terms = [pod_term(None, labelSelector={"matchExpressions": [excluded]}) for _ in range(COMPARISONS // 1000)]
    decision = decided(virt_launcher(affinity=apart(*terms)), *storage(), *NODES, web("node-b"))
    assert (decision.outcome, decision.reason) == (Outcome.PREFERRED, Reason.UNJUDGED)
    assert f"{TOO_MUCH} is not judged" in decision.message
