"""The table of reasons in docs/guides/troubleshooting.md. Run as a program, this module writes it.

The meaning of a reason comes from how-it-decides.md, the remedy from the program's ADVICE: each has one source.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.generated_pages import Page
from tests.support.paths import DOCS
from webhook.placement.decision import Reason
from webhook.placement.wording import ADVICE

BEGIN, END = "<!-- reasons: generated from how-it-decides.md by `make docs` -->\n", "<!-- end of reasons -->\n"


def reason_rows() -> Iterator[tuple[str, str]]:
    """Yield each row of the table of reasons: the reason and its meaning, or "" and a heading."""
    _, _, rest = (DOCS / "explanation/how-it-decides.md").read_text().partition("\n| reason |")
    for row in rest.partition("\n\n")[0].splitlines()[2:]:
        reason, meaning, *_ = (cell.strip() for cell in row.strip("|").split(" | "))
        yield reason.strip("`"), meaning


def table() -> str:
    """Return the Markdown table: a row for each reason, with its meaning and its remedy."""
    rows = ["| reason | what it means | what to do |", "| --- | --- | --- |"]
    for reason, meaning in reason_rows():
        rows.append(f"| `{reason}` | {meaning} | {ADVICE[Reason(reason)]} |" if reason else f"| | {meaning} | |")
    return "\n".join(rows) + "\n"


PAGE = Page(DOCS / "guides/troubleshooting.md", BEGIN, END, table)

if __name__ == "__main__":
    PAGE.write()
