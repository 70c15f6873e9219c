"""Labels and nodes are matched as Kubernetes' selectors match them."""

from typing import Any

import pytest

from tests.support.builders import Object, node_named
from webhook.placement.selectors import is_empty_term, labels_match, node_matches

LABELS = {"disk": "ssd", "rank": "5", "empty": ""}
PARSE_INT = "strconv.ParseInt takes neither an underscore nor what does not fit into 64 bits; Python's int does"


def requirement(key: str, operator: str, *values: str) -> Object:
    return {"key": key, "operator": operator, "values": list(values)}


REQUIREMENTS = [
    (requirement("disk", "In", "ssd"), True),
    (requirement("disk", "In", "hdd", "ssd"), True),
    (requirement("disk", "In", "hdd"), False),
    (requirement("absent", "In", "ssd"), False),
    (requirement("absent", "In", ""), False),
    (requirement("empty", "In", ""), True),
    (requirement("disk", "NotIn", "ssd"), False),
    (requirement("disk", "NotIn", "hdd"), True),
    (requirement("absent", "NotIn", "ssd"), True),
    (requirement("disk", "Exists"), True),
    (requirement("empty", "Exists"), True),
    (requirement("absent", "Exists"), False),
    (requirement("disk", "DoesNotExist"), False),
    (requirement("absent", "DoesNotExist"), True),
    ({"key": "disk", "operator": "Exists", "values": None}, True),
    ({"key": "absent", "operator": "DoesNotExist"}, True),
]
NUMBERS = [
    (requirement("rank", "Gt", "4"), True),
    (requirement("rank", "Gt", "5"), False),
    (requirement("rank", "Lt", "6"), True),
    (requirement("rank", "Lt", "5"), False),
    (requirement("rank", "Gt", "04"), True),
    (requirement("absent", "Gt", "1"), False),
    (requirement("absent", "Lt", "1"), False),
    (requirement("disk", "Gt", "1"), False),
    (requirement("empty", "Lt", "1"), False),
    (requirement("rank", "Gt", "four"), False),
    (requirement("rank", "Gt", "4.0"), False),
    (requirement("rank", "Gt"), False),
    (requirement("rank", "Gt", "1", "2"), False),
    (requirement("rank", "Matches", "5"), False),
    ({"key": "rank", "operator": None}, False),
]


def said(value: Any) -> str | None:
    return " ".join([value["key"], str(value["operator"]), *(value.get("values") or [])]) if "key" in value else None


@pytest.mark.parametrize(
    ("wanted", "answer"), REQUIREMENTS, ids=lambda value: said(value) if value not in (True, False) else ""
)
def test_a_requirement_matches_labels(wanted: Object, answer: bool) -> None:
    assert labels_match({"matchExpressions": [wanted]}, LABELS) is answer
    assert node_matches({"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}, "node-a", LABELS) is answer


@pytest.mark.parametrize(
    ("wanted", "answer"), NUMBERS, ids=lambda value: said(value) if value not in (True, False) else ""
)
def test_a_node_may_be_compared_by_number(wanted: Object, answer: bool) -> None:
    assert node_matches({"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}, "node-a", LABELS) is answer


@pytest.mark.parametrize(
    ("label", "wanted"),
    [
        ("1_000", requirement("rank", "Gt", "5")),
        ("99999999999999999999", requirement("rank", "Gt", "5")),
        ("5", requirement("rank", "Lt", "1_000")),
        ("5", requirement("rank", "Lt", "99999999999999999999")),
    ],
    ids=["an underscore", "too large", "an underscore in the bound", "too large a bound"],
)
def test_what_go_does_not_read_as_a_number_matches_nothing(label: str, wanted: Object) -> None:
    assert not node_matches({"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}, "node-a", {"rank": label})


@pytest.mark.parametrize(
    ("selector", "answer"),
    [
        pytest.param(None, False, id="null selects nothing"),
        pytest.param({}, True, id="an empty one selects everything"),
        pytest.param({"matchLabels": None, "matchExpressions": None}, True, id="one of nulls, too"),
        pytest.param({"matchLabels": {"disk": "ssd"}}, True, id="the label"),
        pytest.param({"matchLabels": {"disk": "ssd", "rank": "6"}}, False, id="all labels"),
        pytest.param({"matchLabels": {"absent": ""}}, False, id="absent is not empty"),
        pytest.param(
            {"matchLabels": {"disk": "ssd"}, "matchExpressions": [requirement("rank", "Exists")]}, True, id="both"
        ),
        pytest.param(
            {"matchLabels": {"disk": "hdd"}, "matchExpressions": [requirement("rank", "Exists")]}, False, id="one"
        ),
        pytest.param(
            {"matchLabels": {"disk": "ssd"}, "matchExpressions": [requirement("x", "Exists")]}, False, id="other"
        ),
    ],
)
def test_a_label_selector_selects(selector: Object | None, answer: bool) -> None:
    assert labels_match(selector, LABELS) is answer


SSD, HDD = ({"matchExpressions": [requirement("disk", "In", kind)]} for kind in ("ssd", "hdd"))
HERE, THERE = ({"matchFields": [node_named(name)]} for name in ("node-a", "node-b"))


@pytest.mark.parametrize(
    ("terms", "answer"),
    [
        pytest.param(None, False, id="a null list"),
        pytest.param([], False, id="an empty list"),
        pytest.param("ssd", False, id="no list"),
        pytest.param([None], False, id="a null term"),
        pytest.param([{}], False, id="an empty term"),
        pytest.param([{"matchExpressions": [], "matchFields": None}], False, id="a term of empty lists"),
        pytest.param([SSD], True, id="the label"),
        pytest.param([HDD], False, id="another label"),
        pytest.param([HDD, SSD], True, id="terms are ORed"),
        pytest.param([None, {}, SSD], True, id="beside terms that match nothing"),
        pytest.param(
            [{"matchExpressions": SSD["matchExpressions"] + HDD["matchExpressions"]}], False, id="in one: ANDed"
        ),
        pytest.param([HERE], True, id="the name"),
        pytest.param([THERE], False, id="another name"),
        pytest.param([SSD | THERE], False, id="label and another name"),
        pytest.param([HDD | HERE], False, id="another label and the name"),
        pytest.param([SSD | HERE], True, id="label and name"),
        pytest.param([{"matchFields": [node_named("node-b", "NotIn")]}], True, id="not the other name"),
        pytest.param([{"matchFields": [node_named("node-a", "NotIn")]}], False, id="not the name"),
        pytest.param([{"matchFields": [node_named("node-a"), node_named("node-b")]}], False, id="two names"),
        pytest.param(
            [{"matchExpressions": [requirement("metadata.name", "In", "node-a")]}], False, id="no label is a field"
        ),
        pytest.param([{"matchFields": [requirement("disk", "In", "ssd")]}], False, id="no field is a label"),
    ],
)
def test_a_node_selector_selects_a_node(terms: Any, answer: bool) -> None:
    assert node_matches({"nodeSelectorTerms": terms}, "node-a", LABELS) is answer


@pytest.mark.parametrize(
    "term", [None, {}, "x", 7, [], {"matchExpressions": [], "matchFields": []}, {"matchFields": None}], ids=repr
)
def test_a_term_without_requirements_is_empty(term: Any) -> None:
    assert is_empty_term(term)


@pytest.mark.parametrize(
    "term", [SSD, HERE, SSD | HERE, SSD | {"matchFields": None}], ids=["label", "name", "both", "null"]
)
def test_a_term_with_a_requirement_is_not_empty(term: Object) -> None:
    assert not is_empty_term(term)
