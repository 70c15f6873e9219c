"""Read a field of a Kubernetes object, whatever the object really holds.

Objects stay plain dicts, because typed models lose the fields that they do not know. So any field may be absent, null
or of another type, and these read it as Kubernetes does: null and absent are the same, and empty. JSON and YAML make
plain dicts, lists and strings; to look for those alone takes half as long, some hundred times in a decision.
"""

from typing import Any

JsonObject = dict[str, Any]


class Malformed(ValueError):
    """A field of another type than Kubernetes gives it. Names the field and never its value, which may be a secret."""


def mapping(value: Any, *path: str) -> JsonObject:
    """Follow `path` to a map; empty where there is none."""
    for key in path:
        if type(value) is not dict:
            return {}
        value = value.get(key)
    return value if type(value) is dict else {}


def mappings(value: Any, *path: str) -> list[JsonObject]:
    """Follow `path` to a list and return the maps in it, in order; empty where there is none."""
    for key in path:
        if type(value) is not dict:
            return []
        value = value.get(key)
    return [item for item in value if type(item) is dict] if type(value) is list else []


def text(value: Any, *path: str) -> str:
    """Follow `path` to a string; empty where there is none."""
    for key in path:
        if type(value) is not dict:
            return ""
        value = value.get(key)
    return value if type(value) is str else ""


def map_in(parent: JsonObject, key: str) -> JsonObject:
    """Return a map that is about to be changed; empty where it is null or absent.

    Raises Malformed for anything else: nothing of another type may pass for empty here, or it would be overwritten.
    """
    value = parent.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Malformed(f"{key} is not a map")
    return value


def list_in(parent: JsonObject, key: str) -> list[Any]:
    """Return a list that is about to be changed, as `map_in` returns a map."""
    value = parent.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise Malformed(f"{key} is not a list")
    return value
