"""Read and write YAML as Kubernetes does: a date and 12:30 are strings, `y` and `on` are booleans."""

import math
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import chain
from typing import Any

import msgspec
import yaml

_STRING = "tag:yaml.org,2002:str"
_represent = yaml.representer.SafeRepresenter().represent_data
_resolve: Callable[..., str] = yaml.resolver.Resolver().resolve
MAX_ALIAS_BYTES = 4 << 20  # of JSON that the aliases of a document may expand to
# Source: sigs.k8s.io/yaml/goyaml.v2/resolve.go, which is YAML 1.1 without dates and base 60.
_WORDS: dict[str, Any] = dict.fromkeys(("", *"~ null Null NULL".split()))
_WORDS |= dict.fromkeys("y Y yes Yes YES true True TRUE on On ON".split(), True)
_WORDS |= dict.fromkeys("n N no No NO false False FALSE off Off OFF".split(), False)
_INTEGER = re.compile(r"[-+]?(?:0[bB][01]+|0[xX][0-9a-fA-F]+|0[oO][0-7]+|0[0-7_]*|[1-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?")


class InvalidYaml(ValueError):
    """YAML that is invalid or that Kubernetes rejects. The message never quotes the input; `line` counts from 1."""

    def __init__(self, problem: str, mark: Any = None) -> None:
        super().__init__(problem)
        self.line: int | None = mark and mark.line + 1


def documents(text: str) -> Iterator[Any]:
    """Yield each document of a text; an empty document is None. Raises InvalidYaml, or RecursionError if too deep."""
    loader = yaml.CSafeLoader(text)
    try:
        for event in iter(loader.get_event, None):
            if isinstance(event, yaml.DocumentStartEvent):
                yield _Document(loader).value(loader.get_event())
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or getattr(error, "reason", "unexpected end of file")
        raise InvalidYaml(f"invalid YAML: {problem}", getattr(error, "problem_mark", None)) from None


class _Document:
    """Builds values from libyaml's events. The C loader's nodes take four times as long, and crash on deep nesting."""

    def __init__(self, loader: Any) -> None:
        self._next_event = loader.get_event
        self._anchors: dict[str, bytes] = {}  # each value as JSON
        self._alias_bytes = 0

    def value(self, event: Any) -> Any:
        """Return the value that begins with an event."""
        if isinstance(event, yaml.AliasEvent):
            return self._copy(event)
        is_scalar = isinstance(event, yaml.ScalarEvent)
        if event.tag and not (is_scalar and event.tag in ("!", _STRING)):
            raise InvalidYaml("unsupported YAML tag", event.start_mark)
        if is_scalar:
            value = _resolved(event.value) if event.implicit[0] and event.tag is None else event.value
        elif isinstance(event, yaml.SequenceStartEvent):
            value = []
            while not isinstance(item := self._next_event(), yaml.SequenceEndEvent):
                value.append(self.value(item))
        else:
            value = self._mapping()
        if event.anchor:
            self._anchors[event.anchor] = encoded = msgspec.json.encode(value)
            self._count(len(encoded), event.start_mark)  # nested anchors contain each other
        return value

    def _copy(self, alias: Any) -> Any:
        if alias.anchor not in self._anchors:
            raise InvalidYaml("undefined alias", alias.start_mark)
        encoded = self._anchors[alias.anchor]
        self._count(len(encoded), alias.start_mark)
        return msgspec.json.decode(encoded)

    def _count(self, size: int, mark: Any) -> None:
        self._alias_bytes += size
        if self._alias_bytes > MAX_ALIAS_BYTES:
            raise InvalidYaml(f"anchors and aliases expand to over {MAX_ALIAS_BYTES >> 20} MiB", mark)

    def _mapping(self) -> dict[str, Any]:
        pairs: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        while not isinstance(event := self._next_event(), yaml.MappingEndEvent):
            key = self.value(event)
            value = self.value(self._next_event())
            if key == "<<" and isinstance(event, yaml.ScalarEvent) and event.implicit[0]:
                for source in value if isinstance(value, list) else [value]:
                    if not isinstance(source, dict):
                        raise InvalidYaml("merge key <<: expected a mapping", event.start_mark)
                    merged = source | merged
            elif not isinstance(key, str):
                raise InvalidYaml("mapping key is not a string: put it in quotes", event.start_mark)
            elif key in pairs:
                raise InvalidYaml("duplicate mapping key", event.start_mark)
            else:
                pairs[key] = value
        return merged | pairs


def _resolved(scalar: str) -> Any:
    """Return the value of a scalar without quotes. What JSON can't hold as a number stays a string, such as .inf."""
    if scalar in _WORDS or scalar[0] not in "-+.0123456789":
        return _WORDS.get(scalar, scalar)
    digits = scalar.replace("_", "")
    if _INTEGER.fullmatch(scalar) and len(digits) < 100:  # Python converts no more than 4,300 digits
        number = int(re.sub(r"^([-+]?)0(?=[0-7]+$)", r"\g<1>0o", digits), 0)
        if -(2**63) <= number < 2**64:
            return number
    # 12e4567, which overflows to infinity, stays a string: a short commit hash can look like this.
    return float(digits) if _FLOAT.fullmatch(scalar) and math.isfinite(float(digits)) else scalar


# A report repeats its words and keys thousands of times.
@lru_cache(maxsize=4096)
def _string(value: str) -> yaml.Event:
    # Quote a string that any YAML parser would read as another type, as kubectl does.
    plain = _resolve(yaml.ScalarNode, value, (True, False)) == _STRING and _resolved(value) == value
    quote = None if plain else '"'
    return yaml.ScalarEvent(None, None, (plain, True), value, style="|" if "\n" in value else quote)


def _events(value: Any) -> Iterator[yaml.Event]:
    # Events, as in `_Document`: nodes take five times as long.
    if isinstance(value, dict):
        yield yaml.MappingStartEvent(None, None, implicit=True, flow_style=False)
        yield from chain.from_iterable(map(_events, chain(*value.items())))
        yield yaml.MappingEndEvent()
    elif isinstance(value, list):
        yield yaml.SequenceStartEvent(None, None, implicit=True, flow_style=False)
        yield from chain.from_iterable(map(_events, value))
        yield yaml.SequenceEndEvent()
    else:
        is_text = isinstance(value, str)
        yield _string(value) if is_text else yaml.ScalarEvent(None, None, (True, False), _represent(value).value)


def to_yaml(value: Any) -> str:
    """Return an object as YAML, with its keys in order and no folded lines, which are hard to compare."""
    start = (yaml.StreamStartEvent(), yaml.DocumentStartEvent())
    end = (yaml.DocumentEndEvent(), yaml.StreamEndEvent())
    text: str = yaml.emit((*start, *_events(value), *end), Dumper=yaml.CSafeDumper, allow_unicode=True, width=-1)
    return text
