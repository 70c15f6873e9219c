"""Required pod (anti-)affinity terms are parsed with the API server's defaults and merged label keys."""

import pytest

from tests.support.builders import (
    HOSTNAME,
    ZONE,
    Object,
    decision_for,
    node,
    pod,
    pod_affinity,
    pod_anti_affinity,
    pod_term,
    storage,
    virt_launcher,
)
from webhook.placement.objects.selectors import AffinityTerm, required_terms, selects_namespaces
from webhook.placement.reasons import Reason


def requirement(key: str, operator: str, *values: str) -> Object:
    return {"key": key, "operator": operator, "values": list(values)}


WEB = {"matchLabels": {"app": "web"}}
POD_LABELS = {"app": "web", "tier": "front"}


def web_selector_with_tier(operator: str, value: str = "front") -> Object:
    return WEB | {"matchExpressions": [requirement("tier", operator, value)]}


def term(
    *namespaces: str,
    has_namespace_selector: bool = False,
    selector: Object | None = WEB,
    topology: str = HOSTNAME,
    weight: int = 2,  # one for the term, one for WEB's label
) -> AffinityTerm:
    return AffinityTerm(frozenset(namespaces), has_namespace_selector, selector, topology, weight)


@pytest.mark.parametrize(
    ("manifest", "parsed"),
    [
        pytest.param(pod_term({"app": "web"}), term("default"), id="no namespaces means the pod's own"),
        pytest.param(pod_term({"app": "web"}, ZONE), term("default", topology=ZONE), id="the topology key stays"),
        pytest.param(pod_term(None), term("default", selector=None, weight=1), id="an absent selector becomes null"),
        pytest.param(
            pod_term(None, labelSelector={}), term("default", selector={}, weight=1), id="an empty selector stays empty"
        ),
        pytest.param(pod_term({"app": "web"}, namespaces=["a", "b"]), term("a", "b"), id="named namespaces stay"),
        pytest.param(
            pod_term({"app": "web"}, namespaces=[]), term("default"), id="an empty namespace list means the pod's own"
        ),
        pytest.param(
            pod_term({"app": "web"}, namespaces=None, namespaceSelector=None),
            term("default"),
            id="null namespace fields mean the pod's own",
        ),
        pytest.param(
            pod_term({"app": "web"}, namespaceSelector={}),
            term(has_namespace_selector=True),
            id="an empty namespaceSelector means any namespace",
        ),
        pytest.param(
            pod_term({"app": "web"}, namespaceSelector=WEB, namespaces=["a"]),
            term("a", has_namespace_selector=True),
            id="a namespaceSelector adds any namespace to the named ones",
        ),
        pytest.param(
            pod_term({"app": "web"}, matchLabelKeys=["tier"]),
            term("default", selector=web_selector_with_tier("In"), weight=4),
            id="matchLabelKeys become an In expression",
        ),
        pytest.param(
            pod_term({"app": "web"}, mismatchLabelKeys=["tier"]),
            term("default", selector=web_selector_with_tier("NotIn"), weight=4),
            id="mismatchLabelKeys become a NotIn expression",
        ),
        pytest.param(
            pod_term({"app": "web"}, matchLabelKeys=["absent"], mismatchLabelKeys=None),
            term("default"),
            id="keys of absent labels are ignored",
        ),
        pytest.param(
            pod_term(None, matchLabelKeys=["tier"]),
            term("default", selector=None, weight=1),
            id="matchLabelKeys without a selector are ignored",
        ),
    ],
)
def test_a_required_pod_affinity_term_is_parsed(manifest: Object, parsed: AffinityTerm) -> None:
    for kind, affinity in (("podAntiAffinity", pod_anti_affinity(manifest)), ("podAffinity", pod_affinity(manifest))):
        assert required_terms(pod(labels=POD_LABELS, affinity=affinity), "default", kind) == (parsed,)


def test_label_keys_are_appended_to_the_selectors_expressions() -> None:
    manifest = pod_term({"app": "web"}, matchLabelKeys=["tier"], mismatchLabelKeys=["app"])
    manifest["labelSelector"]["matchExpressions"] = [requirement("x", "Exists")]
    (parsed,) = required_terms(
        pod(labels=POD_LABELS, affinity=pod_anti_affinity(manifest)), "default", "podAntiAffinity"
    )
    assert parsed.selector["matchExpressions"] == [
        requirement("x", "Exists"),
        requirement("tier", "In", "front"),
        requirement("app", "NotIn", "web"),
    ]
    assert manifest["labelSelector"]["matchExpressions"] == [requirement("x", "Exists")]


def test_a_pod_without_affinity_has_no_terms() -> None:
    assert required_terms(pod(), "default", "podAntiAffinity") == ()
    assert required_terms(pod(affinity=pod_anti_affinity(pod_term({}))), "default", "podAffinity") == ()


@pytest.mark.parametrize(
    ("affinity_term", "selects", "might_select"),
    [
        pytest.param(term("default"), True, False, id="the named namespace is selected"),
        pytest.param(term("other"), False, False, id="another namespace is not selected"),
        pytest.param(term(has_namespace_selector=True), False, True, id="any namespace might be selected"),
        pytest.param(
            term("default", has_namespace_selector=True),
            True,
            True,
            id="the named namespace is selected and any might be",
        ),
        pytest.param(
            term("default", has_namespace_selector=True, selector={"matchLabels": {"app": "db"}}),
            False,
            False,
            id="other labels are not selected",
        ),
        pytest.param(
            term("default", has_namespace_selector=True, selector=None),
            False,
            False,
            id="a null selector selects nothing",
        ),
    ],
)
def test_a_term_selects_a_pod_by_namespace_and_labels(
    affinity_term: AffinityTerm, selects: bool, might_select: bool
) -> None:
    assert affinity_term.selects("default", POD_LABELS) is selects
    assert affinity_term.might_select(POD_LABELS) is might_select


@pytest.mark.parametrize(
    ("selector", "expected"), [(None, False), ({}, True), (WEB, True)], ids=["null", "empty", "labels"]
)
def test_a_namespace_selector_selects_namespaces_unless_null(selector: Object | None, expected: bool) -> None:
    assert selects_namespaces({"namespaceSelector": selector}) is expected
    assert not selects_namespaces({})


NODE, WEB_LABELS = node("node-a"), {"app": "web"}
REPELS_WEB_IN_ALL_NAMESPACES = pod_anti_affinity(pod_term(WEB_LABELS, HOSTNAME, namespaceSelector={}))


@pytest.mark.parametrize(
    ("labels", "other", "unjudged"),
    [
        pytest.param(
            WEB_LABELS,
            pod("x", "other", node="node-a", affinity=REPELS_WEB_IN_ALL_NAMESPACES),
            True,
            id="a term that might select the pod is unjudged",
        ),
        pytest.param(
            {},
            pod("x", "other", node="node-a", affinity=REPELS_WEB_IN_ALL_NAMESPACES),
            False,
            id="a term for other labels is ignored",
        ),
        pytest.param(
            WEB_LABELS,
            pod("x", "other", node="node-b", affinity=REPELS_WEB_IN_ALL_NAMESPACES),
            False,
            id="a pod on another node is ignored",
        ),
        pytest.param(
            WEB_LABELS,
            pod("x", "other", affinity=REPELS_WEB_IN_ALL_NAMESPACES),
            False,
            id="an unscheduled pod is ignored",
        ),
    ],
)
def test_a_namespace_selector_of_an_existing_pod_is_unjudged(labels: Object, other: Object, unjudged: bool) -> None:
    decision = decision_for(virt_launcher(labels=labels), *storage(), NODE, other)
    assert decision.reason is (Reason.UNJUDGED if unjudged else Reason.CO_SCHEDULED)
    assert ("namespace selector in the pod anti-affinity of other/x" in decision.message) is unjudged


def test_a_named_namespace_beside_a_namespace_selector_repels_the_vm() -> None:
    other = pod(
        "x",
        "other",
        node="node-a",
        affinity=pod_anti_affinity(pod_term(WEB_LABELS, namespaces=["default"], namespaceSelector={})),
    )
    assert decision_for(virt_launcher(labels=WEB_LABELS), *storage(), NODE, other).reason is Reason.POD_AFFINITY
