"""Read and write YAML as Kubernetes does.

The module builds values from libyaml's parser events instead of using PyYAML's loaders. Those don't read scalars as
Kubernetes does (see `scalars`), crash on deep nesting (a segmentation fault in the C loader), and expand alias bombs
without a limit.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from webhook.reading import scalars

MAX_DEPTH = 100  # levels; a CustomResourceDefinition, the deepest object in daily use, has about 40
MAX_ALIAS_VALUES = 1_000_000  # values that the aliases of a document may expand to; that takes half a second

_UNKNOWN_TAG = "unsupported YAML tag"
TOO_DEEP = f"nesting exceeds {MAX_DEPTH} levels"


class InvalidYaml(ValueError):
    """YAML that is invalid or that Kubernetes rejects. The message never quotes the input; `line` counts from 1."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.line = line


class _Parser(yaml.CSafeLoader):
    yaml_implicit_resolvers = {}  # noqa: RUF012 (PyYAML reads this class attribute; the loop below fills it)


class _Dumper(yaml.CSafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 (PyYAML's signature)
        return True


for _tag, _pattern, _first in scalars.SCALAR_PATTERNS:
    _Parser.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), _first)
    # In addition to PyYAML's resolvers: quote a string that any YAML parser would read as another type.
    _Dumper.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), _first)


def _string_node(dumper: _Dumper, value: str) -> yaml.ScalarNode:
    resolve: Callable[..., str] = dumper.resolve
    plain = resolve(yaml.ScalarNode, value, (True, False)) == scalars.STRING
    style = "|" if "\n" in value else None if plain else '"'  # as kubectl writes them
    return dumper.represent_scalar(scalars.STRING, value, style=style)


_Dumper.add_representer(str, _string_node)


def to_yaml(value: Any) -> str:
    """Return an object as YAML.

    Keys stay in order. A string is quoted if a YAML parser would read another type.
    """
    # No line folding: folded lines are hard to compare.
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=-1)
    return text


def documents(text: str) -> Iterator[Any]:
    """Yield each document of a text; an empty document is None. Raises InvalidYaml."""
    parser = _Parser(text)
    events = _events(parser)
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            yield _Document(parser, events).value(next(events), 1)


def _events(parser: _Parser) -> Iterator[Any]:
    try:
        while (event := parser.get_event()) is not None:
            yield event
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise InvalidYaml(f"invalid YAML: {error.problem}", line) from None
    except yaml.YAMLError as error:
        raise InvalidYaml(f"invalid YAML: {getattr(error, 'reason', 'unexpected end of file')}") from None


class _Document:
    """Builds the value of one document from its parser events. Each instance works once."""

    def __init__(self, parser: _Parser, events: Iterator[Any]) -> None:
        self._resolve: Callable[[type[yaml.Node], str, tuple[bool, bool]], str] = parser.resolve
        self._events = events
        self._anchors: dict[str, Any] = {}
        self._expanded_values = 0

    def value(self, event: Any, depth: int) -> Any:
        """Build the value that starts with an event."""
        _check_depth(event, depth)
        match event:
            case yaml.AliasEvent():
                return self._alias(event, depth)
            case yaml.ScalarEvent():
                value = self._scalar(event)
            case yaml.SequenceStartEvent(tag=None):
                value = [self.value(item, depth + 1) for item in self._events_until(yaml.SequenceEndEvent)]
            case yaml.MappingStartEvent(tag=None):
                value = self._mapping(depth)
            case _:
                raise _error_at(event, _UNKNOWN_TAG)
        if event.anchor:
            self._anchors[event.anchor] = value
        return value

    def _events_until(self, end: type[yaml.Event]) -> Iterator[Any]:
        for event in self._events:
            if isinstance(event, end):
                return
            yield event

    def _scalar(self, event: Any) -> Any:
        tag = scalars.STRING if event.tag == "!" else event.tag
        resolved = self._resolve(yaml.ScalarNode, event.value, (True, False) if tag else event.implicit)
        if tag not in (None, resolved, scalars.STRING):
            raise _error_at(event, _UNKNOWN_TAG)
        try:
            return scalars.value_of(tag or resolved, event.value)
        except ValueError:
            raise _error_at(event, "number out of range for JSON") from None

    def _mapping(self, depth: int) -> dict[str, Any]:
        pairs: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for event in self._events_until(yaml.MappingEndEvent):
            key = self.value(event, depth + 1)
            value = self.value(next(self._events), depth + 1)
            if key == "<<" and isinstance(event, yaml.ScalarEvent) and event.implicit[0]:
                merged = _merged_mapping(event, value) | merged
            elif not isinstance(key, str):
                raise _error_at(event, "mapping key is not a string: put it in quotes")
            elif key in pairs:
                raise _error_at(event, "duplicate mapping key")
            else:
                pairs[key] = value
        return merged | pairs if merged else pairs

    def _alias(self, event: Any, depth: int) -> Any:
        if event.anchor not in self._anchors:
            raise _error_at(event, "undefined alias")
        return self._expanded(self._anchors[event.anchor], event, depth)

    def _expanded(self, value: Any, event: Any, depth: int) -> Any:
        _check_depth(event, depth)
        self._expanded_values += 1
        if self._expanded_values > MAX_ALIAS_VALUES:
            raise _error_at(event, f"aliases expand to more than {MAX_ALIAS_VALUES:,} values")
        match value:
            case dict():
                return {key: self._expanded(item, event, depth + 1) for key, item in value.items()}
            case list():
                return [self._expanded(item, event, depth + 1) for item in value]
        return value


def _error_at(event: Any, problem: str) -> InvalidYaml:
    return InvalidYaml(problem, event.start_mark.line + 1)


def _check_depth(event: Any, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise _error_at(event, TOO_DEEP)


def _merged_mapping(event: Any, value: Any) -> dict[str, Any]:
    sources = value if isinstance(value, list) else [value]
    if not all(isinstance(each, dict) for each in sources):
        raise _error_at(event, "merge key <<: expected a mapping")
    return dict(item for each in reversed(sources) for item in each.items())
