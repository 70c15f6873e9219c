"""Label selectors and node selectors match as in Kubernetes."""

from typing import Any

import pytest

from tests.support.builders import Object, name_requirement
from webhook.placement.guard.comparison_limit import Comparisons
from webhook.placement.objects.fields import mappings
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
    assert node_matches([{"matchExpressions": [expression]}], "node-a", LABELS, SPEND) is expected


# Go's strconv.ParseInt rejects underscores and values beyond 64 bits, and Python's int accepts both.
@pytest.mark.parametrize("value", ["1_000", "99999999999999999999"])
def test_a_value_that_go_does_not_parse_as_a_number_matches_nothing(value: str) -> None:
    for label, expression in ((value, requirement("rank", "Gt", "5")), ("5", requirement("rank", "Lt", value))):
        terms = [{"matchExpressions": [expression]}]
        assert not node_matches(terms, "node-a", {"rank": label}, SPEND)


SELECTORS = {
    "null selects nothing": (None, False),
    "an empty selector selects everything": ({}, True),
    "nulls select everything": ({"matchLabels": None, "matchExpressions": None}, True),
    "an absent label is not an empty one": ({"matchLabels": {"absent": ""}}, False),
    "labels and expressions are ANDed": (
        {"matchLabels": {"disk": "ssd"}, "matchExpressions": [requirement("x", "Exists")]},
        False,
    ),
}


@pytest.mark.parametrize(("selector", "expected"), SELECTORS.values(), ids=SELECTORS)
def test_a_label_selector_selects(selector: Object | None, expected: bool) -> None:
    assert labels_match(selector, LABELS) is expected


SSD, HDD = ({"matchExpressions": [requirement("disk", "In", kind)]} for kind in ("ssd", "hdd"))
NODE_B = {"matchFields": [name_requirement("node-b")]}


TERMS = {
    "null": (None, False),
    "an empty list": ([], False),
    "an empty term": ([{}], False),
    "a term of empty lists": ([{"matchExpressions": [], "matchFields": None}], False),
    "terms are ORed": ([HDD, SSD], True),
    "terms that match nothing are ignored": ([None, {}, SSD], True),
    "labels and name are ANDed": ([SSD | NODE_B], False),
    "two names are ANDed": ([{"matchFields": [name_requirement(name) for name in ("node-a", "node-b")]}], False),
    "metadata.name is not a label": ([{"matchExpressions": [requirement("metadata.name", "In", "node-a")]}], False),
}


@pytest.mark.parametrize(("terms", "expected"), TERMS.values(), ids=TERMS)
def test_a_node_selector_selects_a_node(terms: Any, expected: bool) -> None:
    assert node_matches(mappings({"terms": terms}, "terms"), "node-a", LABELS, SPEND) is expected
