"""Tables as text, for a terminal of any width and for pipes."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType

import click

from webhook.placement.objects.fields import printable

NO_VALUE = "-"
GAP = 3  # columns between two cells
MIN_PROSE_WIDTH = 24  # columns; narrower sentences are hard to read
MIN_WIDTH = 8  # columns of any other cell that wraps


# Not rich: a table of 5,000 rows takes it 12 seconds.
def render_table(  # noqa: PLR0913 (what a table may vary in)
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    colors: Mapping[str, str] = MappingProxyType({}),
    columns: int | None = None,
    prose: int = 0,
    headers: bool = True,
) -> str:
    """Return the rows as a table, empty without rows. `colors` are those of cells, by their first word.

    With `columns`, the table is at most that wide: the last `prose` columns wrap first, then the widest others.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    if not cells:
        return ""
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    if columns:
        widths = _fitted(widths, columns - GAP * (len(heads) - 1), prose)
    lines = [_line(heads, widths, {})] if headers else []
    for row in cells:
        wrapped = [
            textwrap.wrap(cell, width, break_on_hyphens=number < len(row) - prose) or [""]
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.extend(_line(parts, widths, colors) for parts in zip_longest(*wrapped, fillvalue=""))
    return "".join(f"{line}\n" for line in lines)


def _fitted(widths: Sequence[int], available: int, prose: int) -> list[int]:
    """Narrow the columns until they fit, each not below its least width."""
    others, sentences = list(widths[: len(widths) - prose]), list(widths[len(widths) - prose :])
    _narrow(sentences, available - sum(others), MIN_PROSE_WIDTH)
    _narrow(others, available - sum(sentences), MIN_WIDTH)
    return others + sentences


def _narrow(widths: list[int], available: int, least: int) -> None:
    while sum(widths) > available and max(widths, default=0) > least:
        widths[widths.index(max(widths))] -= 1


def _line(cells: Iterable[str], widths: Sequence[int], colors: Mapping[str, str]) -> str:
    line = ""
    for cell, width in zip(cells, widths, strict=True):
        color = colors.get(cell.partition(" ")[0])
        line += (click.style(cell, fg=color) if color else cell) + " " * (width - len(cell) + GAP)
    return line.rstrip()
