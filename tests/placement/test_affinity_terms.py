"""The required pod (anti-)affinity terms of a pod are read with all that the API server would add to them."""

import pytest

from tests.support.builders import (
    HOSTNAME,
    ZONE,
    Object,
    apart,
    decided,
    node,
    pod,
    pod_term,
    storage,
    together,
    virt_launcher,
)
from webhook.placement.decision import Reason
from webhook.placement.selectors import AffinityTerm, required_terms, selects_namespaces


def requirement(key: str, operator: str, *values: str) -> Object:
    return {"key": key, "operator": operator, "values": list(values)}


WEB = {"matchLabels": {"app": "web"}}
LABELLED = {"app": "web", "tier": "front"}


def merged(operator: str, value: str = "front") -> Object:
    return WEB | {"matchExpressions": [requirement("tier", operator, value)]}


def term(
    *namespaces: str,
    any_namespace: bool = False,
    selector: Object | None = WEB,
    topology: str = HOSTNAME,
    weight: int = 2,  # the term's own, and WEB's one label
) -> AffinityTerm:
    return AffinityTerm(frozenset(namespaces), any_namespace, selector, topology, weight)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        pytest.param(pod_term({"app": "web"}), term("default"), id="of its own namespace"),
        pytest.param(pod_term({"app": "web"}, ZONE), term("default", topology=ZONE), id="by zone"),
        pytest.param(pod_term(None), term("default", selector=None, weight=1), id="no selector"),
        pytest.param(pod_term(None, labelSelector={}), term("default", selector={}, weight=1), id="an empty selector"),
        pytest.param(pod_term({"app": "web"}, namespaces=["a", "b"]), term("a", "b"), id="of named namespaces"),
        pytest.param(pod_term({"app": "web"}, namespaces=[]), term("default"), id="of no named namespace"),
        pytest.param(pod_term({"app": "web"}, namespaces=None, namespaceSelector=None), term("default"), id="nulls"),
        pytest.param(pod_term({"app": "web"}, namespaceSelector={}), term(any_namespace=True), id="of all namespaces"),
        pytest.param(
            pod_term({"app": "web"}, namespaceSelector=WEB, namespaces=["a"]),
            term("a", any_namespace=True),
            id="of named and of labelled namespaces",
        ),
        pytest.param(
            pod_term({"app": "web"}, matchLabelKeys=["tier"]),
            term("default", selector=merged("In"), weight=4),
            id="of its tier",
        ),
        pytest.param(
            pod_term({"app": "web"}, mismatchLabelKeys=["tier"]),
            term("default", selector=merged("NotIn"), weight=4),
            id="of others",
        ),
        pytest.param(
            pod_term({"app": "web"}, matchLabelKeys=["absent"], mismatchLabelKeys=None),
            term("default"),
            id="of a label it has not",
        ),
        pytest.param(
            pod_term(None, matchLabelKeys=["tier"]),
            term("default", selector=None, weight=1),
            id="of its tier, unselected",
        ),
    ],
)
def test_a_required_pod_affinity_term_is_read(written: Object, read: AffinityTerm) -> None:
    for kind, affinity in (("podAntiAffinity", apart(written)), ("podAffinity", together(written))):
        assert required_terms(pod(labels=LABELLED, affinity=affinity), "default", kind) == (read,)


def test_label_keys_are_added_to_what_the_selector_has() -> None:
    written = pod_term({"app": "web"}, matchLabelKeys=["tier"], mismatchLabelKeys=["app"])
    written["labelSelector"]["matchExpressions"] = [requirement("x", "Exists")]
    (read,) = required_terms(pod(labels=LABELLED, affinity=apart(written)), "default", "podAntiAffinity")
    assert read.selector["matchExpressions"] == [
        requirement("x", "Exists"),
        requirement("tier", "In", "front"),
        requirement("app", "NotIn", "web"),
    ]
    assert written["labelSelector"]["matchExpressions"] == [requirement("x", "Exists")]


def test_a_pod_without_affinity_has_no_terms() -> None:
    assert required_terms(pod(), "default", "podAntiAffinity") == ()
    assert required_terms(pod(affinity=apart(pod_term({}))), "default", "podAffinity") == ()


@pytest.mark.parametrize(
    ("asked", "selects", "might"),
    [
        pytest.param(term("default"), True, False, id="its namespace"),
        pytest.param(term("other"), False, False, id="another namespace"),
        pytest.param(term(any_namespace=True), False, True, id="some namespace"),
        pytest.param(term("default", any_namespace=True), True, True, id="its namespace and some"),
        pytest.param(
            term("default", any_namespace=True, selector={"matchLabels": {"app": "db"}}), False, False, id="others"
        ),
        pytest.param(term("default", any_namespace=True, selector=None), False, False, id="no selector"),
    ],
)
def test_a_term_selects_a_pod_by_namespace_and_labels(asked: AffinityTerm, selects: bool, might: bool) -> None:
    assert asked.selects("default", LABELLED) is selects
    assert asked.might_select(LABELLED) is might


@pytest.mark.parametrize(
    ("selector", "answer"), [(None, False), ({}, True), (WEB, True)], ids=["null", "all", "labels"]
)
def test_a_namespace_selector_is_one_unless_it_is_null(selector: Object | None, answer: bool) -> None:
    assert selects_namespaces({"namespaceSelector": selector}) is answer
    assert not selects_namespaces({})


NODE, NAMED = node("node-a"), {"app": "web"}
SELECTING = apart(pod_term(NAMED, HOSTNAME, namespaceSelector={}))


@pytest.mark.parametrize(
    ("labels", "other", "unjudged"),
    [
        pytest.param(NAMED, pod("x", "other", node="node-a", affinity=SELECTING), True, id="it might be meant"),
        pytest.param({}, pod("x", "other", node="node-a", affinity=SELECTING), False, id="its labels are not meant"),
        pytest.param(NAMED, pod("x", "other", node="node-b", affinity=SELECTING), False, id="on another node"),
        pytest.param(NAMED, pod("x", "other", affinity=SELECTING), False, id="without a node"),
    ],
)
def test_the_namespace_selector_of_a_pod_that_is_there_is_not_judged(
    labels: Object, other: Object, unjudged: bool
) -> None:
    decision = decided(virt_launcher(labels=labels), *storage(), NODE, other)
    assert decision.reason is (Reason.UNJUDGED if unjudged else Reason.CO_SCHEDULED)
    assert ("namespace selector in the pod anti-affinity of other/x" in decision.message) is unjudged


def test_a_pod_that_names_our_namespace_beside_its_namespace_selector_repels() -> None:
    other = pod(
        "x", "other", node="node-a", affinity=apart(pod_term(NAMED, namespaces=["default"], namespaceSelector={}))
    )
    assert decided(virt_launcher(labels=NAMED), *storage(), NODE, other).reason is Reason.POD_AFFINITY
