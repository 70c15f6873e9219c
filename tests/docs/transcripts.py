"""The console blocks of a documentation page: each command, and the output that the page shows for it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

OMITTED = "[...]"


class Transcript(NamedTuple):
    """A command with its continuation lines, and the shown output, which may be empty."""

    command: str
    output: str


def blocks(page: Path, language: str, *sections: str) -> list[str]:
    """Return the content of each code block of a language: of all sections, or of those with these titles."""
    parts = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)
    wanted = [part for part in parts if not sections or part.partition("\n")[0] in sections]
    return [
        block for part in wanted for block in re.findall(rf"^```{language}\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)
    ]


def commands(page: Path, *sections: str) -> list[str]:
    """Return the commands of a page, or of these sections."""
    return [each.command for each in transcripts(page, *sections)]


def transcripts(page: Path, *sections: str) -> list[Transcript]:
    """Return the commands of the page's console blocks, in order."""
    found = []
    for block in blocks(page, "console", *sections):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = re.match(r"(?:.*\\\n)*.*\n", part)
            command = lines[0] if lines else part
            found.append(Transcript(command.rstrip("\n"), part.removeprefix(command)))
    return found


def strip_lines(text: str) -> str:
    """Remove the blanks at the ends of lines."""
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def missing_part(printed: str, shown: str) -> str:
    """Return the first difference: a part that wasn't printed in this order, or more output. Empty if there is none.

    `[...]` in the shown output stands for any text.
    """
    first, *others = shown.split(OMITTED)
    if not printed.startswith(first):
        return first
    position = len(first)
    for part in others:
        found = printed.find(part, position)
        if found < 0:
            return part
        position = found + len(part)
    is_complete = printed[position:].strip() == "" or shown.rstrip().endswith(OMITTED)
    return "" if is_complete else f"{printed[position:]!r} at the end"
