"""No text of the project uses an idiom of tests/words.txt: docs, chart, code, comments and names."""

import re
from bisect import bisect
from collections.abc import Iterator
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


def find(text: str, words: dict[str, str]) -> Iterator[tuple[int, str]]:
    """Yield the line and the words of each listed word or phrase in a text. A phrase may continue on the next line."""
    tokens, starts, lines, length = [], [], [], 1
    for number, line in enumerate(_without_guidance(text), 1):
        for token in TOKEN.findall(STRING_PREFIX.sub("", line)):
            tokens.append(token.lower())
            starts.append(length)
            lines.append(number)
            length += len(token) + 1
    joined = f" {' '.join(tokens)} "
    for phrase in words:
        for match in re.finditer(f"(?= {re.escape(phrase.lower())} )", joined) if phrase.lower() in joined else ():
            yield lines[bisect(starts, match.start() + 1) - 1], phrase


SPACE = r"[\s#*]+"  # a comment may continue on the next line
PRONOUN = rf"(?:that|those){SPACE}of\b"
# A reader has to look for the noun: "`selector` is that of a restart, and `current` that of the pod".
POSSESSIVE = re.compile(
    rf"\b(?:is|are|was|were){SPACE}\[?{PRONOUN}|\b{PRONOUN}[^.|;()]{{0,90}}?\b{PRONOUN}", re.IGNORECASE
)


def find_possessives(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the words of each pronoun with a possessive that defines something, or follows another one."""
    prose = "\n".join(_without_guidance(text))
    return (
        (prose.count("\n", 0, found.start()) + 1, " ".join(found[0].split())) for found in POSSESSIVE.finditer(prose)
    )


def _without_guidance(text: str) -> Iterator[str]:
    in_table = False
    for line in text.splitlines():
        in_table = line == GUIDANCE or (in_table and line.startswith("|"))
        yield "" if in_table else line


PLANTED = {
    "a word in a docstring": ('"""Close the connection of whoever is slow."""', "whoever", 1),
    "a word in capitals": ("Whoever calls the webhook", "whoever", 1),
    "a phrase across two lines of a comment": ("# the VM\n# goes on\n# as it was", "goes on as", 2),
    "a phrase in two parts of a string": ("('the body is '\n f'no JSON: {error}')", "is no JSON", 1),
    "a phrase in a list of a page": ("- a VM and its share-manager come\n  together", "come together", 1),
    "a phrase in the name of a test": ("def test_a_full_node_has_room_again(): ...", "has room", 1),
    "a phrase in the name of a file": ("0013-whoever-is-trusted-stays-so.md", "stays so", 1),
}


PLAIN = "An unjudged review. Everyone has roommates. A pod may come. Together they start."


def test_no_text_uses_a_word_of_the_list() -> None:
    words = listed_words()
    findings = [
        f"{path.relative_to(ROOT)}:{line}: write {words[found]!r} instead of {found!r}"
        for path in text_files()
        if path.name != "test_words.py"
        for line, found in (*find(path.read_text(), words), *find(str(path.relative_to(ROOT)), words))
    ]
    assert not findings, "\n".join(findings)


def test_no_prose_defines_something_by_a_pronoun_with_a_possessive() -> None:
    findings = [
        f"{path.relative_to(ROOT)}:{line}: name the noun instead of {found!r}"
        for path in text_files()
        if path.name != "test_words.py"
        for line, found in find_possessives(path.read_text())
    ]
    assert not findings, "\n".join(findings)
    planted = "# The pod is\n# that of a VM. `a` are [those of b](c). Take that of a, else\n# that of b."
    assert [line for line, _ in find_possessives(planted)] == [1, 2, 2]
    assert list(find_possessives("The pods besides those of VMs. That of a VM is first; that of a pod is last.")) == []


def test_each_planted_word_is_found_and_no_part_of_another_word_or_sentence() -> None:
    words = listed_words()
    assert [name for name, (text, *found) in PLANTED.items() if (found[1], found[0]) not in find(text, words)] == []
    assert list(find(PLAIN, words)) == []


def test_the_list_contains_each_row_of_the_table_for_contributors() -> None:
    _, _, table = ROOT.joinpath("docs/development/contributing.md").read_text().partition(f"{GUIDANCE}\n")
    rows = table.partition("\n\n")[0].splitlines()[1:]
    assert len(rows) >= 30
    assert {phrase for row in rows for phrase in row.strip("| ").split(" | ")[0].split(", ")} <= set(listed_words())
