"""The comparison of shown with printed output finds each difference."""

from pathlib import Path

from tests.docs.transcripts import Transcript, missing_part, transcripts


def test_omitted_output_stands_for_any_text_and_everything_else_is_compared() -> None:
    same = ["a\nb\nc\n", "a\n[...]\nc\n", "[...]c\n", "a\n[...]\n", "[...]\n"]
    different = ["", "a\nb\n", "b\nc\n", "a\n[...]\nd\n", "c\n[...]\na\n", "a\n[...]\nb\n"]
    assert [shown for shown in same + different if not missing_part("a\nb\nc\n", shown)] == same


def test_a_command_has_its_continuation_lines(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ a \\\n    b\n1\n2\n$ c\n```\ntext\n```console\n$ d\n```\n")
    assert transcripts(page) == [Transcript("a \\\n    b", "1\n2\n"), Transcript("c", ""), Transcript("d", "")]
