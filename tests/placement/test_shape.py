"""A field is read as Kubernetes reads it, whatever the object really holds."""

from typing import Any

import pytest

from webhook.placement.shape import mapping, mappings, text

POD = {"spec": {"volumes": [{"name": "a"}, None, "b", {"name": "c"}], "nodeName": "node-a", "tolerations": {}}}


@pytest.mark.parametrize(
    ("value", "path", "found"),
    [
        pytest.param({"a": 1}, (), {"a": 1}, id="no path at all"),
        pytest.param(POD, ("spec", "tolerations"), {}, id="an empty map"),
        pytest.param({"a": {"b": {"c": 1}}}, ("a", "b"), {"c": 1}, id="a path"),
        pytest.param({"a": {}}, ("a", "b", "c"), {}, id="a path that ends early"),
        pytest.param({"a": None}, ("a", "b"), {}, id="null on the way"),
        pytest.param({"a": "text"}, ("a", "b"), {}, id="a string on the way"),
        pytest.param({"a": [1]}, ("a",), {}, id="a list at the end"),
        pytest.param(None, (), {}, id="null"),
    ],
)
def test_whatever_is_no_map_reads_as_an_empty_one(value: Any, path: tuple[str, ...], found: Any) -> None:
    assert mapping(value, *path) == found


def test_a_map_that_is_there_is_not_copied() -> None:
    assert mapping(POD, "spec") is POD["spec"]


@pytest.mark.parametrize(
    ("value", "path", "found"),
    [
        pytest.param(POD, ("spec", "volumes"), [{"name": "a"}, {"name": "c"}], id="only the maps, in order"),
        pytest.param([{}], (), [{}], id="no path at all"),
        pytest.param(POD, ("spec", "tolerations"), [], id="a map at the end"),
        pytest.param(POD, ("spec", "nodeName", "x"), [], id="a string on the way"),
        pytest.param(POD, ("spec", "absent"), [], id="absent"),
        pytest.param(None, (), [], id="null"),
    ],
)
def test_whatever_is_no_list_reads_as_an_empty_one(value: Any, path: tuple[str, ...], found: Any) -> None:
    assert mappings(value, *path) == found


@pytest.mark.parametrize(
    ("value", "path", "found"),
    [
        pytest.param(POD, ("spec", "nodeName"), "node-a", id="a path"),
        pytest.param("node-a", (), "node-a", id="no path at all"),
        pytest.param(POD, ("spec", "volumes"), "", id="a list at the end"),
        pytest.param({"a": 1}, ("a",), "", id="a number"),
        pytest.param({"a": True}, ("a",), "", id="a boolean"),
        pytest.param(POD, ("spec", "nodeName", "x"), "", id="a string on the way"),
        pytest.param(None, ("a",), "", id="null"),
    ],
)
def test_whatever_is_no_string_reads_as_an_empty_one(value: Any, path: tuple[str, ...], found: str) -> None:
    assert text(value, *path) == found
