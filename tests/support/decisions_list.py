"""The list of records in docs/decisions/README.md. Run as a program, this module writes it."""

from __future__ import annotations

from tests.support.generated_pages import Page
from tests.support.paths import DOCS

BEGIN, END = "<!-- records: generated from their titles by `make docs` -->\n", "<!-- end of records -->\n"


def titles() -> str:
    """Return the Markdown list: a link to each record, with its title."""
    lines = []
    for file in sorted((DOCS / "decisions").glob("0*.md")):
        number, _, title = file.read_text().partition("\n")[0].removeprefix("# ").partition(". ")
        lines.append(f"- [{number}. {title}]({file.name})")  # Markdown would number a list without the gaps
    return "\n".join(lines) + "\n"


PAGE = Page(DOCS / "decisions/README.md", BEGIN, END, titles)

if __name__ == "__main__":
    PAGE.write()
