"""A resource kind: its API path, the shape that its objects decode to, and the fact that is read from each object.

`kinds` is the table of all kinds. The decoder skips all fields that are not in the shape. That halves the decoding
time, and a skipped field can't leak, such as a container's environment with a passphrase, or a VM's cloud-init data.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from types import GenericAlias, UnionType
from typing import Any, TypedDict, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict
from urllib.parse import quote

import msgspec
from msgspec import Struct, field

from webhook.placement.objects import typed
from webhook.placement.objects.facts import Fact, Key
from webhook.placement.objects.fields import JsonObject, Malformed, mapping, text
from webhook.placement.objects.pod import MAX_NAME
from webhook.placement.objects.resources import MAX_CONTAINERS

T = TypeVar("T")
JSON = "application/json"
# The API server sends only the metadata: https://kubernetes.io/docs/reference/using-api/api-concepts/#metadata-only-fetches
METADATA_LIST, METADATA = (
    f"{JSON};as={kind};g=meta.k8s.io;v=v1" for kind in ("PartialObjectMetadataList", "PartialObjectMetadata")
)

# bytes of JSON. A larger object is decoded field by field, without the fields that are larger than MAX_FIELD: 38,000
# terms (2.3 MB) stop all threads for 70 ms, and then take 18 MB. The API server limits annotations to 256 KiB.
LARGE = 64 * 1024
MAX_FIELD = 256 * 1024
MAX_ANNOTATIONS = 2 * MAX_FIELD

# Levels of lists and maps. A user can create pods and claims with 10,000 in made-up managedFields. To skip them exceeds
# Python's recursion limit. The fields of a shape have at most 20.
MAX_DEPTH = 100
_UP_TO_BRACKET = re.compile(rb'(?:[^]["{}]++|"(?:[^"\\]++|\\.)*+")*+[]\[{}]')


class MalformedObject(ValueError):
    """An object that can't be read. The arguments are its namespace and name, as far as known, and the problem.

    `manifest` is None if it is not even JSON.
    """

    def __init__(self, problem: str, manifest: JsonObject | None = None) -> None:
        namespace, name, _ = identity(manifest or {})
        super().__init__("/".join(filter(None, (namespace, name))), problem)
        self.manifest = manifest


def limited_name(name: str) -> str:
    """Return a name, or an empty string for one that is too long. Namespace users write names of any length."""
    return name if len(name) <= MAX_NAME else ""


class Kind(Struct, frozen=True):
    """A resource kind."""

    api_version: str  # as in manifests
    name: str  # as in manifests, such as "Pod"
    # what the API server's JSON decodes to, and all that a snapshot keeps: a subclass of `Typed`, or the type of a map
    shape: Any
    fact: Any = None  # the type of its facts; None for a kind of which only the tool reads the manifests
    read: Callable[[Any], Fact | None] = lambda _item: None  # extracts the fact; None for an object to ignore
    query: dict[str, str] = field(default_factory=dict)  # parameters of list and watch requests
    namespace: str = ""  # only its objects count; empty for those of all namespaces
    required: bool = True  # without the right to read the kind, the webhook isn't ready
    metadata_only: bool = False  # the API server sends nothing but the metadata

    def __post_init__(self) -> None:
        """Make the decoder now, in the thread that imports the kinds."""
        _decoder(self.shape)

    @property
    def plural(self) -> str:
        """Return the resource's name in the API."""
        return self.name.lower() + ("es" if self.name.endswith("s") else "s")

    @property
    def group(self) -> str:
        """Return the group of the API, empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def optional(self) -> bool:
        """Return whether the kind is a CRD, which may be missing."""
        return self.group.endswith(("longhorn.io", "kubevirt.io"))

    @property
    def path(self) -> str:
        """Return the path of all objects."""
        return self.path_in(self.namespace)

    def path_in(self, namespace: str) -> str:
        """Return the path of a namespaced kind's objects in a namespace, of all if the namespace is empty."""
        api = f"/{'apis' if self.group else 'api'}/{self.api_version}"
        return f"{api}/namespaces/{quote(namespace, safe='')}/{self.plural}" if namespace else f"{api}/{self.plural}"

    def object_path(self, key: Key) -> str:
        """Return the path of one object of a namespaced kind."""
        return f"{self.path_in(key[0])}/{quote(key[1], safe='')}"

    def is_of(self, api_version: str, name: str) -> bool:
        """Return whether a manifest is of this kind. KubeVirt and Longhorn have several versions of their API."""
        return (api_version.rpartition("/")[0], name) == (self.group, self.name)

    def read_all(
        self, raws: Iterable[msgspec.Raw | bytes], skip: Callable[[str, str], None]
    ) -> Iterator[tuple[Any, Fact | None]]:
        """Yield each object, decoded to the shape, and its fact, None for an object to ignore.

        Calls `skip` for a malformed object, with its name and the problem.
        """
        for raw in raws:
            try:
                item = self.decode(raw)
                fact = self.extract(item)
            except MalformedObject as error:
                skip(*error.args)
            else:
                yield item, fact

    @property
    def typed(self) -> bool:
        """Return whether objects decode to a subclass of `Typed`. Otherwise they decode to maps."""
        return isinstance(self.shape, type(Struct))

    def decode(self, raw: msgspec.Raw | bytes) -> Any:
        """Decode an object to the shape. Raises MalformedObject.

        Of a large map, the fields that are too large to decode are missing.
        """
        try:
            if len(raw) > LARGE and (not self.typed or UNDECODED in self.shape.__struct_fields__):
                return self.convert(decode_large(raw, self.shape))
            return decode_json(_decoder(self.shape), raw)
        except (ValueError, RecursionError):
            pass  # a field of another type, or a null
        try:
            item = decode_json(_ANY, raw)
        except (ValueError, RecursionError):
            raise MalformedObject("not valid JSON") from None
        return self.convert(item if isinstance(item, dict) else {})

    def convert(self, manifest: JsonObject) -> Any:
        """Convert a manifest to the shape. In a typed object, null counts as absent. Raises MalformedObject.

        A map keeps the fields of the shape that have the expected types.
        """
        if not self.typed:
            try:
                return msgspec.convert(manifest, self.shape)
            except msgspec.ValidationError:
                return decode_large(msgspec.json.encode(manifest), self.shape)
        try:
            return typed.convert(manifest, self.shape)
        except Malformed as error:
            raise MalformedObject(str(error), manifest) from None

    def extract(self, item: Any) -> Fact | None:
        """Read the fact of a decoded object; None for an object to ignore. Raises MalformedObject."""
        try:
            if identity(item)[1]:
                return self.read(item)
            problem = "metadata.name is missing"
        except Malformed as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 (one malformed object must not fail the whole list)
            problem = type(error).__name__
        raise MalformedObject(problem, item if isinstance(item, dict) else msgspec.to_builtins(item))


def identity(item: Any) -> tuple[str, str, str]:
    """Return the namespace, the name and the resource version of a decoded object; each may be empty."""
    if isinstance(item, dict):
        metadata = mapping(item, "metadata")
        return text(metadata, "namespace"), text(metadata, "name"), text(metadata, "resourceVersion")
    return item.metadata.namespace, item.metadata.name, item.metadata.resource_version


def as_map(item: Any) -> JsonObject:
    """Return a typed object as a map."""
    found: JsonObject = msgspec.json.decode(msgspec.json.encode(item))  # `to_builtins` makes tuples, which no file has
    return found


def key_of(item: JsonObject) -> Key:
    """Return the namespace and name of a namespaced object."""
    return text(item, "metadata", "namespace") or "default", text(item, "metadata", "name")


def decode_json(decoder: msgspec.json.Decoder[T], raw: msgspec.Raw | bytes) -> T:
    """Decode JSON. If it is nested too deeply for that, the lists and maps on the level MAX_DEPTH become empty."""
    try:
        return decoder.decode(raw)
    except RecursionError:
        content = bytes(raw)
        kept = list[bytes]()
        depth = 0
        copied = 0
        for part in _UP_TO_BRACKET.finditer(content):  # unlike `findall`, lets other threads run
            if content[part.end() - 1] in b"[{":
                depth += 1
                if depth == MAX_DEPTH:
                    kept.append(content[copied : part.end()])
            else:
                copied = part.end() - 1 if depth == MAX_DEPTH else copied
                depth -= 1
        return decoder.decode(b"".join([*kept, content[copied:]]))


# Two threads must not make decoders: msgspec publishes its table of a TypedDict's fields before it fills the table. A
# decoder of another thread that has the same part reads null pointers: three segmentation faults in an afternoon.
@cache
def _decoder(shape: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(shape)


# The parts of a shape


def map_of(names: str = "", **parts: Any) -> Any:
    """Return the type of a map with these fields: `names` of any type, and `parts`, each of its type or null."""
    fields = dict.fromkeys(names.split(), Any) | {name: part | None for name, part in parts.items()}
    return TypedDict("Fields", fields, total=False)  # type: ignore[operator]


def list_of(names: str, **parts: Any) -> Any:
    """Return the type of a list of such maps."""
    return GenericAlias(list, (map_of(names, **parts),))


def metadata_of(names: str = "", **parts: Any) -> Any:
    """Return the type of an object's metadata, without the managedFields, which alone are half of a pod."""
    identity = "name namespace generateName uid creationTimestamp deletionTimestamp resourceVersion"
    return map_of(f"{identity} {names}", **parts)


def object_of(names: str = "", metadata: Any = None, **parts: Any) -> Any:
    """Return the type of an object with this metadata and these fields."""
    return map_of(f"apiVersion kind {names}", metadata=metadata or metadata_of(), **parts)


# Decoding of large objects

UNDECODED = "undecoded"  # the field that marks an object whose details were too large to decode
_ANY = msgspec.json.Decoder()
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_NULL = msgspec.Raw(b"null")


@lru_cache(maxsize=64)
def _fields_of(shape: Any) -> dict[str, Any]:
    """Return the type of each field, by its name in JSON."""
    if is_typeddict(shape):
        return get_type_hints(shape)
    return {each.encode_name: each.type for each in msgspec.structs.fields(shape)}


def _is_object(shape: Any) -> bool:
    return is_typeddict(shape) or (isinstance(shape, type) and issubclass(shape, Struct))


def decode_large(raw: msgspec.Raw | bytes, shape: Any) -> JsonObject:
    """Decode a large object like `shape`, without what is too large to decode; `UNDECODED` marks such an object.

    No part takes more than some milliseconds. Raises ValueError for invalid JSON.
    """
    item, undecoded = _decode_fields(raw, shape)
    return item | {UNDECODED: True} if undecoded else item


def _decode_fields(raw: msgspec.Raw | bytes, shape: Any) -> tuple[JsonObject, bool]:
    item = {}
    undecoded = False
    fields = _fields_of(shape)
    for name, value in decode_json(_FIELDS, raw).items():
        if name in fields:
            try:
                limit = MAX_ANNOTATIONS if name == "annotations" else MAX_FIELD
                item[name], cut = _decode_value(value, fields[name], limit)
            except (ValueError, RecursionError):  # an unexpected type
                cut = True
            undecoded |= cut
    return item, undecoded


def _decode_value(raw: msgspec.Raw, shape: Any, limit: int) -> tuple[Any, bool]:
    part = get_args(shape)[0] if get_origin(shape) in (Union, UnionType) else shape  # of "a part or null"
    if raw == _NULL:
        return None, False
    if _is_object(part):
        return _decode_fields(raw, part)
    if len(raw) <= limit:
        return msgspec.json.decode(raw, type=shape), False
    item_shape = next(iter(get_args(part)), None)
    items = decode_json(_ITEMS, raw) if _is_object(item_shape) else []
    if not 0 < len(items) <= MAX_CONTAINERS:
        return None, True
    decoded = [_decode_fields(each, item_shape) for each in items]
    return [item for item, _ in decoded], any(cut for _, cut in decoded)
