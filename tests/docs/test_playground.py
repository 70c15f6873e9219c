"""The commands of each page for the playground run verbatim, from the first to the last, and print what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.terminal import Terminal, playground
from tests.docs.transcripts import Transcript, transcripts
from tests.support.paths import DOCS

# The commands at the start of each page that come before those on the playground. `make demo` runs in test_commands.py.
PAGES = {
    "tutorial.md": ["make demo", "make playground", ". .cache/playground"],
    "guides/existing-cluster.md": ["make venv && . .venv/bin/activate"],
    "guides/rehearse.md": [],
}


@pytest.mark.controlplane
@pytest.mark.parametrize("page", PAGES)
def test_each_command_of_a_page_prints_what_the_page_shows(tmp_path: Path, page: str) -> None:
    variables, setup = tmp_path / "variables", PAGES[page]
    steps = transcripts(DOCS / page)
    assert [each.command for each in steps[: len(setup)]] == setup
    with playground(variables) as printed:
        assert f"    . {variables}\n" in printed
        terminal = Terminal(variables, tmp_path)
        for command, output in steps[len(setup) :]:
            faster = command.replace("--settle 60", "--settle 1").replace("--settle 5", "--settle 1")
            terminal.check(Transcript(faster, output))
    assert not variables.exists()
