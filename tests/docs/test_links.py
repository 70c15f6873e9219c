"""Links in Markdown files: their files and anchors exist, other sites have https, and the index leads to every page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support import decisions_list
from tests.support.paths import DOCS, EXAMPLES, ROOT

PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("**/*.md"), *EXAMPLES.glob("**/*.md"), *ROOT.glob("charts/*/*.md")])
INDEX = DOCS / "README.md"
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
TARGETS = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")
LINK_IN_HEADING = re.compile(r"\[([^\]]*)\]\([^)]*\)")
IDS = re.compile(r"<a (?:id|name)=\"([^\"]+)\"")


@cache
def prose(page: Path) -> str:
    """The text of a page without its code blocks."""
    return FENCE.sub("", page.read_text())


@cache
def links(page: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    return [match[1] or match[2] for match in TARGETS.finditer(text)]


def slugs(text: str) -> Iterator[str]:
    """Yield the anchor of each heading, as GitHub makes it."""
    seen: Counter[str] = Counter()
    for heading in re.findall(r"^#{1,6} +(.+?)(?: +#+)? *$", text, re.MULTILINE):
        plain = LINK_IN_HEADING.sub(r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        yield f"{slug}-{seen[slug]}" if seen[slug] else slug
        seen[slug] += 1


@cache
def anchors(page: Path) -> set[str]:
    return {*slugs(prose(page)), *IDS.findall(prose(page))}


def relative_links(page: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield each link inside the repository: as it is written, its file and its anchor."""
    for link in links(page):
        if not re.match(r"[a-z][a-z+.-]*:", link):
            path, _, anchor = link.partition("#")
            yield link, (page.parent / path).resolve() if path else page, anchor


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_each_link_leads_to_a_file_and_an_anchor_or_to_another_site_over_https() -> None:
    broken = [
        (name(page), link)
        for page in PAGES
        for link, file, anchor in relative_links(page)
        if not file.exists() or (anchor and anchor not in anchors(file))
    ]
    others = [(name(page), link) for page in PAGES for link in links(page) if re.match(r"[a-z][a-z+.-]*:", link)]
    assert broken + [each for each in others if not each[1].startswith("https://")] == []


def test_the_index_leads_to_every_page() -> None:
    reached, waiting = {INDEX}, [INDEX]
    while waiting:
        files = {file for _, file, _ in relative_links(waiting.pop()) if file in PAGES and file.is_relative_to(DOCS)}
        waiting += files - reached
        reached |= files
    assert [name(page) for page in DOCS.glob("**/*.md") if page not in reached] == []


def test_the_index_lists_each_tutorial_guide_reference_and_explanation_itself() -> None:
    listed = {file for _, file, _ in relative_links(INDEX)}
    folders = ("decisions", "development", "runbooks")  # each has an index of its own
    pages = [page for page in DOCS.glob("**/*.md") if page.parent.name not in folders]
    assert [name(page) for page in pages if page not in listed | {INDEX}] == []
    assert {DOCS / "development/README.md", DOCS / "runbooks/README.md"} <= listed


def test_the_list_of_decision_records_is_up_to_date() -> None:
    """`make docs` updates it."""
    assert decisions_list.PAGE.file.read_text() == decisions_list.PAGE.render()


def test_each_decision_has_a_record_or_a_row_among_the_replaced_ones() -> None:
    page = decisions_list.PAGE.file.read_text()
    numbers = [int(found) for found in re.findall(r"^(?:- \[|\| )(\d+)(?:\. | \|)", page, re.MULTILINE)]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    replacements = {int(found) for found in re.findall(r"^\| \d+ \|.*\| (\d+) \|$", page, re.MULTILINE)}
    assert replacements <= set(numbers)


def questions() -> Iterator[tuple[Path, str]]:
    """Yield the page and the anchor that answer each question."""
    for line in (ROOT / "tests/docs/questions.txt").read_text().splitlines()[1:]:
        path, _, anchor = line.partition(" | ")[0].partition("#")
        yield ROOT / path, anchor


def test_two_clicks_from_the_readme_lead_to_the_answer_of_each_question() -> None:
    readme = ROOT / "README.md"
    first = {file for _, file, _ in relative_links(readme)}
    near = {readme} | first | {file for page in first if page in PAGES for _, file, _ in relative_links(page)}
    asked = list(questions())
    assert len(asked) == 37
    assert [(name(page), anchor) for page, anchor in asked if page not in near or anchor not in anchors(page)] == []
