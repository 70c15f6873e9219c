"""Fields are read as in Kubernetes, and a field of the wrong type reads as empty."""

from typing import Any

import pytest

from webhook.placement.objects.fields import mapping, mappings, text

POD = {"spec": {"volumes": [{"name": "a"}, None, "b", {"name": "c"}], "nodeName": "node-a", "tolerations": {}}}


@pytest.mark.parametrize(
    ("value", "path", "expected"),
    [
        pytest.param({"a": 1}, (), {"a": 1}, id="an empty path"),
        pytest.param({"a": {"b": {"c": 1}}}, ("a", "b"), {"c": 1}, id="a complete path"),
        pytest.param({"a": None}, ("a", "b"), {}, id="null inside the path"),
        pytest.param({"a": "text"}, ("a", "b"), {}, id="a string inside the path"),
        pytest.param({"a": [1]}, ("a",), {}, id="a list at the end of the path"),
        pytest.param(None, (), {}, id="null"),
    ],
)
def test_a_value_that_is_not_a_map_reads_as_empty(value: Any, path: tuple[str, ...], expected: Any) -> None:
    assert mapping(value, *path) == expected


def test_an_existing_map_is_not_copied() -> None:
    assert mapping(POD, "spec") is POD["spec"]


@pytest.mark.parametrize(
    ("value", "path", "expected"),
    [
        pytest.param(POD, ("spec", "volumes"), [{"name": "a"}, {"name": "c"}], id="only the maps, in order"),
        pytest.param([{}], (), [{}], id="an empty path"),
        pytest.param(POD, ("spec", "tolerations"), [], id="a map at the end of the path"),
        pytest.param(POD, ("spec", "nodeName", "x"), [], id="a string inside the path"),
        pytest.param(None, (), [], id="null"),
    ],
)
def test_a_value_that_is_not_a_list_reads_as_empty(value: Any, path: tuple[str, ...], expected: Any) -> None:
    assert mappings(value, *path) == expected


@pytest.mark.parametrize(
    ("value", "path", "expected"),
    [
        pytest.param(POD, ("spec", "nodeName"), "node-a", id="a complete path"),
        pytest.param(POD, ("spec", "volumes"), "", id="a list at the end of the path"),
        pytest.param({"a": 1}, ("a",), "", id="a number"),
        pytest.param({"a": True}, ("a",), "", id="a boolean"),
        pytest.param(POD, ("spec", "nodeName", "x"), "", id="a string inside the path"),
        pytest.param(None, ("a",), "", id="null"),
    ],
)
def test_a_value_that_is_not_a_string_reads_as_empty(value: Any, path: tuple[str, ...], expected: str) -> None:
    assert text(value, *path) == expected
