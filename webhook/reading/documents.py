"""Read Kubernetes objects from YAML or JSON files, and report where an object is invalid."""

import sys
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from webhook.placement.objects.fields import JsonObject, printable
from webhook.reading import kubernetes_yaml

STANDARD_INPUT = Path("-")
SUFFIXES = (".yaml", ".yml", ".json")

Kind = tuple[str, str]  # apiVersion and kind


class BadInput(ValueError):
    """An input file that can't be used.

    The message is one line: file, line or document, problem and remedy. It never quotes the file's content.
    """


class Document(Struct, frozen=True):
    """One document of a file: a Kubernetes object or a list. `number` counts the file's documents from 1."""

    file: str
    number: int
    content: JsonObject

    def error(self, problem: str) -> BadInput:
        """Return an error that names the file and the document."""
        return BadInput(f"{self.file}: document {self.number}: {problem}")

    def objects(self) -> Iterator[tuple[Kind, JsonObject]]:
        """Yield each object with its kind; lists are unpacked. Raises BadInput for an item that isn't an object."""
        found: list[tuple[Kind, JsonObject]] = []

        def collect(kind: Kind, item: JsonObject) -> JsonObject:
            found.append((kind, item))
            return item

        self.map_objects(collect)
        return iter(found)

    def map_objects(self, change: Callable[[Kind, JsonObject], JsonObject]) -> JsonObject:
        """Return the content with `change` applied to each object; lists stay lists. Raises BadInput like `objects`."""
        return self._rewritten_item((), self.content, ("", ""), change)

    def _rewritten_item(
        self, indexes: tuple[int, ...], item: Any, inherited: Kind, change: Callable[[Kind, JsonObject], JsonObject]
    ) -> JsonObject:
        """Rewrite the content, or the item of a list in lists; `indexes` are its places in them."""
        kind = self._kind_of(indexes, item, inherited)
        is_typed_list = kind[1].endswith("List") and isinstance(item.get("items"), list)
        if kind != ("v1", "List") and not is_typed_list:
            return change(kind, item)
        items = item.get("items") or []
        if not isinstance(items, list):
            raise self.error(f"{_path_of(indexes)}items: expected a list")
        # Typed lists, such as a PodList, omit the kind of their items.
        item_kind = ("", "") if kind[1] == "List" else (kind[0], kind[1].removesuffix("List"))
        changed = [self._rewritten_item((*indexes, i), each, item_kind, change) for i, each in enumerate(items)]
        return {**item, "items": changed} if changed else item

    def _kind_of(self, indexes: tuple[int, ...], item: Any, inherited: Kind) -> Kind:
        problem = "expected a mapping"
        if isinstance(item, dict):
            api_version = item.get("apiVersion") or inherited[0]
            kind = item.get("kind") or inherited[1]
            if api_version and kind and isinstance(api_version, str) and isinstance(kind, str):
                return api_version, kind
            problem = "apiVersion and kind are required"
        subject = f"{_path_of(indexes).removesuffix('.')}: " if indexes else ""
        raise self.error(f"{subject}not a Kubernetes object: {problem}")


def _path_of(indexes: Iterable[int]) -> str:
    return "".join(f"items[{index}]." for index in indexes)


def read_all(paths: Iterable[Path]) -> Iterator[Document]:
    """Read files; in a folder, read the .yaml, .yml and .json files sorted by name. Raises BadInput."""
    for path in paths:
        for file in _files_of(path):
            yield from read(file)


def _files_of(path: Path) -> list[Path]:
    if path == STANDARD_INPUT or not path.is_dir():
        return [path]
    try:
        # Skip hidden files: editors and ConfigMap volumes store internal files there.
        found = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.name[0] != ".")
    except OSError as error:
        raise BadInput(f"{display_name(path)}: {error.strerror}") from None
    if not found:
        raise BadInput(f"{display_name(path)}: no file in this folder ends in {', '.join(SUFFIXES)}")
    return found


def read(path: Path) -> list[Document]:
    """Read the documents of one file, or of standard input for `-`; skip empty documents. Raises BadInput."""
    name = display_name(path)
    if path == STANDARD_INPUT and sys.stdin is None:
        raise BadInput(f"{name}: closed")
    try:
        content = sys.stdin.buffer.read() if path == STANDARD_INPUT else path.read_bytes()
    except OSError as error:
        raise BadInput(f"{name}: {error.strerror}; specify a file, or - for standard input") from None
    with suppress(msgspec.DecodeError, UnicodeDecodeError):  # the YAML parser is slow, and reports the line of an error
        return [Document(name, 1, msgspec.json.decode(content.removeprefix(BOM_UTF8)))]
    found = list[Document]()
    number = 0
    try:
        for number, value in enumerate(kubernetes_yaml.documents(content.decode("utf-8-sig")), 1):
            if value is not None:
                found.append(Document(name, number, value))
    except UnicodeDecodeError as error:
        raise BadInput(f"{name}: invalid UTF-8 at byte {error.start + 1}; save the file in UTF-8") from None
    except kubernetes_yaml.InvalidYaml as error:
        location = f"{name}:{error.line}" if error.line else f"{name}: document {number + 1}"
        raise BadInput(f"{location}: {error}") from None
    return found


def display_name(path: Path) -> str:
    """Return the name of a file for messages."""
    return "standard input" if path == STANDARD_INPUT else printable(str(path))
