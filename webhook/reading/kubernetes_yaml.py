"""Read and write YAML as Kubernetes does: a date and 12:30 are strings, `y` and `on` are booleans.

The module builds values from libyaml's parser events. PyYAML's loaders read other scalars, and crash on deep nesting (a
segmentation fault in the C loader), where this one raises RecursionError.
"""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import yaml

MAX_ALIAS_VALUES = 1_000_000  # values that the aliases of a document may expand to; that takes half a second
_STRING = "tag:yaml.org,2002:str"

# Source: sigs.k8s.io/yaml/goyaml.v2/resolve.go, which is YAML 1.1 without dates and base 60.
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys("y Y yes Yes YES true True TRUE on On ON".split(), True),
    **dict.fromkeys("n N no No NO false False FALSE off Off OFF".split(), False),
}
_INTEGER = re.compile(r"[-+]?(?:0[bB][01]+|0[xX][0-9a-fA-F]+|0[oO][0-7]+|0[0-7_]*|[1-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?")


class InvalidYaml(ValueError):
    """YAML that is invalid or that Kubernetes rejects. The message never quotes the input; `line` counts from 1."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.line = line


def documents(text: str) -> Iterator[Any]:
    """Yield each document of a text; an empty document is None. Raises InvalidYaml."""
    events = _events(yaml.CSafeLoader(text))
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            yield _Document(events).value(next(events))


def _events(parser: yaml.CSafeLoader) -> Iterator[Any]:
    try:
        while (event := parser.get_event()) is not None:
            yield event
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise InvalidYaml(f"invalid YAML: {error.problem}", line) from None
    except yaml.YAMLError as error:
        raise InvalidYaml(f"invalid YAML: {getattr(error, 'reason', 'unexpected end of file')}") from None


class _Document:
    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._anchors: dict[str, Any] = {}
        self._alias_values = 0

    def value(self, event: Any) -> Any:
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise _error_at(event, "undefined alias")
            return self._copy(self._anchors[str(event.anchor)], event)
        scalar = isinstance(event, yaml.ScalarEvent)
        if event.tag and not (scalar and event.tag in ("!", _STRING)):
            raise _error_at(event, "unsupported YAML tag")
        if scalar:
            value = _resolved(event.value) if event.implicit[0] and event.tag is None else event.value
        elif isinstance(event, yaml.SequenceStartEvent):
            value = [self.value(item) for item in self._until(yaml.SequenceEndEvent)]
        else:
            value = self._mapping()
        if event.anchor:
            self._anchors[event.anchor] = value
        return value

    def _until(self, end: type[yaml.Event]) -> Iterator[Any]:
        for event in self._events:
            if isinstance(event, end):
                return
            yield event

    def _mapping(self) -> dict[str, Any]:
        pairs: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for event in self._until(yaml.MappingEndEvent):
            key, value = self.value(event), self.value(next(self._events))
            if key == "<<" and isinstance(event, yaml.ScalarEvent) and event.implicit[0]:
                for source in value if isinstance(value, list) else [value]:
                    if not isinstance(source, dict):
                        raise _error_at(event, "merge key <<: expected a mapping")
                    merged = source | merged
            elif not isinstance(key, str):
                raise _error_at(event, "mapping key is not a string: put it in quotes")
            elif key in pairs:
                raise _error_at(event, "duplicate mapping key")
            else:
                pairs[key] = value
        return merged | pairs if merged else pairs

    def _copy(self, value: Any, event: Any) -> Any:
        self._alias_values += 1
        if self._alias_values > MAX_ALIAS_VALUES:
            raise _error_at(event, f"aliases expand to over {MAX_ALIAS_VALUES:,} values")
        if isinstance(value, dict):
            return {key: self._copy(item, event) for key, item in value.items()}
        return [self._copy(item, event) for item in value] if isinstance(value, list) else value


def _error_at(event: Any, problem: str) -> InvalidYaml:
    return InvalidYaml(problem, event.start_mark.line + 1)


def _resolved(scalar: str) -> Any:
    """Return the value of a scalar without quotes. What JSON can't hold as a number stays a string, such as .inf."""
    if scalar in _WORDS:
        return _WORDS[scalar]
    if scalar[0] not in "-+.0123456789":
        return scalar
    digits = scalar.replace("_", "")
    if _INTEGER.fullmatch(scalar) and len(digits) < 100:  # Python converts no more than 4,300 digits
        number = int(re.sub(r"^([-+]?)0(?=[0-7]+$)", r"\g<1>0o", digits), 0)
        if -(2**63) <= number < 2**64:
            return number
    # 12e4567, which overflows to infinity, stays a string: a short commit hash can look like this.
    return float(digits) if _FLOAT.fullmatch(scalar) and math.isfinite(float(digits)) else scalar


class _Dumper(yaml.CSafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 (PyYAML's signature)
        return True


def _string_node(dumper: _Dumper, value: str) -> yaml.ScalarNode:
    # Quote a string that any YAML parser would read as another type, as kubectl does.
    resolve: Callable[..., str] = dumper.resolve
    plain = resolve(yaml.ScalarNode, value, (True, False)) == _STRING and _resolved(value) == value
    return dumper.represent_scalar(_STRING, value, style="|" if "\n" in value else None if plain else '"')


_Dumper.add_representer(str, _string_node)


def to_yaml(value: Any) -> str:
    """Return an object as YAML.

    Keys stay in order. A string is quoted if a YAML parser would read another type.
    """
    # No line folding: folded lines are hard to compare.
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=-1)
    return text
