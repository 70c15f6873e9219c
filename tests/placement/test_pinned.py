"""What we did to a pod before is read from the pod, and can be taken back."""

from copy import deepcopy
from typing import Any

import pytest

from tests.support.builders import PREFERRED, REQUIRED, Object, node_named, node_terms, pinned, pod, virt_launcher
from webhook.placement.affinity import matches_nothing, pinned_node, prefers, with_node, without_injection

PIN = node_named("node-a")
TERM = {"matchFields": [PIN]}
PREFERENCE = {"weight": 100, "preference": {"matchFields": [PIN]}}
SSD = {"key": "disk", "operator": "In", "values": ["ssd"]}
NOT_B = node_named("node-b", "NotIn")
WISH = {"weight": 100, "preference": {"matchFields": [node_named("node-b")]}}
ELSE = {"podAntiAffinity": {REQUIRED: [{"topologyKey": "x"}]}, "podAffinity": None, "future": [1]}


@pytest.mark.parametrize(
    ("affinity", "answer"),
    [
        (pinned("node-a")["affinity"], True),
        (pinned("node-b")["affinity"], False),
        ({"nodeAffinity": {PREFERRED: [WISH, PREFERENCE]}}, True),
        ({"nodeAffinity": {PREFERRED: [PREFERENCE | {"weight": 99}]}}, False),
        (node_terms(TERM), False),
        (None, False),
    ],
    ids=["pinned", "another node", "among others", "another weight", "only required", "no affinity"],
)
def test_a_pod_prefers_a_node(affinity: Any, answer: bool) -> None:
    assert prefers(pod(affinity=affinity), "node-a") is answer


@pytest.mark.parametrize(
    ("affinity", "answer"),
    [
        (None, False),
        ({"nodeAffinity": {REQUIRED: None}}, False),
        ({"nodeAffinity": {REQUIRED: {}}}, True),
        (node_terms(), True),
        (node_terms(None, {}), True),
        (node_terms(None, TERM), False),
    ],
    ids=["no affinity", "null", "no list", "no terms", "empty terms", "a term"],
)
def test_an_affinity_without_a_real_term_matches_nothing(affinity: Any, answer: bool) -> None:
    assert matches_nothing(pod(affinity=affinity)) is answer


OURS = pinned("node-a")


@pytest.mark.parametrize(
    ("fields", "node"),
    [
        pytest.param(OURS, "node-a", id="annotation and term"),
        pytest.param(
            OURS | {"affinity": node_terms(TERM | {"matchExpressions": [SSD]}, TERM)}, "node-a", id="every term"
        ),
        pytest.param(OURS | {"affinity": node_terms(None, {}, TERM)}, "node-a", id="beside empty terms"),
        pytest.param(OURS | {"affinity": node_terms(TERM, {"matchExpressions": [SSD]})}, "", id="not every term"),
        pytest.param(
            OURS | {"affinity": node_terms({"matchFields": [NOT_B, PIN]})}, "node-a", id="beside other fields"
        ),
        pytest.param(OURS | {"affinity": node_terms({"matchFields": [node_named("node-b")]})}, "", id="another node"),
        pytest.param(OURS | {"affinity": node_terms()}, "", id="no terms"),
        pytest.param(OURS | {"affinity": {"nodeAffinity": {PREFERRED: [PREFERENCE]}}}, "", id="only preferred"),
        pytest.param(OURS | {"affinity": None}, "", id="only the annotation"),
        pytest.param(OURS | {"annotations": {}}, "", id="only the term: the user's own"),
        pytest.param(
            OURS | {"annotations": {"kubevirt-scheduler/co-scheduled-node": None}}, "", id="a null annotation"
        ),
    ],
)
def test_a_pod_is_pinned_by_us_where_annotation_and_every_term_say_so(fields: Object, node: str) -> None:
    assert pinned_node(virt_launcher("one", **fields)) == node


@pytest.mark.parametrize(
    "affinity",
    [
        pytest.param({"nodeAffinity": {}}, id="nothing of the user's"),
        pytest.param(node_terms({"matchExpressions": [SSD]}) | ELSE, id="a term"),
        pytest.param(node_terms({"matchExpressions": [SSD]}, None, {}, {"matchFields": [NOT_B]}), id="terms"),
        pytest.param({"nodeAffinity": {PREFERRED: [WISH]}}, id="a wish"),
    ],
)
@pytest.mark.parametrize("pin", [True, False])
def test_a_released_pod_is_as_the_user_wrote_it(affinity: Object, pin: bool) -> None:
    ours = {"kubevirt-scheduler/co-scheduled-node": "node-a", "kubevirt-scheduler/decision": "x", "user": "y"}
    made = pod(affinity=with_node(affinity, "node-a", pin=pin), annotations=ours, hostname="vm1")
    before = deepcopy(made)
    assert without_injection(made) == pod(affinity=affinity, annotations={"user": "y"}, hostname="vm1")
    assert made == before


@pytest.mark.parametrize(
    "fields", [{}, {"affinity": None}, {"affinity": ELSE}, {"annotations": {"a": "b"}} | {"affinity": OURS["affinity"]}]
)
def test_a_pod_that_is_not_ours_is_released_as_it_is(fields: Object) -> None:
    assert without_injection(pod(**fields)) == pod(**fields)


@pytest.mark.parametrize(
    "required", [{"nodeSelectorTerms": []}, {"nodeSelectorTerms": None}, {}], ids=["empty", "null", "absent"]
)
def test_a_released_pod_still_matches_nothing_if_it_did(required: Object) -> None:
    affinity = with_node({"nodeAffinity": {REQUIRED: required}}, "node-a", pin=False)
    made = without_injection(pod(affinity=affinity, annotations=OURS["annotations"]))
    assert matches_nothing(made)
