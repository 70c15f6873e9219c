"""One node is pinned and preferred, and what the user asked for stays as it was."""

from copy import deepcopy
from typing import Any

import pytest

from tests.support.builders import PREFERRED, REQUIRED, Object, node_named, node_terms
from webhook.placement.affinity import with_node
from webhook.placement.shape import Malformed

PIN = node_named("node-a")
TERM = {"matchFields": [PIN]}
PREFERENCE = {"weight": 100, "preference": {"matchFields": [PIN]}}
SSD = {"key": "disk", "operator": "In", "values": ["ssd"]}
NOT_B = node_named("node-b", "NotIn")
WISH = {"weight": 100, "preference": {"matchFields": [node_named("node-b")]}}
ELSE = {"podAntiAffinity": {REQUIRED: [{"topologyKey": "x"}]}, "podAffinity": None, "future": [1]}


@pytest.mark.parametrize(
    ("terms", "after"),
    [
        pytest.param(
            [{"matchExpressions": [SSD]}], [{"matchExpressions": [SSD], "matchFields": [PIN]}], id="expressions"
        ),
        pytest.param([{"matchFields": [NOT_B]}], [{"matchFields": [NOT_B, PIN]}], id="fields"),
        pytest.param(
            [{"matchExpressions": [SSD], "matchFields": [NOT_B]}],
            [{"matchExpressions": [SSD], "matchFields": [NOT_B, PIN]}],
            id="both",
        ),
        pytest.param(
            [{"matchExpressions": [SSD]}, {"matchFields": [NOT_B]}],
            [{"matchExpressions": [SSD], "matchFields": [PIN]}, {"matchFields": [NOT_B, PIN]}],
            id="every term",
        ),
        pytest.param(
            [None, {}, {"matchFields": [NOT_B]}], [None, {}, {"matchFields": [NOT_B, PIN]}], id="but empty ones"
        ),
        pytest.param(
            [{"matchExpressions": [], "matchFields": None}],
            [{"matchExpressions": [], "matchFields": None}],
            id="of empty lists",
        ),
        pytest.param(
            [{"matchExpressions": [SSD], "matchFields": None}],
            [{"matchExpressions": [SSD], "matchFields": [PIN]}],
            id="null fields",
        ),
        pytest.param([TERM], [TERM], id="what is there already"),
        pytest.param(
            [TERM, {"matchExpressions": [SSD]}],
            [TERM, {"matchExpressions": [SSD], "matchFields": [PIN]}],
            id="and what is not",
        ),
        pytest.param(
            [{"matchFields": [node_named("node-b")]}], [{"matchFields": [node_named("node-b"), PIN]}], id="another"
        ),
        pytest.param(
            [{"matchExpressions": [SSD], "future": 1}],
            [{"matchExpressions": [SSD], "future": 1, "matchFields": [PIN]}],
            id="unknown",
        ),
        pytest.param([], [], id="no terms"),
    ],
)
def test_a_pin_goes_into_every_term_that_matches_something(terms: list[Any], after: list[Any]) -> None:
    affinity = node_terms(*terms) | ELSE
    before = deepcopy(affinity)
    result = with_node(affinity, "node-a", pin=True)
    assert result["nodeAffinity"] == {REQUIRED: {"nodeSelectorTerms": after}, PREFERRED: [PREFERENCE]}
    assert {key: result[key] for key in ELSE} == ELSE
    assert affinity == before


@pytest.mark.parametrize(
    "affinity",
    [
        None,
        {},
        {"nodeAffinity": None},
        {"nodeAffinity": {}},
        {"nodeAffinity": {REQUIRED: None}},
        {"nodeAffinity": {PREFERRED: None}},
    ],
    ids=repr,
)
def test_without_a_required_affinity_there_is_one_new_term(affinity: Any) -> None:
    before = deepcopy(affinity)
    result = with_node(affinity, "node-a", pin=True)
    assert result == {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [TERM]}, PREFERRED: [PREFERENCE]}}
    assert affinity == before


@pytest.mark.parametrize(
    ("affinity", "preferred"),
    [
        pytest.param(None, [PREFERENCE], id="none"),
        pytest.param({"nodeAffinity": {PREFERRED: None}}, [PREFERENCE], id="null"),
        pytest.param({"nodeAffinity": {PREFERRED: []}}, [PREFERENCE], id="an empty list"),
        pytest.param({"nodeAffinity": {PREFERRED: [WISH]}}, [WISH, PREFERENCE], id="a wish of the user's"),
        pytest.param({"nodeAffinity": {PREFERRED: [PREFERENCE]}}, [PREFERENCE], id="what is there already"),
        pytest.param({"nodeAffinity": {PREFERRED: [PREFERENCE, WISH]}}, [PREFERENCE, WISH], id="wherever it stands"),
        pytest.param(
            {"nodeAffinity": {PREFERRED: [PREFERENCE | {"weight": 1}]}},
            [PREFERENCE | {"weight": 1}, PREFERENCE],
            id="lighter",
        ),
    ],
)
@pytest.mark.parametrize("pin", [True, False])
def test_a_node_is_preferred_once_and_after_what_the_user_prefers(
    affinity: Any, preferred: list[Any], pin: bool
) -> None:
    before = deepcopy(affinity)
    assert with_node(affinity, "node-a", pin=pin)["nodeAffinity"][PREFERRED] == preferred
    assert affinity == before


@pytest.mark.parametrize(
    "required", [None, {}, {"nodeSelectorTerms": None}, {"nodeSelectorTerms": [{"matchExpressions": [SSD]}]}]
)
def test_a_preference_leaves_what_is_required_alone(required: Any) -> None:
    affinity = {"nodeAffinity": {REQUIRED: required}}
    assert with_node(affinity, "node-a", pin=False)["nodeAffinity"][REQUIRED] == required


@pytest.mark.parametrize("required", [{"nodeSelectorTerms": None}, {}], ids=["null", "absent"])
def test_terms_that_are_null_or_absent_stay_so(required: Object) -> None:
    assert with_node({"nodeAffinity": {REQUIRED: required}}, "node-a", pin=True)["nodeAffinity"][REQUIRED] == required


@pytest.mark.parametrize(
    "affinity",
    [
        None,
        node_terms({"matchExpressions": [SSD]}),
        node_terms(None, TERM),
        {"nodeAffinity": {PREFERRED: [WISH]}} | ELSE,
    ],
)
@pytest.mark.parametrize("pin", [True, False])
def test_the_second_time_changes_nothing(affinity: Any, pin: bool) -> None:
    once = with_node(affinity, "node-a", pin=pin)
    assert with_node(once, "node-a", pin=pin) == once


@pytest.mark.parametrize(
    ("affinity", "field"),
    [
        ("ssd", "affinity"),
        ([], "affinity"),
        (0, "affinity"),
        ({"nodeAffinity": []}, "nodeAffinity"),
        ({"nodeAffinity": False}, "nodeAffinity"),
        ({"nodeAffinity": {REQUIRED: []}}, REQUIRED),
        ({"nodeAffinity": {REQUIRED: ""}}, REQUIRED),
        ({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": {}}}}, "nodeSelectorTerms"),
        (node_terms({"matchExpressions": [SSD], "matchFields": {}}), "matchFields"),
        ({"nodeAffinity": {PREFERRED: {}}}, PREFERRED),
        ({"nodeAffinity": {PREFERRED: ""}}, PREFERRED),
    ],
    ids=repr,
)
def test_what_is_of_another_type_is_not_overwritten(affinity: Any, field: str) -> None:
    with pytest.raises(Malformed, match=f"^{field} is not a "):
        with_node(affinity, "node-a", pin=True)
