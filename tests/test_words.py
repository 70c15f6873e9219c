"""No text uses an idiom of tests/words.txt."""

import pytest

from tests.support.paths import ROOT
from tests.support.words import GUIDANCE, Finding, find, listed_words, text_files

PLANTED = {
    "a word in a docstring": ('"""Close the connection of whoever is slow."""', "whoever", 1),
    "a word in capitals": ("Whoever calls the webhook", "whoever", 1),
    "a phrase across two lines of a comment": ("# the VM\n# goes on\n# as it was", "goes on as", 2),
    "a phrase in two parts of a string": ("('the body is '\n f'no JSON: {error}')", "is no JSON", 1),
    "a phrase in a list of a page": ("- a VM and its share-manager come\n  together", "come together", 1),
    "a phrase in the name of a test": ("def test_a_full_node_has_room_again(): ...", "has room", 1),
    "a phrase in the name of a file": ("0013-whoever-is-trusted-stays-so.md", "stays so", 1),
}
PLAIN = (
    "An unjudged review. Everyone has roommates.",  # the words are parts of other words
    "A pod may come. Together they start.",  # a sentence ends in between
    f"{GUIDANCE}\n| --- | --- |\n| whoever | the client |",
)


def test_no_text_uses_a_word_of_the_list() -> None:
    words = listed_words()
    findings = [
        f"{path.relative_to(ROOT)}:{found.line}: write {found.better!r} instead of {found.words!r}"
        for path in text_files()
        if path.name != "test_words.py"
        for found in (*find(path.read_text(), words), *find(str(path.relative_to(ROOT)), words))
    ]
    assert not findings, "\n".join(findings)


@pytest.mark.parametrize(("text", "words", "line"), PLANTED.values(), ids=PLANTED)
def test_a_planted_word_is_found(text: str, words: str, line: int) -> None:
    listed = listed_words()
    assert Finding(line, words, listed[words]) in list(find(text, listed))


@pytest.mark.parametrize("text", PLAIN)
def test_a_plain_text_is_accepted(text: str) -> None:
    assert list(find(text, listed_words())) == []


def test_the_list_contains_each_row_of_the_table_for_contributors() -> None:
    _, _, table = ROOT.joinpath("docs/development/contributing.md").read_text().partition(f"{GUIDANCE}\n")
    rows = table.partition("\n\n")[0].splitlines()[1:]
    assert len(rows) >= 30
    assert {phrase for row in rows for phrase in row.strip("| ").split(" | ")[0].split(", ")} <= set(listed_words())
