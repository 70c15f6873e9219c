"""The table of reasons in docs/troubleshooting.md; run as a program, this writes it.

What a reason means is said in docs/how-it-decides.md, and what to do about it by the program: nothing is said twice.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.generated_pages import Page
from tests.support.paths import DOCS
from webhook.placement.decision import Reason
from webhook.placement.wording import ADVICE

BEGIN, END = "<!-- reasons: generated from how-it-decides.md by `make docs` -->\n", "<!-- end of reasons -->\n"


def explained() -> Iterator[tuple[str, str]]:
    """Each row of the table of reasons: the reason and when it is given, or nothing and a heading."""
    _, _, rest = (DOCS / "how-it-decides.md").read_text().partition("\n| reason |")
    for row in rest.partition("\n\n")[0].splitlines()[2:]:
        reason, when, *_ = (cell.strip() for cell in row.strip("|").split(" | "))
        yield reason.strip("`"), when


def table() -> str:
    """A row for each reason: what it means and what to do."""
    rows = ["| reason | what it means | what to do |", "| --- | --- | --- |"]
    for reason, when in explained():
        rows.append(f"| `{reason}` | {when} | {ADVICE[Reason(reason)]} |" if reason else f"| | {when} | |")
    return "\n".join(rows) + "\n"


PAGE = Page(DOCS / "troubleshooting.md", BEGIN, END, table)

if __name__ == "__main__":
    PAGE.write()
