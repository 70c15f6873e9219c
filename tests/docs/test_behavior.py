"""Each sentence of the users' docs about a behavior of ours has a test that proves it, in tests/docs/behavior.txt.

A sentence counts if its subject is the webhook, its guard, its chart, a replica, a share-manager or one of the
commands. Other laws hold the numbers, defaults, names, settings, reasons and rights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.test_advice import paragraphs
from tests.support.command_line import all_commands
from tests.support.helm_chart import container, find_one, render
from tests.support.paths import DOCS, ROOT

INTERNAL = {"decisions", "development"}
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in DOCS.rglob("*.md") if not INTERNAL & {*page.relative_to(DOCS).parts}),
]
TABLE = ROOT / "tests/docs/behavior.txt"
MOST_WORDS = 20_500
COMMANDS = "|".join(sorted({path[0] for path, _ in all_commands()}, key=len, reverse=True))
SUBJECT = (
    rf"(?:the (?:webhook|guard|node guard|chart|command|share-manager)s?|its share-manager|share-managers"
    rf"|(?:a|each|the|two|one|every|all) replicas?|replicas|(?:the )?`(?:kubevirt-scheduler )?(?:{COMMANDS})[^`]*`)"
)
# A sentence begins with its subject, or a condition precedes it. A verb follows.
ABOUT_US = re.compile(rf"(?:^|, |\) ){SUBJECT} [a-z']+", re.IGNORECASE)
SENTENCE = re.compile(r"(?<=[.:;])\s+(?=[A-Z`*(])")
MARKS = re.compile(r"^(?:- |\d\. |\*\*[^*]*\*\*:? ?|\*[^*]*\*: |\(|`[\w.=\[\]-]+`: )*")


class Row(NamedTuple):
    """A sentence of a page, by its beginning, and the test that proves it."""

    page: str
    beginning: str
    proof: str


@cache
def rows() -> tuple[Row, ...]:
    lines = (line for line in TABLE.read_text().splitlines() if line and not line.startswith("#"))
    return tuple(Row(*line.split(" | ")) for line in lines)


def sentences(page: Path) -> Iterator[str]:
    """Yield each sentence of a page that states a behavior of ours. Tables have laws of their own."""
    for paragraph in paragraphs(page):
        for sentence in SENTENCE.split(paragraph) if not paragraph.startswith("|") else ():
            if ABOUT_US.search(plain := MARKS.sub("", sentence)):
                yield plain


@cache
def stated() -> tuple[tuple[str, str], ...]:
    return tuple((str(page.relative_to(ROOT)), sentence) for page in PAGES for sentence in sentences(page))


def test_each_sentence_about_a_behavior_has_a_row() -> None:
    known = [(row.page, row.beginning) for row in rows()]
    missing = [
        f"{page} | {sentence[:80]}"
        for page, sentence in stated()
        if not any(page == name and sentence.startswith(beginning) for name, beginning in known)
    ]
    assert missing == []


def test_each_row_is_a_sentence_of_its_page() -> None:
    gone = [
        row for row in rows() if not any(page == row.page and text.startswith(row.beginning) for page, text in stated())
    ]
    assert gone == []


@pytest.mark.parametrize("proof", sorted({row.proof for row in rows()}))
def test_each_proof_exists(proof: str) -> None:
    file, _, name = proof.partition("::")
    assert f"def {name}(" in ROOT.joinpath(file).read_text()


def test_the_docs_of_users_are_short() -> None:
    pages = [*PAGES, *ROOT.glob("charts/*/README.md")]
    assert sum(len(page.read_text().split()) for page in pages) <= MOST_WORDS


@pytest.mark.controlplane  # Helm is built together with the control plane
def test_the_chart_limits_memory_and_not_cpu() -> None:
    assert container(find_one(render({}), "Deployment"))["resources"]["limits"].keys() == {"memory"}
