"""The tables in docs/reference/reasons.md. Run as a program, this module writes what to do.

The causes are written by hand. What to do, in italics, comes from the program's ADVICE, so that the page and the
program give the same advice.
"""

from __future__ import annotations

import re
import sys

from tests.support.paths import DOCS
from webhook.placement.reasons import Reason
from webhook.placement.wording import ADVICE

PAGE = DOCS / "reference/reasons.md"
NOTHING = "No action needed"
ROW = re.compile(r"^\| `([A-Z]\w+)` \| ([^*]*?)(?: \*.*\*)? \|$", re.MULTILINE)


def render() -> str:
    """Return the page with the current advice."""
    return ROW.sub(lambda row: f"| `{row[1]}` | {row[2]}{advice(row[1])} |", PAGE.read_text())


def advice(reason: str) -> str:
    """Return what to do about a reason, in italics. Empty if there is nothing to do."""
    found = ADVICE[Reason(reason)]
    return "" if found == f"{NOTHING}." or found.startswith(f"{NOTHING}:") else f" *{found}*"


def documented_reasons() -> list[str]:
    """Return the reasons in the order of the page."""
    return [row[1] for row in ROW.finditer(PAGE.read_text())]


if __name__ == "__main__":
    PAGE.write_text(render())
    print(f"written: {PAGE}", file=sys.stderr)
