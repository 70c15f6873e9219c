"""Required pod (anti-)affinity is evaluated as in the scheduler, for the VM's terms and for other pods' terms."""

from typing import Any

import pytest

from tests.support.builders import (
    ZONE,
    Object,
    decision_for,
    node,
    pinned_fields,
    pod,
    pod_affinity,
    pod_anti_affinity,
    pod_term,
    preferring_fields,
    share_manager_pod,
    storage,
    virt_launcher,
    virtual_machine,
)
from webhook.placement.guard.comparison_limit import MAX_COMPARISONS
from webhook.placement.reasons import Reason

EAST, WEST = {ZONE: "east"}, {ZONE: "west"}
NODES = [node("node-a", labels=EAST), node("node-b", labels=EAST), node("node-c", labels=WEST), node("node-d")]
WEB = {"app": "web"}
REPELS_WEB, REQUIRES_WEB = pod_anti_affinity(pod_term(WEB)), pod_affinity(pod_term(WEB))


def reason(vm: Object, *others: Object, nodes: list[Object] = NODES) -> Reason:
    return decision_for(vm, *storage(), *nodes, *others).reason


def web(node_name: str, name: str = "web", **rest: Any) -> Object:
    return pod(name, labels=WEB, node=node_name, **rest)


def unbound_web(node_name: str, *, affinity: Object | None = None) -> Object:
    """Build an unscheduled pod that the webhook pinned to the node."""
    fields = pinned_fields(node_name)
    return virt_launcher("web", labels=WEB, **(fields | {"affinity": fields["affinity"] | (affinity or {})}))


def preferring_web(node_name: str) -> Object:
    """Build an unscheduled VM pod that only prefers the node."""
    return virt_launcher("web", labels=WEB, **preferring_fields(node_name))


@pytest.mark.parametrize(
    ("affinity", "other", "rejected"),
    [
        pytest.param(REPELS_WEB, web("node-a"), True, id="a match on the node is rejected"),
        pytest.param(REPELS_WEB, preferring_web("node-a"), True, id="a match that prefers the node is rejected"),
        pytest.param(REPELS_WEB, web("node-a", namespace="other"), False, id="a match in another namespace passes"),
        pytest.param(REPELS_WEB, web("node-a", deleting=True), True, id="a terminating match is rejected"),
        pytest.param(REPELS_WEB, unbound_web("node-a"), True, id="a match pinned to the node is rejected"),
        pytest.param(
            pod_anti_affinity(pod_term(WEB, "rack")), web("node-a"), False, id="a topology key that no node has passes"
        ),
        pytest.param(pod_anti_affinity(pod_term(WEB, ZONE)), web("node-b"), True, id="a match in the zone is rejected"),
    ],
)
def test_the_vms_anti_affinity_rejects_the_node_of_a_match(affinity: Object, other: Object, rejected: bool) -> None:
    expected = Reason.POD_AFFINITY if rejected else Reason.CO_SCHEDULED
    assert reason(virt_launcher(affinity=affinity), other) is expected


@pytest.mark.parametrize(
    ("other", "rejected"),
    [
        pytest.param(pod("x", node="node-a", affinity=REPELS_WEB), True, id="a pod on the node repels the VM"),
        pytest.param(
            pod("x", node="node-b", affinity=pod_anti_affinity(pod_term(WEB, ZONE))),
            True,
            id="a pod in the zone repels the VM",
        ),
        pytest.param(unbound_web("node-a", affinity=REPELS_WEB), True, id="a pod pinned to the node repels the VM"),
    ],
)
def test_the_anti_affinity_of_an_existing_pod_rejects_the_node(other: Object, rejected: bool) -> None:
    expected = Reason.POD_AFFINITY if rejected else Reason.CO_SCHEDULED
    assert reason(virt_launcher(labels=WEB), other) is expected


WEB_REQUIRES_WEB = virt_launcher(labels=WEB, affinity=REQUIRES_WEB)
WEB_IN_ZONE_AND_FRONT_ON_NODE = pod_affinity(pod_term(WEB, ZONE), pod_term({"tier": "front"}))


@pytest.mark.parametrize(
    ("vm", "others", "rejected"),
    [
        pytest.param(
            virt_launcher(affinity=REQUIRES_WEB), [web("node-b")], True, id="a match on another node is rejected"
        ),
        pytest.param(
            virt_launcher(affinity=REQUIRES_WEB),
            [unbound_web("node-a")],
            True,
            id="a match pinned to the node is rejected until bound",
        ),
        pytest.param(WEB_REQUIRES_WEB, [], False, id="the first pod of a group matches itself"),
        pytest.param(WEB_REQUIRES_WEB, [web("node-b")], True, id="the second pod is rejected away from the first"),
        pytest.param(WEB_REQUIRES_WEB, [unbound_web("node-a")], False, id="a match pinned to the node passes"),
        pytest.param(
            virt_launcher(labels=WEB, affinity=pod_affinity(pod_term(WEB, "rack"))),
            [],
            True,
            id="the first pod with a topology key that no node has is rejected",
        ),
        pytest.param(
            virt_launcher(labels=WEB, affinity=pod_affinity(pod_term(WEB), pod_term({"tier": "x"}))),
            [],
            True,
            id="a first pod that fails one of its terms is rejected",
        ),
        pytest.param(
            virt_launcher(affinity=WEB_IN_ZONE_AND_FRONT_ON_NODE),
            [pod("x", labels=WEB, node="node-b"), pod("y", labels={"tier": "front"}, node="node-a")],
            True,
            id="two pods that each match one term are rejected",
        ),
    ],
)
def test_the_vms_affinity_requires_a_match_in_the_topology_domain(
    vm: Object, others: list[Object], rejected: bool
) -> None:
    assert reason(vm, *others) is (Reason.POD_AFFINITY if rejected else Reason.CO_SCHEDULED)


def test_a_match_on_a_node_without_the_topology_key_is_ignored() -> None:
    nodes = [node("node-a", labels={"rack": "1"}), node("node-b", labels={"rack": "2"}), node("node-c")]
    vm = virt_launcher(labels=WEB, affinity=pod_affinity(pod_term(WEB, "rack")))
    assert reason(vm, web("node-c"), nodes=nodes) is Reason.CO_SCHEDULED
    assert reason(vm, web("node-b"), nodes=nodes) is Reason.POD_AFFINITY


def test_a_vm_does_not_repel_itself() -> None:
    vm = virt_launcher("vm", labels=WEB, affinity=REPELS_WEB)
    running = virt_launcher("vm", labels=WEB, node="node-a", affinity=REPELS_WEB)
    assert reason(vm, running) is Reason.CO_SCHEDULED
    assert reason(virt_launcher("another", labels=WEB, affinity=REPELS_WEB), running) is Reason.POD_AFFINITY


def crowd(namespace: str, selector: Object | None = None, **term: Any) -> list[Object]:
    """Build a pod for each comparison of a review. With a selector, each has an anti-affinity term."""
    affinity = pod_anti_affinity(pod_term(None, labelSelector=selector, **term)) if selector is not None else None
    return [
        pod(f"web-{each}", namespace, labels=WEB, node="node-a", affinity=affinity) for each in range(MAX_COMPARISONS)
    ]


def oversized_pod(namespace: str) -> Object:
    return pod("large", namespace, node="node-b", labels={f"label-{number}": "x" for number in range(500)})


TOLERATIONS = [{"key": "x", "operator": "Exists"}] * 6000


def a_vm(*repelled: Object, **rest: Any) -> Object:
    rest = {"tolerations": TOLERATIONS[:1]} | rest
    return virt_launcher(affinity=pod_anti_affinity(*repelled), annotations={"kubevirt.io/domain": "vm1"}, **rest)


NOTHING, ANY = {"matchLabels": {"app": "db"}}, {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}


@pytest.mark.parametrize(
    ("vm", "others", "expected"),
    [
        pytest.param(a_vm(pod_term(WEB)), crowd("other"), Reason.CO_SCHEDULED, id="pods of another namespace"),
        pytest.param(
            a_vm(pod_term({"rack": "1"}, "rack"), pod_term(None, labelSelector=ANY)),
            crowd("default"),
            Reason.UNJUDGED,
            id="a term without a label to look up",
        ),
        pytest.param(a_vm(pod_term({"app": "db"})), crowd("default"), Reason.CO_SCHEDULED, id="pods without the label"),
        pytest.param(a_vm(), crowd("default", NOTHING), Reason.CO_SCHEDULED, id="terms that require another label"),
        pytest.param(
            a_vm(labels=WEB),
            crowd("default", ANY),
            Reason.UNJUDGED,
            id="terms without a label of the VM's own namespace",
        ),
        pytest.param(
            a_vm(), crowd("other", ANY), Reason.CO_SCHEDULED, id="terms of another namespace for its own pods"
        ),
        pytest.param(
            a_vm(*(pod_term({f"label-{number}": "x"}) for number in range(60))),
            [],
            Reason.UNJUDGED,
            id="60 terms of the VM",
        ),
        pytest.param(
            a_vm(), [oversized_pod("default")], Reason.UNJUDGED, id="an oversized pod of the VM's own namespace"
        ),
        pytest.param(a_vm(tolerations=TOLERATIONS[:2000]), [], Reason.CO_SCHEDULED, id="2,000 tolerations"),
        pytest.param(a_vm(tolerations=TOLERATIONS), [], Reason.UNJUDGED, id="6,000 tolerations"),
    ],
)
def test_a_vm_that_needs_too_many_comparisons_is_only_preferred(
    vm: Object, others: list[Object], expected: Reason
) -> None:
    nodes = [node("node-a", taints=[{"key": "x", "effect": "NoSchedule"}]), node("node-b")]
    decision = decision_for(vm, *storage(), *nodes, *others, virtual_machine("vm1"))
    assert (decision.reason, decision.passed_over) == (expected, False)


@pytest.mark.parametrize("restarts", [True, False], ids=["a VM that restarts", "a VM that does not restart"])
@pytest.mark.parametrize(
    "others", [crowd("other", ANY, namespaces=["default"]), [oversized_pod("other")]], ids=["5,000 terms", "oversized"]
)
def test_other_namespaces_soften_only_a_vm_that_the_release_could_not_restart(
    others: list[Object], restarts: bool
) -> None:
    vm = virtual_machine("vm1", strategy="Always" if restarts else "Manual")
    decision = decision_for(a_vm(labels=WEB), *storage(), *NODES, *others, vm)
    assert (decision.reason, decision.passed_over) == (Reason.CO_SCHEDULED if restarts else Reason.UNJUDGED, True)


def test_a_term_of_the_vm_passes_over_an_oversized_pod_of_another_namespace() -> None:
    others, repelled = [oversized_pod("other")], pod_term({"app": "db"}) | {"namespaces": ["other"]}
    decision = decision_for(a_vm(repelled), *storage(), *NODES, *others, virtual_machine("vm1"))
    assert (decision.reason, decision.passed_over) == (Reason.CO_SCHEDULED, True)


def test_a_share_manager_pod_is_steered_past_an_oversized_pod() -> None:
    user = virt_launcher("vm", node="node-a")
    decision = decision_for(share_manager_pod(), *storage(), *NODES, user, oversized_pod("other"))
    assert (decision.reason, decision.node) == (Reason.CO_SCHEDULED, "node-a")


@pytest.mark.parametrize(("tolerations", "steered"), [(1000, True), (3000, False)])
def test_the_nodes_of_a_steering_share_the_comparisons(tolerations: int, steered: bool) -> None:
    nodes = [node("node-a", unschedulable=True), node("node-b", unschedulable=True), node("node-c")]
    vms = [virt_launcher(f"vm-{name}", node=f"node-{name}") for name in "abc"]
    server = share_manager_pod(tolerations=[{"key": "x"}] * tolerations)
    decision = decision_for(server, *storage(), *nodes, *vms)
    assert (decision.reason, decision.node) == (
        (Reason.CO_SCHEDULED, "node-c") if steered else (Reason.NODE_CORDONED, "node-a")
    )
