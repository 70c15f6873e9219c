"""The comparison of shown with printed output finds each difference."""

from pathlib import Path

import pytest

from tests.docs.transcripts import Transcript, missing_part, transcripts


@pytest.mark.parametrize("shown", ["a\nb\nc\n", "a\n[...]\nc\n", "[...]c\n", "a\n[...]\n", "[...]\n"])
def test_omitted_output_stands_for_any_text(shown: str) -> None:
    assert missing_part("a\nb\nc\n", shown) == ""


@pytest.mark.parametrize("shown", ["", "a\nb\n", "b\nc\n", "a\n[...]\nd\n", "c\n[...]\na\n", "a\n[...]\nb\n"])
def test_other_missing_or_more_output_is_a_difference(shown: str) -> None:
    assert missing_part("a\nb\nc\n", shown) != ""


def test_a_command_has_its_continuation_lines(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ a \\\n    b\n1\n2\n$ c\n```\ntext\n```console\n$ d\n```\n")
    assert transcripts(page) == [Transcript("a \\\n    b", "1\n2\n"), Transcript("c", ""), Transcript("d", "")]
