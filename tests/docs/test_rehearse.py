"""Each failure of the guide happens on the playground as the page shows it, and its undo leads to the next one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.terminal import Terminal, playground
from tests.docs.transcripts import transcripts
from tests.support.paths import DOCS


@pytest.mark.controlplane
def test_each_failure_of_the_guide_shows_and_ends_as_the_page_says(tmp_path: Path) -> None:
    with playground(tmp_path / "variables"):
        terminal = Terminal(tmp_path / "variables", tmp_path)
        for step in transcripts(DOCS / "guides/rehearse.md"):
            terminal.check(step)
