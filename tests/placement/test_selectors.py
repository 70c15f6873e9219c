"""Label selectors and node selectors match as in Kubernetes."""

from typing import Any

import pytest

from tests.support.builders import Object, name_requirement
from webhook.placement.guard.comparison_limit import Comparisons
from webhook.placement.objects.selectors import labels_match, node_matches

SPEND = Comparisons().spend
LABELS = {"disk": "ssd", "rank": "5", "empty": ""}


def requirement(key: str, operator: str, *values: str) -> Object:
    return {"key": key, "operator": operator, "values": list(values)}


REQUIREMENTS = [
    (requirement("disk", "In", "ssd"), True),
    (requirement("disk", "In", "hdd"), False),
    (requirement("disk", "In", *"abcdefgh", "ssd"), True),
    (requirement("absent", "In", ""), False),
    (requirement("empty", "In", ""), True),
    (requirement("disk", "NotIn", "ssd"), False),
    (requirement("disk", "NotIn", "hdd"), True),
    (requirement("absent", "NotIn", "ssd"), True),
    (requirement("disk", "Exists"), True),
    (requirement("absent", "Exists"), False),
    (requirement("disk", "DoesNotExist"), False),
    (requirement("absent", "DoesNotExist"), True),
    ({"key": "disk", "operator": "Exists", "values": None}, True),
    (requirement("rank", "Gt", "5"), False),
    (requirement("rank", "Lt", "6"), True),
    (requirement("rank", "Lt", "5"), False),
    (requirement("absent", "Gt", "1"), False),
    (requirement("empty", "Lt", "1"), False),
    (requirement("rank", "Gt", "four"), False),
    (requirement("rank", "Gt", "4.0"), False),
    (requirement("rank", "Gt"), False),
    (requirement("rank", "Gt", "1", "2"), False),
    (requirement("rank", "Matches", "5"), False),
    ({"key": "rank", "operator": None}, False),
]


@pytest.mark.parametrize(("expression", "expected"), REQUIREMENTS, ids=repr)
def test_a_requirement_matches_labels(expression: Object, expected: bool) -> None:
    assert labels_match({"matchExpressions": [expression]}, LABELS) is expected
    assert (
        node_matches({"nodeSelectorTerms": [{"matchExpressions": [expression]}]}, "node-a", LABELS, SPEND) is expected
    )


# Go's strconv.ParseInt rejects underscores and values beyond 64 bits, and Python's int accepts both.
@pytest.mark.parametrize(
    ("label", "expression"),
    [
        ("1_000", requirement("rank", "Gt", "5")),
        ("99999999999999999999", requirement("rank", "Gt", "5")),
        ("5", requirement("rank", "Lt", "1_000")),
        ("5", requirement("rank", "Lt", "99999999999999999999")),
    ],
    ids=["an underscore in the label", "a label above 64 bits", "an underscore in the bound", "a bound above 64 bits"],
)
def test_a_value_that_go_does_not_parse_as_a_number_matches_nothing(label: str, expression: Object) -> None:
    assert not node_matches(
        {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}, "node-a", {"rank": label}, Comparisons().spend
    )


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        pytest.param(None, False, id="null selects nothing"),
        pytest.param({}, True, id="an empty selector selects everything"),
        pytest.param(
            {"matchLabels": None, "matchExpressions": None}, True, id="a selector of nulls selects everything"
        ),
        pytest.param({"matchLabels": {"absent": ""}}, False, id="an absent label does not match an empty value"),
        pytest.param(
            {"matchLabels": {"disk": "ssd"}, "matchExpressions": [requirement("x", "Exists")]},
            False,
            id="expressions that do not match beside labels that do",
        ),
    ],
)
def test_a_label_selector_selects(selector: Object | None, expected: bool) -> None:
    assert labels_match(selector, LABELS) is expected


SSD, HDD = ({"matchExpressions": [requirement("disk", "In", kind)]} for kind in ("ssd", "hdd"))
NODE_B = {"matchFields": [name_requirement("node-b")]}


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        pytest.param(None, False, id="null terms match nothing"),
        pytest.param([], False, id="an empty list of terms matches nothing"),
        pytest.param([{}], False, id="an empty term matches nothing"),
        pytest.param(
            [{"matchExpressions": [], "matchFields": None}], False, id="a term of empty lists matches nothing"
        ),
        pytest.param([HDD, SSD], True, id="terms are ORed"),
        pytest.param([None, {}, SSD], True, id="terms that match nothing are ignored"),
        pytest.param([SSD | NODE_B], False, id="a matching label with another name does not match"),
        pytest.param(
            [{"matchFields": [name_requirement("node-a"), name_requirement("node-b")]}],
            False,
            id="two name requirements are ANDed",
        ),
        pytest.param(
            [{"matchExpressions": [requirement("metadata.name", "In", "node-a")]}],
            False,
            id="metadata.name is not a label",
        ),
    ],
)
def test_a_node_selector_selects_a_node(terms: Any, expected: bool) -> None:
    assert node_matches({"nodeSelectorTerms": terms}, "node-a", LABELS, SPEND) is expected
