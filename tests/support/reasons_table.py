"""The table in docs/reference/reasons.md. Run as a program, this module writes its last column.

The columns before it are written by hand. The last one comes from the program's ADVICE, so that the page and the
program give the same advice.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tests.support.paths import DOCS
from webhook.placement.reasons import Reason
from webhook.placement.wording import ADVICE

PAGE = DOCS / "reference/reasons.md"
NOTHING = "No action needed"
HEADING = "| reason | when | outcome | what to do |"


def render() -> str:
    """Return the page with the current advice."""
    head, heading, rest = PAGE.read_text().partition(f"{HEADING}\n")
    rule, *rows = rest.splitlines()
    return head + heading + "\n".join([rule, *map(with_advice, rows)]) + "\n"


def with_advice(row: str) -> str:
    """Return a row with the current advice for its reason. A row without a reason is a heading."""
    reason, when, outcome, *_ = cells(row)
    if not reason:
        return row
    advice = ADVICE[Reason(reason.strip("`"))]
    is_nothing = advice == f"{NOTHING}." or advice.startswith(f"{NOTHING}:")
    return f"| {reason} | {when} | {outcome} | {'none' if is_nothing else advice} |"


def cells(row: str) -> list[str]:
    """Split a row of a Markdown table."""
    return [cell.strip() for cell in row.strip("|").split(" | ")]


def documented_reasons() -> Iterator[str]:
    """Yield the reasons in the order of the table."""
    _, _, rest = PAGE.read_text().partition(f"{HEADING}\n")
    for row in rest.splitlines()[1:]:
        if reason := cells(row)[0]:
            yield reason.strip("`")


if __name__ == "__main__":
    PAGE.write_text(render())
    print(f"written: {PAGE}", file=sys.stderr)
