"""The tutorial's commands run verbatim and print what the page shows, on the playground that its first step starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.terminal import Terminal, playground
from tests.docs.transcripts import Transcript, transcripts
from tests.support.paths import DOCS

PAGE = DOCS / "tutorial.md"
SETUP = ["make demo", "make playground", ". .cache/playground"]  # the first one runs in test_commands.py


def steps() -> list[Transcript]:
    """Return the commands after those that start the cluster."""
    found = transcripts(PAGE)
    assert [each.command for each in found[: len(SETUP)]] == SETUP
    return found[len(SETUP) :]


@pytest.mark.controlplane
def test_each_step_of_the_tutorial_prints_what_the_page_shows(tmp_path: Path) -> None:
    variables = tmp_path / "variables"
    with playground(variables) as printed:
        assert f"    . {variables}\n" in printed
        terminal = Terminal(variables, tmp_path)
        for step in steps():
            terminal.check(step)
    assert not variables.exists()
