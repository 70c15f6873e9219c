"""The JSON patch between two objects, proven to apply.

Built by hand, because a general differ walks the whole pod and writes `move`, `test` and index operations that the API
server may refuse; proven by jsonpatch, because a patch that does not apply rejects the user's pod.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import jsonpatch
import msgspec

from webhook.placement.shape import JsonObject

Operation = dict[str, Any]

REMEMBERED_LENGTH = 16 * 1024  # bytes; what is larger is one of a kind, and must not fill the memory


class PatchMismatch(RuntimeError):
    """A patch that did not lead from the received object to the intended one."""


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _between(before: Any, after: Any, path: str) -> Iterator[Operation]:
    # The two differ: who calls has compared them, and once is enough.
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _between_maps(before, after, path)
    elif isinstance(before, list) and isinstance(after, list) and len(before) <= len(after):
        for index, old in enumerate(before):
            if old != after[index]:
                yield from _between(old, after[index], f"{path}/{index}")
        for value in after[len(before) :]:
            yield {"op": "add", "path": f"{path}/-", "value": value}
    else:
        yield {"op": "replace", "path": path, "value": after}


def _between_maps(before: JsonObject, after: JsonObject, path: str) -> Iterator[Operation]:
    for key in before:
        if key not in after:
            yield {"op": "remove", "path": f"{path}/{_escape(key)}"}
    for key, value in after.items():
        old = before.get(key)
        if old is value or old == value:
            continue
        if old is None:
            # `add` also where a null stands: not every applier lets one replace it or step into it.
            yield {"op": "add", "path": f"{path}/{_escape(key)}", "value": value}
        else:
            yield from _between(old, value, f"{path}/{_escape(key)}")


class _Pointer(jsonpatch.JsonPointer):
    """A pointer that keeps its text; jsonpatch asks for it each time, and builds it anew."""

    path = ""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


_pointer = lru_cache(maxsize=256)(_Pointer)


def applied(operations: list[Operation], before: JsonObject) -> JsonObject:
    """Return a copy of `before` with the operations applied to it, by jsonpatch."""
    result: JsonObject = msgspec.json.decode(msgspec.json.encode(before))  # the fastest copy of what came from JSON
    for operation in operations:
        # One by one and with pointers at hand, because the class for whole patches parses each of them twice.
        located = operation | {"path": _pointer(operation["path"])}
        result = jsonpatch.JsonPatch.operations[operation["op"]](located).apply(result)
    return result


def patch_between(before: JsonObject, after: JsonObject) -> list[Operation]:
    """Return the operations that lead from `before` to `after`; lists only grow at their end.

    Raises Unproven when jsonpatch, applying them, does not arrive at `after`.
    """
    operations = [] if before == after else list(_between(before, after, ""))
    if operations and applied(operations, before) != after:
        raise PatchMismatch("the patch does not lead to the intended object")
    return operations


def cached_patch(before: JsonObject, after: JsonObject) -> Sequence[Operation]:
    """Return what `patch_between` returns; what was proven a while ago is not proven again.

    For what many pods have in common: KubeVirt gives all its VMs the same few affinities, and there are so many nodes.
    """
    if before == after:
        return ()
    both = msgspec.json.encode((before, after))
    return _remembered(both) if len(both) <= REMEMBERED_LENGTH else patch_between(before, after)


@lru_cache(maxsize=1024)
def _remembered(both: bytes) -> Sequence[Operation]:
    return tuple(patch_between(*msgspec.json.decode(both)))
