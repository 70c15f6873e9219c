"""Tables as text, for a terminal of any width and for pipes."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import click

from webhook.placement.objects.fields import printable

NO_VALUE = "-"
GAP = 3  # columns between two cells
MIN_WIDTH = 24  # columns of a last cell that wraps; narrower sentences are hard to read


# Not rich: a table of 5,000 rows takes it 12 seconds.
def render_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    colors: Mapping[str, str] = MappingProxyType({}),
    columns: int | None = None,
    headers: bool = True,
) -> str:
    """Return the rows as a table, empty without rows. `colors` are those of cells, by their first word.

    In a table that is wider than `columns`, the last cell of each row wraps. The others can be copied.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    if not cells:
        return ""
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    indent = sum(widths[:-1]) + GAP * (len(heads) - 1)
    if columns:
        widths[-1] = min(widths[-1], max(columns - indent, MIN_WIDTH))
    lines = [_line(heads, widths, {})] * headers
    for *others, last in cells:
        first, *more = textwrap.wrap(last, widths[-1], break_on_hyphens=False) or [""]
        lines += [_line([*others, first], widths, colors), *(" " * indent + part for part in more)]
    return "".join(f"{line}\n" for line in lines)


def _line(cells: Iterable[str], widths: Sequence[int], colors: Mapping[str, str]) -> str:
    line = ""
    for cell, width in zip(cells, widths, strict=True):
        color = colors.get(cell.partition(" ")[0])
        line += (click.style(cell, fg=color) if color else cell) + " " * (width - len(cell) + GAP)
    return line.rstrip()
