"""Any value at any place of an object, as a strange client could send it."""

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

Path = tuple[str | int, ...]

MALFORMED = st.sampled_from([None, 1, "x", [], [None], [[1]], {}, {"a": None}, True])


def value_paths(content: Any, *path: str | int) -> Iterator[Path]:
    """Yield the paths to all values in an object, at every level."""
    yield path
    children = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, child in children:
        yield from value_paths(child, *path, key)


def replaced(content: Any, path: Path, value: Any) -> Any:
    """Return a copy in which the value at a path is another one."""
    if not path:
        return value
    copy = list(content) if isinstance(content, list) else dict(content)
    copy[path[0]] = replaced(content[path[0]], path[1:], value)
    return copy
