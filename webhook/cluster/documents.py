"""Read Kubernetes objects from YAML or JSON files, and say where one is wrong."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from webhook.cluster import manifests
from webhook.placement.shape import JsonObject, text

STANDARD_INPUT = Path("-")
SUFFIXES = (".yaml", ".yml", ".json")

Kind = tuple[str, str]  # apiVersion and kind


class BadInput(ValueError):
    """A file that can't be used. Its text is one line: file, document, what is wrong, what to do; never content."""


@dataclass(frozen=True, slots=True)
class Document:
    """One Kubernetes object as it stands in a file, a list perhaps; `number` counts the file's documents from 1."""

    file: str
    number: int
    content: JsonObject

    def bad(self, what: str) -> BadInput:
        """Say what is wrong with the document."""
        return BadInput(f"{self.file}: document {self.number}: {what}")

    def objects(self) -> Iterator[tuple[Kind, JsonObject]]:
        """Unpack the lists. Raises BadInput for an item that is no object."""
        found: list[tuple[Kind, JsonObject]] = []

        def keep(kind: Kind, item: JsonObject) -> JsonObject:
            found.append((kind, item))
            return item

        self.rewritten(keep)
        return iter(found)

    def rewritten(self, change: Callable[[Kind, JsonObject], JsonObject]) -> JsonObject:
        """Return the content with each object replaced by what `change` makes of it; lists stay lists."""
        return self._rewritten("", self.content, ("", ""), change)

    def _rewritten(
        self, place: str, item: Any, inherited: Kind, change: Callable[[Kind, JsonObject], JsonObject]
    ) -> JsonObject:
        kind = self._kind(place, item, inherited)
        if not _is_list(kind, item):
            return change(kind, item)
        items = item.get("items") or []
        if not isinstance(items, list):
            raise self.bad(f"{place}items is no list")
        # The API's own lists, such as a PodList, leave the kind of their items out.
        of = ("", "") if kind[1] == "List" else (kind[0], kind[1].removesuffix("List"))
        changed = [self._rewritten(f"{place}items[{i}].", one, of, change) for i, one in enumerate(items)]
        return {**item, "items": changed} if changed else item

    def _kind(self, place: str, item: Any, inherited: Kind) -> Kind:
        what = place.removesuffix(".") or "it"
        if not isinstance(item, dict):
            raise self.bad(f"{what} is no Kubernetes object: a map is wanted")
        kind = text(item, "apiVersion") or inherited[0], text(item, "kind") or inherited[1]
        if not all(kind):
            raise self.bad(f"{what} is no Kubernetes object: give it an apiVersion and a kind")
        return kind


def _is_list(kind: Kind, item: JsonObject) -> bool:
    return kind == ("v1", "List") or (kind[1].endswith("List") and isinstance(item.get("items"), list))


def printable(words: str) -> str:
    """Return words as they may be shown: in one line, and without what a terminal takes for a command."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in words)


def read_all(paths: Iterable[Path]) -> Iterator[Document]:
    """Read files, and of each folder the files ending in .yaml, .yml or .json in order of their names."""
    for path in paths:
        for file in _files(path):
            yield from read(file)


def _files(path: Path) -> list[Path]:
    if path == STANDARD_INPUT or not path.is_dir():
        return [path]
    try:
        # Not the hidden ones: editors and ConfigMap volumes keep their own there.
        found = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.name[0] != ".")
    except OSError as error:
        raise BadInput(f"{display_name(path)}: {error.strerror}") from None
    if not found:
        raise BadInput(f"{display_name(path)}: the folder has no file ending in {', '.join(SUFFIXES)}")
    return found


def read(path: Path) -> list[Document]:
    """Read the documents of one file, or of standard input for `-`; empty ones are left out. Raises BadInput."""
    name = display_name(path)
    try:
        words = _bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{name}: byte {error.start + 1} is not UTF-8; save it as YAML or JSON in UTF-8") from None
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else "that is no name of a file"
        raise BadInput(f"{name}: {what}; name a file, or - for standard input") from None
    if path.suffix == ".json":
        return _json(name, words)
    if words.lstrip()[:1] in ("{", "["):
        with suppress(BadInput):  # YAML may begin so as well, and tells the line of what is wrong
            return _json(name, words)
    return _yaml(name, words)


def display_name(path: Path) -> str:
    """Return the name of a file as it may be shown."""
    return "standard input" if path == STANDARD_INPUT else printable(str(path))


def _bytes(path: Path) -> bytes:
    if path != STANDARD_INPUT:
        return path.read_bytes()
    if sys.stdin is None:
        raise OSError(0, "it is closed")
    return sys.stdin.buffer.read()


def _json(name: str, words: str) -> list[Document]:
    if not words.strip():
        return []
    try:
        content = msgspec.json.decode(words)
        too_deep = _is_too_deep(content)
    except msgspec.DecodeError as error:
        raise BadInput(f"{name}: document 1: it is no JSON: {error}") from None
    except RecursionError:
        too_deep = True
    if too_deep:
        raise BadInput(f"{name}: document 1: it is nested deeper than {manifests.DEEPEST} levels")
    return [Document(name, 1, content)]


def _is_too_deep(content: Any) -> bool:
    level = [content]
    for _ in range(manifests.DEEPEST):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer if type(outer) is list else ())
        ]
    return bool(level)


def _yaml(name: str, words: str) -> list[Document]:
    found: list[Document] = []
    number = 0
    try:
        for number, content in enumerate(manifests.documents(words), 1):
            if content is not None:
                found.append(Document(name, number, content))
    except manifests.InvalidYaml as error:
        place = f", line {error.line}" if error.line else ""
        raise BadInput(f"{name}: document {number + 1}{place}: {error}") from None
    return found
