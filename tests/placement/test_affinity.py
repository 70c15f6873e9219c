"""`with_node` pins and prefers one node and keeps the user's affinity unchanged."""

from copy import deepcopy
from typing import Any

import pytest

from tests.support.builders import PREFERRED, REQUIRED, Object, name_requirement, node_terms
from webhook.placement.affinity import with_node
from webhook.placement.objects.fields import Malformed

PIN = name_requirement("node-a")
PINNED_TERM = {"matchFields": [PIN]}
NODE_PREFERENCE = {"weight": 100, "preference": {"matchFields": [PIN]}}
SSD = {"key": "disk", "operator": "In", "values": ["ssd"]}
NOT_B = name_requirement("node-b", "NotIn")
USER_PREFERENCE = {"weight": 100, "preference": {"matchFields": [name_requirement("node-b")]}}
OTHER_AFFINITY = {"podAntiAffinity": {REQUIRED: [{"topologyKey": "x"}]}, "podAffinity": None, "future": [1]}


@pytest.mark.parametrize(
    ("terms", "pinned_terms"),
    [
        pytest.param(
            [{"matchExpressions": [SSD]}, {"matchFields": [NOT_B]}],
            [{"matchExpressions": [SSD], "matchFields": [PIN]}, {"matchFields": [NOT_B, PIN]}],
            id="each of two terms gains the pin",
        ),
        pytest.param(
            [None, {}, {"matchFields": [NOT_B]}],
            [None, {}, {"matchFields": [NOT_B, PIN]}],
            id="null and empty terms stay empty",
        ),
        pytest.param([PINNED_TERM], [PINNED_TERM], id="an existing pin is not repeated"),
        pytest.param([], [], id="an empty list of terms stays empty"),
    ],
)
def test_a_pin_is_added_to_every_nonempty_term(terms: list[Any], pinned_terms: list[Any]) -> None:
    affinity = node_terms(*terms) | OTHER_AFFINITY
    before = deepcopy(affinity)
    result = with_node(affinity, "node-a", pin=True)
    assert result["nodeAffinity"] == {REQUIRED: {"nodeSelectorTerms": pinned_terms}, PREFERRED: [NODE_PREFERENCE]}
    assert {key: result[key] for key in OTHER_AFFINITY} == OTHER_AFFINITY
    assert affinity == before


@pytest.mark.parametrize("required", [{"nodeSelectorTerms": None}, {}], ids=["null", "absent"])
def test_a_pin_leaves_null_or_absent_terms_unchanged(required: Object) -> None:
    assert with_node({"nodeAffinity": {REQUIRED: required}}, "node-a", pin=True)["nodeAffinity"][REQUIRED] == required


@pytest.mark.parametrize(
    ("affinity", "field"),
    [
        ("ssd", "affinity"),
        ({"nodeAffinity": {REQUIRED: ""}}, REQUIRED),
        ({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": {}}}}, "nodeSelectorTerms"),
        (node_terms({"matchExpressions": [SSD], "matchFields": {}}), "matchFields"),
        ({"nodeAffinity": {PREFERRED: {}}}, PREFERRED),
    ],
    ids=repr,
)
def test_a_field_of_the_wrong_type_raises_malformed(affinity: Any, field: str) -> None:
    with pytest.raises(Malformed, match=f"^{field}: expected a "):
        with_node(affinity, "node-a", pin=True)
