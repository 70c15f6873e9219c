"""The guide to an existing cluster works from its first to its last command, with example VMs on the playground."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.terminal import Terminal, playground
from tests.docs.transcripts import Transcript, transcripts
from tests.support.paths import DOCS

SETUP = "make venv && . .venv/bin/activate"


@pytest.mark.controlplane
def test_each_step_of_the_guide_prints_what_the_page_shows(tmp_path: Path) -> None:
    first, *steps = transcripts(DOCS / "guides/existing-cluster.md")
    assert first == Transcript(SETUP, "")
    with playground(tmp_path / "variables"):
        terminal = Terminal(tmp_path / "variables", tmp_path)
        for command, output in steps:
            terminal.check(Transcript(command.replace("--settle 60", "--settle 2"), output))
