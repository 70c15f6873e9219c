"""`patch_between` returns a minimal JSON patch and verifies that it applies."""

from copy import deepcopy
from typing import Any

import jsonpatch
import pytest

from webhook.placement.patch import PatchMismatch, patch_between


def add(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}


def replace(path: str, value: Any) -> dict[str, Any]:
    return {"op": "replace", "path": path, "value": value}


@pytest.mark.parametrize(
    ("before", "after", "operations"),
    [
        ({"a": "x"}, {"a": "x"}, []),
        ({}, {"a": {"b": 1}}, [add("/a", {"b": 1})]),  # with its missing parent
        ({"a": {"b": 1}}, {"a": {}}, [{"op": "remove", "path": "/a/b"}]),
        ({"a": "x"}, {"a": "y"}, [replace("/a", "y")]),
        ({"a": [1]}, {"a": [1, 2, 3]}, [add("/a/-", 2), add("/a/-", 3)]),
        ({"a": [None, {"b": []}, {"c": 1}]}, {"a": [None, {"b": [1]}, {"c": 1}]}, [add("/a/1/b/-", 1)]),
        ({"a": [1, 2]}, {"a": [1]}, [replace("/a", [1])]),  # a shorter list
        ({"a": [1]}, {"a": {"b": 1}}, [replace("/a", {"b": 1})]),  # another type
    ],
)
def test_the_patch_is_minimal_and_applies(before: Any, after: Any, operations: list[Any]) -> None:
    originals = deepcopy((before, after))
    patch = patch_between(before, after)
    assert patch == operations
    assert jsonpatch.apply_patch(before, patch) == after
    assert (before, after) == originals


@pytest.mark.parametrize("name", ["/", "~", "~0", "~1", "a/b", "~/~", "", " ", "ä", '"', "0", "-"])
def test_any_key_can_be_added(name: str) -> None:
    assert jsonpatch.apply_patch({"a": {}}, patch_between({"a": {}}, {"a": {name: 1}})) == {"a": {name: 1}}


def test_a_patch_that_does_not_produce_the_object_raises_patch_mismatch() -> None:
    class HidingDict(dict[str, Any]):
        """A dict that hides its items, which no decoded JSON does."""

        def items(self) -> Any:
            return {}.items()

    with pytest.raises(PatchMismatch):
        patch_between({"a": {"b": 1, "c": 1}}, {"a": HidingDict(b=2)})
