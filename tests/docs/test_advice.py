"""tests/advice.txt has a row for each advice in the code and on the pages about findings, and no other.

An advice is a clause that begins with an imperative. Its row names the proof: tests/e2e/test_advice.py follows it, or
another test does, or a person has to look.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.e2e.test_advice import SITUATIONS
from tests.support.advice_table import LOOK, SITUATION, rows
from tests.support.paths import DOCS, ROOT

IMPERATIVES = frozenset(
    """
    add admit annotate apply bind change check correct create delete describe detach find follow free give
    grant install keep let list live-migrate look make migrate move name opt press put raise read remove renew
    repair repeat report restart restore rotate run see set show start stop synchronize uncordon
    uninstall upgrade use wait widen
    """.split()
)
CODE = [
    *(ROOT / "webhook" / name / "wording.py" for name in ("fleet", "placement")),
    *(ROOT / "webhook" / name for name in ("commands/opt_in.py", "commands/drain_check.py", "fleet/drain.py")),
    *(
        path
        for folder in ("commands/doctor", "commands/recolocate", "fleet/relocation", "fleet/simulation")
        for path in sorted(ROOT.joinpath("webhook", folder).glob("*.py"))
    ),
]
PAGES = [
    DOCS / name
    for name in ("reference/reasons.md", "reference/doctor.md", "guides/troubleshooting.md", "runbooks/README.md")
]
# What may precede an imperative.
LEADS = re.compile(r"^(?:\W|otherwise |or |and |then )+", re.IGNORECASE)
CLAUSE = re.compile(r"(?<=[.:;,)])\s+|(?<=\()")


def strings(path: Path) -> Iterator[str]:
    """Yield each string of a module but docstrings and the help of options, with {} for its values."""
    tree = ast.parse(path.read_text())
    skipped = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and isinstance(node.body[0], ast.Expr):
            skipped.add(id(node.body[0].value))
        if isinstance(node, ast.keyword) and node.arg in {"help", "short_help"}:
            skipped.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            skipped.update(map(id, node.values))
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def paragraphs(page: Path) -> Iterator[str]:
    """Yield each paragraph and item of a page, without its blocks and the marks of links."""
    text = re.sub(r"```.*?```", "\n", page.read_text(), flags=re.DOTALL)
    for paragraph in re.split(r"\n\s*\n|\n(?=- |\d\. |\|)", text):
        if not paragraph.lstrip().startswith("#"):
            yield re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))


def advice_in(text: str) -> Iterator[str]:
    """Yield each clause that begins with an imperative, up to the end of the text."""
    begins = [0, *(found.end() for found in CLAUSE.finditer(text))]
    for begin in begins if " " in text else ():
        clause = LEADS.sub("", text[begin:])
        if re.match(r"[\w-]*", clause)[0].lower() in IMPERATIVES:  # type: ignore[index]
            yield clause


@cache
def given() -> tuple[tuple[str, str], ...]:
    """Return each advice that the product gives, with its file."""
    texts = [(path.name, text) for path in CODE for text in strings(path)]
    texts += [(page.name, text) for page in PAGES for text in paragraphs(page)]
    return tuple((name, clause) for name, text in texts for clause in advice_in(text))


def is_of(clause: str, advice: str) -> bool:
    return clause.lower().startswith(advice.lower())


def test_each_advice_has_a_row() -> None:
    missing = [
        f"{name}: {clause[:90]}" for name, clause in given() if not any(is_of(clause, row.advice) for row in rows())
    ]
    assert missing == []


def test_each_row_is_an_advice_that_is_given() -> None:
    assert [row.advice for row in rows() if not any(is_of(clause, row.advice) for _, clause in given())] == []
    assert len({row.advice.lower() for row in rows()}) == len(rows())


@pytest.mark.parametrize("proof", sorted({row.proof for row in rows() if not row.proof.startswith(LOOK)}))
def test_each_proof_exists(proof: str) -> None:
    if proof.startswith(SITUATION):
        assert proof.removeprefix(SITUATION) in SITUATIONS
    else:
        file, _, name = proof.partition("::")
        assert f"def {name}(" in ROOT.joinpath(file).read_text()


def test_each_situation_has_a_row() -> None:
    assert {f"{SITUATION}{name}" for name in SITUATIONS} - {row.proof for row in rows()} == set()


def test_no_advice_creates_a_claim() -> None:
    assert not any("create the claim" in clause.lower() for _, clause in given())
