"""YAML as Kubernetes reads and writes it.

A reader of its own upon libyaml's events: PyYAML's loaders do not read scalars as Kubernetes does (see scalars), die of
deep nesting (a segmentation fault in the C loader), and build whatever an alias bomb asks for.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from webhook.cluster import scalars

DEEPEST = 100  # levels; a CustomResourceDefinition, the deepest object in daily use, has about 40
MOST_REPEATED = 1_000_000  # values that the aliases of a document may stand for: half a second

_UNKNOWN_TAG = "it has a tag that Kubernetes does not know"


class InvalidYaml(ValueError):
    """YAML that can't be read, or is none of Kubernetes'. Its text never quotes it; `line` counts from 1."""

    def __init__(self, what: str, line: int | None = None) -> None:
        super().__init__(what)
        self.line = line


class _Parser(yaml.CSafeLoader):
    yaml_implicit_resolvers = {}  # noqa: RUF012 (PyYAML's way: each class has its own, filled below)


class _Dumper(yaml.CSafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 (PyYAML's signature)
        return True


for _tag, _look, _first in scalars.LOOKS:
    _Parser.add_implicit_resolver(_tag, re.compile(rf"(?:{_look})\Z"), _first)
    # Beside PyYAML's own: a string that any reader would take for something else is put in quotes.
    _Dumper.add_implicit_resolver(_tag, re.compile(rf"(?:{_look})\Z"), _first)


def _string_node(dumper: _Dumper, value: str) -> yaml.ScalarNode:
    look: Callable[..., str] = dumper.resolve
    plain = look(yaml.ScalarNode, value, (True, False)) == scalars.STRING
    style = "|" if "\n" in value else None if plain else '"'  # as kubectl writes them
    return dumper.represent_scalar(scalars.STRING, value, style=style)


_Dumper.add_representer(str, _string_node)


def to_yaml(value: Any) -> str:
    """Return an object as YAML: its keys in their order, its strings such that every reader finds strings."""
    # Without a width: folded lines are hard to compare.
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=-1)
    return text


def documents(text: str) -> Iterator[Any]:
    """Read one document after the other; an empty one is None. Raises Unreadable."""
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
        raise InvalidYaml(f"it is no YAML: {error.problem}", line) from None
    except yaml.YAMLError as error:
        raise InvalidYaml(f"it is no YAML: {getattr(error, 'reason', 'it is cut off')}") from None


class _Document:
    """The values of one document; to be read once."""

    def __init__(self, parser: _Parser, events: Iterator[Any]) -> None:
        self._look: Callable[[type[yaml.Node], str, tuple[bool, bool]], str] = parser.resolve
        self._events = events
        self._anchors: dict[str, Any] = {}
        self._repeated = 0

    def value(self, event: Any, depth: int) -> Any:
        """Read the value that begins with an event."""
        _check_depth(event, depth)
        match event:
            case yaml.AliasEvent():
                return self._alias(event, depth)
            case yaml.ScalarEvent():
                value = self._scalar(event)
            case yaml.SequenceStartEvent(tag=None):
                value = [self.value(item, depth + 1) for item in self._until(yaml.SequenceEndEvent)]
            case yaml.MappingStartEvent(tag=None):
                value = self._mapping(depth)
            case _:
                raise _refused(event, _UNKNOWN_TAG)
        if event.anchor:
            self._anchors[event.anchor] = value
        return value

    def _until(self, end: type[yaml.Event]) -> Iterator[Any]:
        for event in self._events:
            if isinstance(event, end):
                return
            yield event

    def _scalar(self, event: Any) -> Any:
        tag = scalars.STRING if event.tag == "!" else event.tag
        look = self._look(yaml.ScalarNode, event.value, (True, False) if tag else event.implicit)
        if tag not in (None, look, scalars.STRING):
            raise _refused(event, _UNKNOWN_TAG)
        try:
            return scalars.value_of(tag or look, event.value)
        except ValueError:
            raise _refused(event, "it has a number that JSON can not hold") from None

    def _mapping(self, depth: int) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for event in self._until(yaml.MappingEndEvent):
            key = self.value(event, depth + 1)
            value = self.value(next(self._events), depth + 1)
            if key == "<<" and isinstance(event, yaml.ScalarEvent) and event.implicit[0]:
                merged = _merged(event, value) | merged
            elif not isinstance(key, str):
                raise _refused(event, "a key is no string: put it in quotes")
            elif key in own:
                raise _refused(event, "a key stands twice in one map")
            else:
                own[key] = value
        return merged | own if merged else own

    def _alias(self, event: Any, depth: int) -> Any:
        if event.anchor not in self._anchors:
            raise _refused(event, "an alias has no anchor before it")
        return self._copy(self._anchors[event.anchor], event, depth)

    def _copy(self, value: Any, event: Any, depth: int) -> Any:
        _check_depth(event, depth)
        self._repeated += 1
        if self._repeated > MOST_REPEATED:
            raise _refused(event, f"its aliases stand for more than {MOST_REPEATED:,} values")
        match value:
            case dict():
                return {key: self._copy(item, event, depth + 1) for key, item in value.items()}
            case list():
                return [self._copy(item, event, depth + 1) for item in value]
        return value


def _refused(event: Any, what: str) -> InvalidYaml:
    return InvalidYaml(what, event.start_mark.line + 1)


def _check_depth(event: Any, depth: int) -> None:
    if depth > DEEPEST:
        raise _refused(event, f"it is nested deeper than {DEEPEST} levels")


def _merged(event: Any, value: Any) -> dict[str, Any]:
    found = value if isinstance(value, list) else [value]
    if not all(isinstance(each, dict) for each in found):
        raise _refused(event, "what is merged by << is no map")
    return dict(item for each in reversed(found) for item in each.items())
