"""Decode a large AdmissionReview within a limit of memory: first split it into fields, then decode the small ones.

A body of 8 MiB that is decoded at once takes up to 850 MB, more than the container has, and the decision on it takes
seconds: 8 MiB of `[[[[]]]]` are millions of lists.
"""

from functools import cache
from typing import Any, TypedDict, get_type_hints, is_typeddict

import msgspec

from webhook.cluster.wire import Review

# bytes; larger bodies are decided in a thread, and decoded within limits. The review of a VM has 10 KiB and takes
# 0.2 ms; a crafted one of 64 KiB takes 50 ms, in which the loop serves no other connection.
INLINE_BODY_LIMIT = 32 * 1024
# Bytes of JSON. Decoded, they take up to 100 times as much.
FIELD_LIMIT = 256 * 1024
# For all fields together, and for each of LARGE_FIELDS. The API server stores no object over 1.5 MiB (etcd's
# --max-request-bytes).
TOTAL_LIMIT = 1536 * 1024
# Containers count with their environment, which is not decoded. The API server accepts 256 KiB of annotations, and JSON
# escapes the quotes in them.
LARGE_FIELDS = ("containers", "initContainers", "annotations")
# Of containers, volumes and tolerations, which have some dozens. To add up 500,000 empty containers takes seconds.
MAX_ITEMS = 1000

_OMITTED = object()


class _RequestUid(TypedDict, total=False):
    uid: Any


class _ReviewUid(TypedDict, total=False):
    kind: Any
    apiVersion: Any
    request: _RequestUid


def read_within_limits(body: bytes) -> tuple[Any, list[str]]:
    """Decode an AdmissionReview, and return it with the names of the fields that are omitted for their size.

    If an object of the review has another type, only the uid is decoded. Raises msgspec.DecodeError, UnicodeDecodeError
    or RecursionError for invalid JSON.
    """
    try:
        return _FieldReader().read_review(body, Review)
    except msgspec.ValidationError:
        review, omitted = _FieldReader().read_review(body, _ReviewUid)
        return review, [*omitted, "object"]


class _FieldReader:
    def __init__(self) -> None:
        self._omitted: list[str] = []
        self._left = TOTAL_LIMIT

    def read_review(self, body: bytes, shape: Any) -> tuple[Any, list[str]]:
        # One pass over the body: a pass over 8 MiB of nested lists takes 40 ms, in which no other thread runs.
        return self._read_fields(msgspec.json.decode(body, type=_shape_of_raw_fields(shape)), shape), self._omitted

    def _read_fields(self, parts: dict[str, Any], shape: Any) -> dict[str, Any]:
        fields, shapes = {}, get_type_hints(shape)
        for name, part in parts.items():
            if isinstance(part, dict):
                fields[name] = self._read_fields(part, shapes[name])
            elif (value := self._read_field(name, part, shapes[name])) is not _OMITTED:
                fields[name] = value
            else:
                self._omitted.append(name)
        return fields

    def _read_field(self, name: str, part: msgspec.Raw, shape: Any) -> Any:
        if not self._fits(name, len(memoryview(part))):
            return _OMITTED
        value = _decode(part, shape)
        return _OMITTED if isinstance(value, list) and len(value) > MAX_ITEMS else value

    def _fits(self, name: str, size: int) -> bool:
        fits = size <= min(self._left, TOTAL_LIMIT if name in LARGE_FIELDS else FIELD_LIMIT)
        self._left -= size if fits else 0
        return fits


def _decode(part: msgspec.Raw, shape: Any) -> Any:
    try:
        return msgspec.json.decode(part, type=shape)
    except msgspec.ValidationError:  # an unexpected type: decode without the shape
        return msgspec.json.decode(part)


@cache
def _shape_of_raw_fields(shape: Any) -> Any:
    """Return the shape, with each field that is not an object kept as JSON."""
    if not is_typeddict(shape):
        return msgspec.Raw
    make_typed_dict: Any = TypedDict
    fields = {name: _shape_of_raw_fields(hint) for name, hint in get_type_hints(shape).items()}
    return make_typed_dict(shape.__name__, fields, total=False)
