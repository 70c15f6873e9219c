"""The patch between two objects is minimal, and proven to apply."""

from copy import deepcopy
from typing import Any

import jsonpatch
import pytest

from webhook.placement.patch import PatchMismatch, patch_between


def add(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}


@pytest.mark.parametrize(
    ("before", "after", "operations"),
    [
        pytest.param({}, {}, [], id="nothing"),
        pytest.param({"a": {"b": [1]}}, {"a": {"b": [1]}}, [], id="the same"),
        pytest.param({}, {"a": {"b": 1}}, [add("/a", {"b": 1})], id="a missing parent is added with what it holds"),
        pytest.param({"a": {}}, {"a": {"b": 1}}, [add("/a/b", 1)], id="a key"),
        pytest.param({"a": None}, {"a": {"b": 1}}, [add("/a", {"b": 1})], id="in place of null"),
        pytest.param({"a": {"b": 1}}, {"a": {}}, [{"op": "remove", "path": "/a/b"}], id="a key less"),
        pytest.param({"a": "x"}, {"a": "y"}, [{"op": "replace", "path": "/a", "value": "y"}], id="another value"),
        pytest.param({"a": 1}, {"a": None}, [{"op": "replace", "path": "/a", "value": None}], id="null for a value"),
        pytest.param({"a": [1]}, {"a": [1, 2, 3]}, [add("/a/-", 2), add("/a/-", 3)], id="a list grows at its end"),
        pytest.param({"a": []}, {"a": [None]}, [add("/a/-", None)], id="by a null"),
        pytest.param(
            {"a": [None, {"b": []}, {"c": 1}]},
            {"a": [None, {"b": [1]}, {"c": 1}]},
            [add("/a/1/b/-", 1)],
            id="within a list",
        ),
        pytest.param(
            {"a": [{}]}, {"a": [{"b": 1}, {}]}, [add("/a/0/b", 1), add("/a/-", {})], id="within and at its end"
        ),
        pytest.param({"a": [1, 2]}, {"a": [1]}, [{"op": "replace", "path": "/a", "value": [1]}], id="a shorter list"),
        pytest.param(
            {"a": [1]}, {"a": {"b": 1}}, [{"op": "replace", "path": "/a", "value": {"b": 1}}], id="another type"
        ),
        pytest.param({"a": {}}, {"a": {"x/y~z": 1}}, [add("/a/x~1y~0z", 1)], id="a key that is escaped"),
        pytest.param(
            {"a": {"~1": {}}}, {"a": {"~1": {"": 1}}}, [add("/a/~01/", 1)], id="an empty key in an escaped one"
        ),
        pytest.param(
            {"a": {"x": 1, "y": 2}, "b": {}},
            {"a": {"y": 3, "z": 4}, "b": {"c": 5}},
            [
                {"op": "remove", "path": "/a/x"},
                {"op": "replace", "path": "/a/y", "value": 3},
                add("/a/z", 4),
                add("/b/c", 5),
            ],
            id="all together",
        ),
    ],
)
def test_the_patch_is_minimal_and_applies(before: Any, after: Any, operations: list[Any]) -> None:
    kept = deepcopy((before, after))
    found = patch_between(before, after)
    assert found == operations
    assert jsonpatch.apply_patch(before, found) == after
    assert (before, after) == kept


@pytest.mark.parametrize("name", ["/", "~", "~0", "~1", "a/b", "~/~", "", " ", "ä", '"', "0", "-"])
def test_any_key_can_be_patched(name: str) -> None:
    assert jsonpatch.apply_patch({"a": {}}, patch_between({"a": {}}, {"a": {name: 1}})) == {"a": {name: 1}}


def test_a_patch_that_does_not_lead_to_the_object_is_not_given_out() -> None:
    class Odd(dict[str, Any]):
        """A map that hides what it holds, as no map that came from JSON does."""

        def items(self) -> Any:
            return {}.items()

    with pytest.raises(PatchMismatch):
        patch_between({"a": {"b": 1, "c": 1}}, {"a": Odd(b=2)})
