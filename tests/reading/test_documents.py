"""Tests of reading Kubernetes objects from files. Errors are one line and quote no file content."""

import os
from pathlib import Path
from typing import Any

import pytest

from webhook.placement.objects.fields import printable
from webhook.reading.documents import BadInput, Document, Kind, display_name, read, read_all

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"
SECRET = "correct-horse"


def write_file(folder: Path, content: str | bytes, name: str = "pod.yaml") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def error_message(path: Path) -> str:
    with pytest.raises(BadInput) as caught:
        [list(document.objects()) for document in read_all([path])]
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert SECRET not in sentence
    return sentence.replace(f"{path.parent}{os.sep}", "")


def kinds(content: Any) -> list[Kind]:
    return [kind for kind, _ in Document("file", 1, content).objects()]


def test_empty_documents_and_files_are_skipped_and_documents_numbered(tmp_path: Path) -> None:
    found = read(write_file(tmp_path, f"---\n{POD}---\n---\n# nothing\n---\n{POD}"))
    assert [(document.number, document.content["kind"]) for document in found] == [(1, "Pod"), (4, "Pod")]
    for name, content in ("a.yaml", ""), ("a.yaml", "# no\n---\n"), ("a.json", " \n"):
        assert read(write_file(tmp_path, content, name)) == []


@pytest.mark.parametrize("name", ["pod.json", "pod.yaml", "pod"])
def test_json_is_read_from_a_file_of_any_name_with_and_without_a_byte_order_mark(tmp_path: Path, name: str) -> None:
    assert read(write_file(tmp_path, b"\xef\xbb\xbf{}", name))[0].content == {}
    (found,) = read(write_file(tmp_path, '\n\t{"kind": "Pod", "time": "2026-11-21T11:01:53Z", "n": 1.0}', name))
    assert found.content == {"kind": "Pod", "time": "2026-11-21T11:01:53Z", "n": 1.0}


def test_a_folder_is_read_in_name_order_without_hidden_and_other_files(tmp_path: Path) -> None:
    for name in ("c.json", "a.yaml", "b.yml", ".hidden.yaml", "README.md"):
        write_file(tmp_path, '{"kind": "Pod"}', name)
    assert [Path(document.file).name for document in read_all([tmp_path])] == ["a.yaml", "b.yml", "c.json"]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.yaml", f"{POD}---\na: [{SECRET}\n", "6: invalid YAML: did not find expected ',' or ']'"),
        ("a.yaml", f"a: {SECRET}\x07", " document 1: invalid YAML: control characters are not allowed"),
        ("a.yaml", f"1: {SECRET}", "1: mapping key is not a string: put it in quotes"),
        ("a.json", f'{{\n"a": "{SECRET}"', "3: invalid YAML: did not find expected ',' or '}'"),
        ("a.json", "9" * 5000, " document 1: not a Kubernetes object: expected a mapping"),
        ("a.yaml", b"a: \xff\xfe", " invalid UTF-8 at byte 4; save the file in UTF-8"),
        ("a.yaml", SECRET, " document 1: not a Kubernetes object: expected a mapping"),
        ("a.json", "[{}]", " document 1: not a Kubernetes object: expected a mapping"),
        ("a.yaml", f"a: {SECRET}", " document 1: not a Kubernetes object: apiVersion and kind are required"),
        ("a.yaml", "kind: Pod", " document 1: not a Kubernetes object: apiVersion and kind are required"),
        ("a.yaml", "{kind: [], apiVersion: v1}", " document 1: not a Kubernetes object: apiVersion"),
        ("a.yaml", f"kind: List\napiVersion: v1\nitems: {SECRET}", " document 1: items: expected a list"),
        (
            "a.yaml",
            f"kind: List\napiVersion: v1\nitems:\n- kind: List\n  apiVersion: v1\n  items: [{SECRET}]",
            " document 1: items[0].items[0]: not a Kubernetes object: expected a mapping",
        ),
    ],
)
def test_a_bad_file_raises_a_one_line_error(tmp_path: Path, name: str, content: str | bytes, sentence: str) -> None:
    assert error_message(write_file(tmp_path, content, name)).startswith(f"{name}:{sentence}")


def test_a_path_without_manifests_raises_an_error(tmp_path: Path) -> None:
    advice = "specify a file, or - for standard input"
    assert error_message(tmp_path / "missing.yaml") == f"missing.yaml: No such file or directory; {advice}"
    (tmp_path / "folder").mkdir()
    assert error_message(tmp_path / "folder") == "folder: no file in this folder ends in .yaml, .yml, .json"


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read every file")
def test_a_file_or_folder_without_read_permission_raises_an_error(tmp_path: Path) -> None:
    path = write_file(tmp_path, POD)
    path.chmod(0)
    assert "Permission denied" in error_message(path)
    tmp_path.chmod(0)
    assert "Permission denied" in error_message(tmp_path)
    tmp_path.chmod(0o700)


def test_control_characters_in_a_file_name_are_replaced() -> None:
    assert display_name(Path("a\nb\x1b[31m")) == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}[31m"
    assert printable("größe → ✓") == "größe → ✓"


def test_nested_lists_are_unpacked_and_items_of_a_typed_list_inherit_its_kind() -> None:
    pods = {"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {}}, {"apiVersion": "x/v1", "kind": "Own"}]}
    managers = {"apiVersion": "longhorn.io/v1beta2", "kind": "ShareManagerList", "items": [{}]}
    allowed = {"apiVersion": "x/v1", "kind": "AllowList", "spec": {}}
    content = {"apiVersion": "v1", "kind": "List", "items": [pods, managers, allowed, {**pods, "items": []}]}
    assert kinds(content) == [
        ("v1", "Pod"),
        ("x/v1", "Own"),
        ("longhorn.io/v1beta2", "ShareManager"),
        ("x/v1", "AllowList"),
    ]
    assert kinds({"apiVersion": "v1", "kind": "List", "items": None}) == []
    assert kinds({"apiVersion": "v1", "kind": "List"}) == []
