"""The reference of the commands: a section for each command, a description of each option, and the keys of the JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support import options_table
from tests.support.paths import DOCS, EXAMPLES
from webhook.cli import COMMANDS, commands

PAGE = DOCS / "reference/commands.md"
SECTIONS = "\n".join(re.findall(r"^## .*", PAGE.read_text(), re.MULTILINE))


def key_paths(value: Any, path: str = "") -> Iterator[str]:
    """Yield the path of each key, such as `decision.claims[].claim`. A patch and warnings are values."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from key_paths(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and path not in {"patch", "warnings"}:
        for item in value:
            yield from key_paths(item, f"{path}[]")
    else:
        yield path


def documented_keys(cell: str) -> Iterator[str]:
    """Yield the paths in a cell. One that begins with a dot has the parent of the one before."""
    last = ""
    for word in re.findall("`([^`]+)`", cell):
        last = f"{last.rpartition('.')[0]}{word}" if word.startswith(".") else word
        yield last


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_a_section_in_the_reference(name: str) -> None:
    assert re.search(rf"\b{name}\b", SECTIONS)


def test_each_option_has_a_description() -> None:
    found = [(context.command_path, option) for command, context in options_table.every_command()
             for option in options_table.options(command)]  # fmt: skip
    assert found
    assert [(path, option.name) for path, option in found if not option.help] == []


def test_the_page_of_options_is_up_to_date() -> None:
    """`make docs` updates it."""
    assert options_table.PAGE.file.read_text() == options_table.PAGE.render()


def test_each_json_key_of_inject_is_documented_and_no_other() -> None:
    pod, cluster = EXAMPLES / "reviews/vm-start.json", EXAMPLES / "cluster.yaml"
    result = CliRunner().invoke(commands, ["inject", "-f", str(pod), "--snapshot", str(cluster), "-o", "json"])
    section = PAGE.read_text().partition("Each item of `-o json` has these keys:\n")[2].partition("\n## ")[0]
    table = re.findall(r"^\| (`.*?) \| ", section, re.MULTILINE)
    documented = [key for cell in table for key in documented_keys(cell)]
    assert set(documented) == set(key_paths(json.loads(result.stdout)[0]))
