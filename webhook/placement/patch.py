"""Build the JSON patch between two objects, and verify that it applies.

The diff is our own: a general differ walks the whole pod and emits `move`, `test` and index operations that the API
server may reject. jsonpatch verifies the patch, because a patch that does not apply rejects the user's pod.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import jsonpatch
import msgspec

from webhook.placement.objects.fields import JsonObject

Operation = dict[str, Any]

# bytes of an affinity before and after. KubeVirt's have 900; larger ones rarely repeat, and 1,000 of 16 KiB with
# their operations took 100 MB.
MAX_CACHED_LENGTH = 2 * 1024


class PatchMismatch(RuntimeError):
    """A patch that does not turn the received object into the intended one."""


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _diff(before: Any, after: Any, path: str) -> Iterator[Operation]:
    # `before` and `after` differ: the callers have compared them.
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _diff_maps(before, after, path)
    elif isinstance(before, list) and isinstance(after, list) and len(before) <= len(after):
        for index, old in enumerate(before):
            if old != after[index]:
                yield from _diff(old, after[index], f"{path}/{index}")
        for value in after[len(before) :]:
            yield {"op": "add", "path": f"{path}/-", "value": value}
    else:
        yield {"op": "replace", "path": path, "value": after}


def _diff_maps(before: JsonObject, after: JsonObject, path: str) -> Iterator[Operation]:
    for key in before:
        if key not in after:
            yield {"op": "remove", "path": f"{path}/{_escape(key)}"}
    for key, value in after.items():
        old = before.get(key)
        if old is value or old == value:
            continue
        if old is None:
            # Use `add` for a null, too: some JSON patch libraries can't replace a null or descend into it.
            yield {"op": "add", "path": f"{path}/{_escape(key)}", "value": value}
        else:
            yield from _diff(old, value, f"{path}/{_escape(key)}")


class _Pointer(jsonpatch.JsonPointer):
    """A JSON pointer that stores its text; the pointer of jsonpatch rebuilds its text on each read."""

    path = ""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


_pointer = lru_cache(maxsize=256)(_Pointer)


def apply_patch(operations: list[Operation], before: JsonObject) -> JsonObject:
    """Return a copy of `before` with the operations applied by jsonpatch."""
    result: JsonObject = msgspec.json.decode(msgspec.json.encode(before))  # the fastest way to copy JSON data
    for operation in operations:
        # jsonpatch.JsonPatch parses each pointer twice, so apply single operations with cached pointers.
        located = operation | {"path": _pointer(operation["path"])}
        result = jsonpatch.JsonPatch.operations[operation["op"]](located).apply(result)
    return result


def patch_between(before: JsonObject, after: JsonObject) -> list[Operation]:
    """Return the operations that turn `before` into `after`. A list grows only at its end; a shorter list is replaced.

    Raises PatchMismatch if jsonpatch, applying the operations, does not produce `after`.
    """
    operations = [] if before == after else list(_diff(before, after, ""))
    if operations and apply_patch(operations, before) != after:
        raise PatchMismatch("the patch does not lead to the intended object")
    return operations


def cached_patch(before: JsonObject, after: JsonObject) -> Sequence[Operation]:
    """Return the operations of `patch_between`, from a cache of verified patches if possible.

    Many pods need the same patch: KubeVirt gives all its VMs the same few affinities, and a cluster has a
    limited number of nodes.
    """
    if before == after:
        return ()
    encoded = msgspec.json.encode((before, after))
    return _cached_operations(encoded) if len(encoded) <= MAX_CACHED_LENGTH else patch_between(before, after)


@lru_cache(maxsize=1024)
def _cached_operations(encoded: bytes) -> Sequence[Operation]:
    return tuple(patch_between(*msgspec.json.decode(encoded)))
