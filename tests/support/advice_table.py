"""The table of each advice that the product gives, in tests/advice.txt."""

from functools import cache
from typing import NamedTuple

from tests.support.paths import ROOT

TABLE = ROOT / "tests/advice.txt"
SITUATION, LOOK = "situation: ", "look: "


class Row(NamedTuple):
    """One line of the table, whose head describes the columns."""

    advice: str
    situation: str
    afterwards: str
    proof: str


@cache
def rows() -> tuple[Row, ...]:
    """Return all rows."""
    lines = (line for line in TABLE.read_text().splitlines() if line and not line.startswith("#"))
    return tuple(Row(*(cell.strip() for cell in line.split(" | "))) for line in lines)
