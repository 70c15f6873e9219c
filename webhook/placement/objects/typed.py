"""Typed objects: frozen Structs with Kubernetes' names and the fields that are used. Null counts as absent.

What a patch touches stays as it was received: an affinity is a map.
"""

from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from webhook.placement.objects.facts import Key
from webhook.placement.objects.fields import JsonObject, Malformed

T = TypeVar("T")

_AS_RECEIVED = "affinity"


class Typed(Struct, frozen=True, rename="camel", omit_defaults=True):
    """An object, or a part of one, with Kubernetes' names and the fields that are used."""


class Metadata(Typed, frozen=True):
    """The metadata that identify an object. A kind of which more is used adds its fields."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    # Older API servers write null for an object that is being created.
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    resource_version: str = ""

    @property
    def key(self) -> Key:
        """Return the namespace and name of a namespaced object."""
        return self.namespace or "default", self.name

    @property
    def is_terminating(self) -> bool:
        """Return whether the object is being deleted."""
        return bool(self.deletion_timestamp)


class Condition(Typed, frozen=True):
    """A condition of an object's status."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


NO_CONDITION = Condition()


def convert(manifest: JsonObject, shape: type[T]) -> T:
    """Convert a manifest to a type. Raises Malformed, whose text names the field."""
    try:
        return msgspec.convert(manifest, shape)
    except msgspec.ValidationError as error:
        if "got `null`" not in str(error):
            raise Malformed(_problem(error)) from None
    try:
        return msgspec.convert(_without_nulls(manifest), shape)
    except msgspec.ValidationError as error:
        raise Malformed(_problem(error)) from None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: part if key == _AS_RECEIVED else _without_nulls(part)
            for key, part in value.items()
            if part is not None
        }
    return [_without_nulls(part) for part in value if part is not None] if isinstance(value, list) else value


def _problem(error: Exception) -> str:
    """Return "spec.volumeName: expected str, got int" for msgspec's "Expected `str`, got `int` - at `$.spec...`"."""
    what, _, where = str(error).replace("`", "").replace(" | null", "").partition(" - at $.")
    return f"{where or 'the object'}: {what[:1].lower()}{what[1:]}"
