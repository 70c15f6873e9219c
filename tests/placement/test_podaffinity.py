"""Required pod (anti-)affinity is evaluated as in the scheduler, for the VM's terms and for other pods' terms.

tests/catalog/test_pod_tables.py compares random labels, namespaces and topologies with a naive evaluation.
"""

from typing import Any

import pytest

from tests.support.builders import (
    HOSTNAME,
    ZONE,
    Object,
    decision_for,
    labeled_namespace,
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
from webhook.placement.guard import comparison_limit
from webhook.placement.objects.selectors import AffinityTerm, label_selector, required_terms
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


REQUIRING_RACK = virt_launcher(labels=WEB, affinity=pod_affinity(pod_term(WEB, "rack")))


@pytest.mark.parametrize(
    ("vm", "others", "expected"),
    [
        (virt_launcher(affinity=REPELS_WEB), [web("node-a")], Reason.POD_AFFINITY),
        # A pod that is not bound counts on the node of its term, unless its place there could help the VM.
        (virt_launcher(affinity=REPELS_WEB), [preferring_web("node-a")], Reason.POD_AFFINITY),
        (virt_launcher(affinity=REPELS_WEB), [unbound_web("node-a")], Reason.POD_AFFINITY),
        (virt_launcher(labels=WEB), [unbound_web("node-a", affinity=REPELS_WEB)], Reason.POD_AFFINITY),
        (virt_launcher(affinity=REQUIRES_WEB), [unbound_web("node-a")], Reason.POD_AFFINITY),
        (virt_launcher(labels=WEB, affinity=REQUIRES_WEB), [unbound_web("node-a")], Reason.CO_SCHEDULED),
        # A terminating pod still counts.
        (virt_launcher(affinity=REPELS_WEB), [web("node-a", deleting=True)], Reason.POD_AFFINITY),
        # No node has this topology key.
        (virt_launcher(affinity=pod_anti_affinity(pod_term(WEB, "rack"))), [web("node-a")], Reason.CO_SCHEDULED),
        (REQUIRING_RACK, [], Reason.POD_AFFINITY),
    ],
)
def test_the_terms_of_the_vm_and_of_other_pods_reject_the_node(
    vm: Object, others: list[Object], expected: Reason
) -> None:
    assert reason(vm, *others) is expected


def test_a_match_on_a_node_without_the_topology_key_is_ignored() -> None:
    nodes = [node("node-a", labels={"rack": "1"}), node("node-b", labels={"rack": "2"}), node("node-c")]
    assert reason(REQUIRING_RACK, web("node-c"), nodes=nodes) is Reason.CO_SCHEDULED
    assert reason(REQUIRING_RACK, web("node-b"), nodes=nodes) is Reason.POD_AFFINITY


def test_a_vm_does_not_repel_itself() -> None:
    vm = virt_launcher("vm", labels=WEB, affinity=REPELS_WEB)
    running = virt_launcher("vm", labels=WEB, node="node-a", affinity=REPELS_WEB)
    assert reason(vm, running) is Reason.CO_SCHEDULED
    assert reason(virt_launcher("another", labels=WEB, affinity=REPELS_WEB), running) is Reason.POD_AFFINITY


COMPARISONS = 500


@pytest.fixture(autouse=True)
def few_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison_limit, "MAX_COMPARISONS", COMPARISONS)


def crowd(namespace: str, selector: Object | None = None, **term: Any) -> list[Object]:
    """Build a pod for each comparison of a review. With a selector, each has an anti-affinity term."""
    affinity = pod_anti_affinity(pod_term(None, labelSelector=selector, **term)) if selector is not None else None
    return [pod(f"web-{each}", namespace, labels=WEB, node="node-a", affinity=affinity) for each in range(COMPARISONS)]


def oversized_pod(namespace: str) -> Object:
    return pod("large", namespace, node="node-b", labels={f"label-{number}": "x" for number in range(500)})


TOLERATIONS = [{"key": "x", "operator": "Exists"}] * 600


def a_vm(*repelled: Object, **rest: Any) -> Object:
    rest = {"tolerations": TOLERATIONS[:1]} | rest
    return virt_launcher(affinity=pod_anti_affinity(*repelled), annotations={"kubevirt.io/domain": "vm1"}, **rest)


NOTHING, ANY = {"matchLabels": {"app": "db"}}, {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}


WITHOUT_LABEL = pod_term({"rack": "1"}, "rack"), pod_term(None, labelSelector=ANY)
IN_TEAMS = pod_term({"app": "db"}, namespaceSelector={"matchLabels": {"team": "a", "stage": "b"}})
NAMESPACES = [labeled_namespace(), *(labeled_namespace(f"team-{number}") for number in range(240))]
SIXTY_TERMS = [pod_term({f"label-{number}": "x"}) for number in range(60)]
COSTS = {
    "pods of another namespace": (a_vm(pod_term(WEB)), crowd("other"), Reason.CO_SCHEDULED),
    "a term without a label to look up": (a_vm(*WITHOUT_LABEL), crowd("default"), Reason.UNJUDGED),
    "pods without the label": (a_vm(pod_term({"app": "db"})), crowd("default"), Reason.CO_SCHEDULED),
    "terms that require another label": (a_vm(), crowd("default", NOTHING), Reason.CO_SCHEDULED),
    "terms without a label of the VM's namespace": (a_vm(labels=WEB), crowd("default", ANY), Reason.UNJUDGED),
    "terms of another namespace for its own pods": (a_vm(), crowd("other", ANY), Reason.CO_SCHEDULED),
    "60 terms of the VM": (a_vm(*SIXTY_TERMS), [], Reason.UNJUDGED),
    "an oversized pod of the VM's namespace": (a_vm(), [oversized_pod("default")], Reason.UNJUDGED),
    "240 namespaces for a selector of two requirements": (a_vm(IN_TEAMS), NAMESPACES[:240], Reason.UNJUDGED),
    "120 of them": (a_vm(IN_TEAMS), NAMESPACES[:120], Reason.CO_SCHEDULED),
    "200 tolerations": (a_vm(tolerations=TOLERATIONS[:200]), [], Reason.CO_SCHEDULED),
    "600 tolerations": (a_vm(tolerations=TOLERATIONS), [], Reason.UNJUDGED),
}


@pytest.mark.parametrize(("vm", "others", "expected"), COSTS.values(), ids=COSTS)
def test_a_vm_that_needs_too_many_comparisons_is_only_preferred(
    vm: Object, others: list[Object], expected: Reason
) -> None:
    nodes = [node("node-a", taints=[{"key": "x", "effect": "NoSchedule"}]), node("node-b")]
    decision = decision_for(vm, *storage(), *nodes, *others, virtual_machine("vm1"))
    assert (decision.reason, decision.passed_over) == (expected, False)


SELECTS_TEAM_A = {"matchLabels": {"team": "a"}}


def repelling(selector: Object) -> Object:
    """Build a pod of another namespace that repels web pods in the namespaces that the selector selects."""
    term = pod_term(WEB, namespaceSelector=selector)
    return pod("x", "other", node="node-a", affinity=pod_anti_affinity(term))


@pytest.mark.parametrize(
    ("labels", "expected"), [({"team": "b"}, Reason.CO_SCHEDULED), ({"team": "a"}, Reason.POD_AFFINITY)]
)
def test_a_namespace_selector_selects_its_own_namespace_only_by_its_labels(
    labels: dict[str, str], expected: Reason
) -> None:
    own, term = labeled_namespace(opt_in=None, **labels), pod_term(WEB, namespaceSelector=SELECTS_TEAM_A)
    assert reason(virt_launcher(affinity=pod_anti_affinity(term)), web("node-a"), own) is expected
    repelled, by = virt_launcher(labels=WEB), pod("x", node="node-a", affinity=pod_anti_affinity(term))
    assert reason(repelled, by, own) is expected


@pytest.mark.parametrize("restarts", [True, False], ids=["a VM that restarts", "a VM that does not restart"])
@pytest.mark.parametrize(
    "others",
    [crowd("other", ANY, namespaces=["default"]), [oversized_pod("other")], [repelling(SELECTS_TEAM_A)]],
    ids=["many terms", "oversized", "a selector, which an unknown namespace may match"],
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


@pytest.mark.parametrize(("tolerations", "steered"), [(100, True), (300, False)])
def test_the_nodes_of_a_steering_share_the_comparisons(tolerations: int, steered: bool) -> None:
    nodes = [node("node-a", unschedulable=True), node("node-b", unschedulable=True), node("node-c")]
    vms = [virt_launcher(f"vm-{name}", node=f"node-{name}") for name in "abc"]
    server = share_manager_pod(tolerations=[{"key": "x"}] * tolerations)
    decision = decision_for(server, *storage(), *nodes, *vms)
    assert (decision.reason, decision.node) == (
        (Reason.CO_SCHEDULED, "node-c") if steered else (Reason.NODE_CORDONED, "node-a")
    )


# Terms, parsed with the API server's defaults and merged label keys


WEB_SELECTOR = {"matchLabels": {"app": "web"}}
POD_LABELS = {"app": "web", "tier": "front"}


def web_selector_with_tier(operator: str) -> Object:
    return WEB_SELECTOR | {"matchExpressions": [{"key": "tier", "operator": operator, "values": ["front"]}]}


def term(*namespaces: str, selector: Object = WEB_SELECTOR) -> AffinityTerm:
    return AffinityTerm(namespaces, None, label_selector(selector), HOSTNAME)


WEB_TERM = term("default")
TERMS = {
    "no namespaces means the pod's own": (pod_term(WEB), WEB_TERM),
    "matchLabelKeys": (pod_term(WEB, matchLabelKeys=["tier"]), term("default", selector=web_selector_with_tier("In"))),
    "mismatchLabelKeys": (
        pod_term(WEB, mismatchLabelKeys=["tier"]),
        term("default", selector=web_selector_with_tier("NotIn")),
    ),
    "a key that the pod lacks": (pod_term(WEB, matchLabelKeys=["absent"]), WEB_TERM),
}


@pytest.mark.parametrize(("manifest", "parsed"), TERMS.values(), ids=TERMS)
def test_a_required_pod_affinity_term_is_parsed(manifest: Object, parsed: AffinityTerm) -> None:
    for kind, affinity in (("podAntiAffinity", pod_anti_affinity(manifest)), ("podAffinity", pod_affinity(manifest))):
        assert required_terms(affinity, POD_LABELS, "default", kind) == (parsed,)


def test_the_pods_of_other_namespaces_are_not_named() -> None:
    decision = decision_for(virt_launcher(labels=WEB), *storage(), NODES[0], repelling({}))
    assert decision.reason is Reason.POD_AFFINITY
    assert "other" not in decision.message.replace("a pod of another namespace", "")


@pytest.mark.parametrize("affinity", [pod_affinity, pod_anti_affinity], ids=["affinity", "anti-affinity"])
def test_a_namespace_selector_of_a_vm_of_an_unknown_namespace_is_unjudged(affinity: Any) -> None:
    vm = virt_launcher(affinity=affinity(pod_term(WEB, namespaceSelector=SELECTS_TEAM_A)))
    unknown = decision_for(vm, *storage(), NODES[0], pod("web", "shop", labels=WEB, node="node-a"))
    assert (unknown.reason, "namespaceSelector" in unknown.message) == (Reason.UNJUDGED, True)
