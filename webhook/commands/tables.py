"""Tables as text, for a terminal of any width and for pipes."""

import re
import shutil
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from types import MappingProxyType
from typing import Any

import click

from webhook.placement.objects.fields import printable

NO_VALUE = "-"
GAPS = (3, 2, 1)  # columns between two cells: the first number with which the table fits
MIN_WIDTH = 24  # columns of a last cell that wraps; narrower sentences are hard to read
MIN_CUT = 16  # columns of a cell that is cut
WRAPPING: Any = {"break_long_words": False, "break_on_hyphens": False}  # words such as names can be copied
NODES = ("NODE", "STORAGE")  # the heads of the columns with the names of nodes


def terminal_columns(default: int = 0) -> int:
    """Return the width of the terminal, or the default without one. 0 doesn't limit a table."""
    return shutil.get_terminal_size((0, 24)).columns or default


# Not rich: a table of 5,000 rows takes it 12 seconds.
def render_table(  # noqa: PLR0913 (one parameter per property of a table)
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    colors: Mapping[str, str] = MappingProxyType({}),
    columns: int = 0,
    headers: bool = True,
    sentences: Collection[str] = (),
) -> str:
    """Return the rows as a table, empty without rows. `colors` are the cells', by their first word.

    A table that is wider than `columns` omits the domain that all nodes share, and says so. Then the cells in the
    columns with the heads `sentences` are cut. Then the last cell of each row wraps between words, below the others if
    these leave it too few columns. The others can be copied.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    if not cells:
        return ""
    domain = ""
    if columns and headers and sum(_widths(heads, cells)) + GAPS[0] * (len(heads) - 1) > columns:
        domain = _shared_domain(heads, cells)
        cells = [[_shortened(*each, domain, sentences) for each in zip(heads, row, strict=True)] for row in cells]
    if columns and sentences:
        limits = _limits(heads, cells, columns, sentences)
        cells = [[_cut(*each) for each in zip(row, limits, strict=True)] for row in cells]
    wraps = heads[-1] not in sentences
    lines = list(_lines([[*heads]] * headers + cells, _widths(heads, cells), colors, columns, wraps=wraps))
    note = [f"The table omits the domain of the nodes: {domain}"] if domain else []
    return "".join(f"{line}\n" for line in lines + note)


def _widths(heads: Sequence[str], cells: Iterable[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(heads, *cells, strict=True)]


def _shared_domain(heads: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
    """Return the domain in which the names of all nodes end, with its dot; empty if there is none."""
    shown = (cell for row in cells for head, cell in zip(heads, row, strict=True) if head in NODES)
    labels = zip(*(cell.partition(" ")[0].split(".")[:0:-1] for cell in shown if cell != NO_VALUE), strict=False)
    domain = "".join(f".{label}" for label, *_ in reversed([*takewhile(lambda each: len({*each}) == 1, labels)]))
    return domain if re.search("[a-z]", domain) else ""  # not a part of an IP address


def _shortened(head: str, cell: str, domain: str, sentences: Collection[str]) -> str:
    if head in sentences:
        return cell.replace(domain, "")
    name, space, marks = cell.partition(" ")
    return name.removesuffix(domain) + space + marks if head in NODES else cell


def _limits(
    heads: Sequence[str], cells: Iterable[Sequence[str]], columns: int, sentences: Collection[str]
) -> list[int]:
    """Return the widths with which the table fits. The sentences share what the other columns leave them."""
    widths = _widths(heads, cells)
    free = columns - GAPS[1] * (len(heads) - 1) - sum(widths)
    shared = sorted((at for at, head in enumerate(heads) if head in sentences), key=lambda at: widths[at])
    free += sum(widths[at] for at in shared)
    for number, at in enumerate(shared):
        widths[at] = min(widths[at], max(free // (len(shared) - number), MIN_CUT))
        free -= widths[at]
    return widths


def _cut(cell: str, width: int) -> str:
    return cell if len(cell) <= width else f"{cell[: width - 1].rstrip()}\u2026"


def _lines(
    rows: list[list[str]], widths: list[int], colors: Mapping[str, str], columns: int, *, wraps: bool
) -> Iterator[str]:
    """Yield the lines of the table, with the widest gap that leaves the last cells beside the others, or else below."""
    *others, last = widths
    words = (len(word) for *_, cell in rows for word in cell.split())
    least = min(last, max([MIN_WIDTH, *words])) if wraps else last
    used = {gap: sum(others) + gap * len(others) for gap in GAPS}
    fitting = [gap for gap in GAPS if not columns or used[gap] + least <= columns]
    gap = (fitting or [gap for gap in GAPS if used[gap] - gap <= columns] or GAPS[-1:])[0]
    indent = used[gap] if fitting else GAPS[0]
    for row in rows:
        parts = [row[-1]]
        if columns and len(row[-1]) > columns - indent:
            parts = textwrap.wrap(row[-1], max(columns - indent, 1), **WRAPPING) or [""]
        if not fitting:
            parts = ["", *(part for part in parts if part != NO_VALUE)]
        yield (" " * gap).join(map(_styled, [*row[:-1], parts[0]], widths, [colors] * len(row))).rstrip()
        yield from (" " * indent + part for part in parts[1:])


def _styled(cell: str, width: int, colors: Mapping[str, str]) -> str:
    color = colors.get(cell.partition(" ")[0])
    return (click.style(cell, fg=color) if color else cell) + " " * (width - len(cell))
