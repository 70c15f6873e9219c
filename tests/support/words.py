"""Find the words of tests/words.txt in all texts of the project: docs, chart, code, comments and names."""

import re
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from tests.support.paths import ROOT

WORDS = ROOT / "tests" / "words.txt"
FOLDERS = (".ci", ".github", "benchmarks", "certs", "charts", "docs", "examples", "tests", "webhook")
FILES = ("*.md", "*.cfg", "*.toml", "Dockerfile", "Makefile")
NOT_TEXT = {".go", ".mod", ".png", ".pyc", ".sum", ".tgz"}  # a hash of the Go sources names their cached build
GUIDANCE = "| not | but |"  # the header of the table in docs/development/contributing.md, which quotes the words

# A word, or punctuation that ends a phrase. An underscore or a comment's mark ends a word, but not a phrase.
TOKEN = re.compile(r"[a-z0-9]+(?:'[a-z0-9]+)*|[.,;:!?()|]", re.IGNORECASE)
STRING_PREFIX = re.compile(r"\b[fr]+(?=[\"'])")  # in a string that continues on the next line


@dataclass(frozen=True, slots=True)
class Finding:
    """A listed word in a text. `better` is its replacement."""

    line: int
    words: str
    better: str


def listed_words() -> dict[str, str]:
    """Return the replacement of each listed word or phrase."""
    lines = (line for line in WORDS.read_text().splitlines() if line and not line.startswith("#"))
    return dict(line.split(" | ", 1) for line in lines)


def text_files() -> Iterator[Path]:
    """Yield the files that people read or write. The list itself and recorded reviews are not among them."""
    folders = chain.from_iterable(ROOT.joinpath(folder).rglob("*") for folder in FOLDERS)
    for path in (*chain.from_iterable(map(ROOT.glob, FILES)), *folders):
        if path.is_file() and path.suffix not in NOT_TEXT and path != WORDS and ROOT / "tests/data" not in path.parents:
            yield path


def find(text: str, words: dict[str, str]) -> Iterator[Finding]:
    """Yield each listed word or phrase in a text. A phrase may continue on the next line."""
    tokens, starts, lines, length = [], [], [], 1
    for number, line in enumerate(_without_guidance(text), 1):
        for token in TOKEN.findall(STRING_PREFIX.sub("", line)):
            tokens.append(token.lower())
            starts.append(length)
            lines.append(number)
            length += len(token) + 1
    joined = f" {' '.join(tokens)} "
    for phrase, better in words.items():
        for match in re.finditer(f"(?= {re.escape(phrase.lower())} )", joined) if phrase.lower() in joined else ():
            yield Finding(lines[bisect(starts, match.start() + 1) - 1], phrase, better)


def _without_guidance(text: str) -> Iterator[str]:
    in_table = False
    for line in text.splitlines():
        in_table = line == GUIDANCE or (in_table and line.startswith("|"))
        yield "" if in_table else line
