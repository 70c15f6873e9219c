"""Read fields of a Kubernetes object that may be absent, null or of an unexpected type.

Objects stay plain dicts, because typed models lose unknown fields. Like Kubernetes, these functions treat null and
absent as empty. They run some hundred times per decision, so they take two shortcuts: JSON and YAML parsers produce
plain dicts, lists and strings, so a comparison of types is enough. And among their values, only a dict has `get`.
"""

import re
from typing import Any

JsonObject = dict[str, Any]

DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_ONLY_MAPS = frozenset({dict})
_SUBDOMAIN = re.compile(rf"{DNS_LABEL}(\.{DNS_LABEL})*")
# The name in the key of a label or an annotation, and the value of a label.
LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


class Malformed(ValueError):
    """A field with an unexpected type. The text names the field, and never its value, which may be a secret."""


def mapping(value: Any, *path: str) -> JsonObject:
    """Return the map at `path`, or an empty map."""
    try:
        for key in path:
            value = value.get(key)
    except AttributeError:
        return {}
    return value if type(value) is dict else {}


def mappings(value: Any, *path: str) -> list[JsonObject]:
    """Return the maps in the list at `path`, in order, or an empty list. Callers must not change the list."""
    try:
        for key in path:
            value = value.get(key)
    except AttributeError:
        return []
    if type(value) is not list:
        return []
    return value if _ONLY_MAPS.issuperset(map(type, value)) else [item for item in value if type(item) is dict]


def strings(parent: JsonObject, key: str) -> tuple[str, ...]:
    """Return the strings in the list under `key`, in order."""
    value = parent.get(key)
    return tuple(item for item in value if type(item) is str) if type(value) is list else ()


def text(value: Any, *path: str) -> str:
    """Return the string at `path`, or an empty string."""
    try:
        for key in path:
            value = value.get(key)
    except AttributeError:
        return ""
    return value if type(value) is str else ""


def condition(item: Any, kind: str) -> JsonObject:
    """Return a condition of an object's status, or an empty map."""
    for each in mappings(item, "status", "conditions"):
        if each.get("type") == kind:
            return each
    return {}


def has_condition(item: Any, kind: str) -> bool:
    """Return whether a condition of an object's status holds."""
    return condition(item, kind).get("status") == "True"


def map_in(parent: JsonObject, key: str) -> JsonObject:
    """Return the map under `key` for a change; empty if it is null or absent.

    Raises Malformed for another type: if it counted as empty, the change would overwrite it.
    """
    value = parent.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Malformed(f"{key}: expected a mapping")
    return value


def list_in(parent: JsonObject, key: str) -> list[Any]:
    """Return the list under `key` for a change, by the rules of `map_in`."""
    value = parent.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise Malformed(f"{key}: expected a list")
    return value


def is_dns_subdomain(name: str) -> bool:
    """Return whether the API server accepts `name` for a node or a scheduler (a DNS-1123 subdomain)."""
    return len(name) <= 253 and _SUBDOMAIN.fullmatch(name) is not None


def is_label_key(key: str) -> bool:
    """Return whether the API server accepts `key` for a label or an annotation: a name, maybe after a DNS prefix."""
    prefix, slash, name = key.rpartition("/")
    return LABEL_NAME.fullmatch(name) is not None and (not slash or is_dns_subdomain(prefix))


def printable(value: str) -> str:
    """Return a string that is safe to print: on one line, and without terminal control characters."""
    if value.isprintable():
        return value
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in value)


def version_numbers(name: str) -> tuple[int, ...]:
    """Return the numbers of a version such as v1.36.3-eks-1; empty if it does not start with one."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", name)
    return tuple(int(number) for number in found.groups() if number) if found else ()
