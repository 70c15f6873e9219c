"""Required pod (anti-)affinity terms are parsed with the API server's defaults and merged label keys."""

from typing import Any

import pytest

from tests.support.builders import (
    HOSTNAME,
    Object,
    decision_for,
    labeled_namespace,
    node,
    pod,
    pod_affinity,
    pod_anti_affinity,
    pod_term,
    storage,
    virt_launcher,
    virtual_machine,
)
from webhook.placement.objects.selectors import AffinityTerm, label_selector, required_terms
from webhook.placement.reasons import Reason


def requirement(key: str, operator: str, *values: str) -> Object:
    return {"key": key, "operator": operator, "values": list(values)}


WEB = {"matchLabels": {"app": "web"}}
POD_LABELS = {"app": "web", "tier": "front"}


def web_selector_with_tier(operator: str, value: str = "front") -> Object:
    return WEB | {"matchExpressions": [requirement("tier", operator, value)]}


def term(
    *namespaces: str,
    namespace_selector: Object | None = None,
    selector: Object | None = WEB,
    topology: str = HOSTNAME,
) -> AffinityTerm:
    return AffinityTerm(namespaces, label_selector(namespace_selector), label_selector(selector), topology)


@pytest.mark.parametrize(
    ("manifest", "parsed"),
    [
        pytest.param(pod_term({"app": "web"}), term("default"), id="no namespaces means the pod's own"),
        pytest.param(pod_term({"app": "web"}, namespaces=["a", "b"]), term("a", "b"), id="named namespaces stay"),
        pytest.param(
            pod_term({"app": "web"}, namespaceSelector={}),
            term(namespace_selector={}),
            id="an empty namespaceSelector means any namespace",
        ),
        pytest.param(
            pod_term({"app": "web"}, namespaceSelector=WEB, namespaces=["a"]),
            term("a", namespace_selector=WEB),
            id="a namespaceSelector adds namespaces to the named ones",
        ),
        pytest.param(
            pod_term({"app": "web"}, matchLabelKeys=["tier"]),
            term("default", selector=web_selector_with_tier("In")),
            id="matchLabelKeys become an In expression",
        ),
        pytest.param(
            pod_term({"app": "web"}, mismatchLabelKeys=["tier"]),
            term("default", selector=web_selector_with_tier("NotIn")),
            id="mismatchLabelKeys become a NotIn expression",
        ),
        pytest.param(
            pod_term({"app": "web"}, matchLabelKeys=["absent"]),
            term("default"),
            id="a key that the pod lacks is ignored",
        ),
    ],
)
def test_a_required_pod_affinity_term_is_parsed(manifest: Object, parsed: AffinityTerm) -> None:
    for kind, affinity in (("podAntiAffinity", pod_anti_affinity(manifest)), ("podAffinity", pod_affinity(manifest))):
        assert required_terms(pod(labels=POD_LABELS, affinity=affinity), "default", kind) == (parsed,)


SELECTS_TEAM_A = {"matchLabels": {"team": "a"}}


NODE, WEB_LABELS = node("node-a"), {"app": "web"}


def repelling(selector: Object, *, on: str = "node-a", **rest: Any) -> Object:
    """Build a pod of another namespace that repels web pods in the namespaces that the selector selects."""
    term = pod_term(WEB_LABELS, HOSTNAME, namespaceSelector=selector)
    return pod("x", "other", node=on, affinity=pod_anti_affinity(term | rest))


@pytest.mark.parametrize(
    ("labels", "other", "expected"),
    [
        pytest.param(WEB_LABELS, repelling({}), Reason.POD_AFFINITY, id="all namespaces are selected"),
        pytest.param(WEB_LABELS, repelling(SELECTS_TEAM_A), Reason.POD_AFFINITY, id="the VM's namespace is selected"),
        pytest.param(WEB_LABELS, repelling(WEB), Reason.CO_SCHEDULED, id="a selector that selects no namespace passes"),
        pytest.param({}, repelling({}), Reason.CO_SCHEDULED, id="a term for other labels passes"),
        pytest.param(
            WEB_LABELS,
            repelling(WEB, namespaces=["default"]),
            Reason.POD_AFFINITY,
            id="the VM's namespace is named beside a selector",
        ),
    ],
)
def test_a_namespace_selector_of_another_pod_is_evaluated(labels: Object, other: Object, expected: Reason) -> None:
    manifests = *storage(), NODE, other, labeled_namespace(team="a")
    decision = decision_for(virt_launcher(labels=labels), *manifests)
    assert decision.reason is expected
    assert "other" not in decision.message.replace("a pod of another namespace", "")


@pytest.mark.parametrize("restarts", [True, False])
def test_an_unknown_namespace_softens_only_a_vm_that_the_release_could_not_restart(restarts: bool) -> None:
    vm = virtual_machine("vm1", strategy="Always" if restarts else "Manual")
    pod = virt_launcher(labels=WEB_LABELS, annotations={"kubevirt.io/domain": "vm1"})
    decision = decision_for(pod, *storage(), NODE, repelling(SELECTS_TEAM_A), vm)
    assert (decision.reason, decision.passed_over) == (Reason.CO_SCHEDULED if restarts else Reason.UNJUDGED, True)


@pytest.mark.parametrize("affinity", [pod_affinity, pod_anti_affinity], ids=["affinity", "anti-affinity"])
def test_a_namespace_selector_of_the_vm_is_evaluated(affinity: Any) -> None:
    vm = virt_launcher(affinity=affinity(pod_term(WEB_LABELS, namespaceSelector=SELECTS_TEAM_A)))
    web = pod("web", "shop", labels=WEB_LABELS, node="node-a")
    selected, other, own = labeled_namespace("shop", team="a"), labeled_namespace("shop"), labeled_namespace("default")
    reasons = [decision_for(vm, *storage(), NODE, web, own, shop).reason for shop in (selected, other)]
    expected = [Reason.CO_SCHEDULED, Reason.POD_AFFINITY]
    assert reasons == (expected if affinity is pod_affinity else expected[::-1])
    unknown = decision_for(vm, *storage(), NODE, web)
    assert (unknown.reason, "namespaceSelector" in unknown.message) == (Reason.UNJUDGED, True)
