"""Each command has a section in the reference, and each option has a description."""

import re

import pytest

from tests.support import options_table
from tests.support.paths import DOCS
from webhook.cli import COMMANDS

SECTIONS = "\n".join(re.findall(r"^## .*", (DOCS / "reference/commands.md").read_text(), re.MULTILINE))


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
