"""What the probes of both sides measured, and what it means. Pure: their results in, figures and words out."""

from collections.abc import Sequence

import msgspec

from webhook.commands.tables import render_table

MAIN = "4 KiB write"  # the operation of the sentence: programs that wait for each write gain most
HEADS = ("OPERATION", "BESIDE", "p50", "p99", "ELSEWHERE", "p50", "p99", "KEEPS")


class Figures(msgspec.Struct, frozen=True):
    """What one probe measured of one operation."""

    operations: int
    seconds: float  # of all operations together
    microseconds: list[int]  # of an operation: 100 percentiles, each for 1 % of them


class Visit(msgspec.Struct, frozen=True):
    """What one probe measured."""

    direct: bool  # whether it bypassed the page cache
    figures: dict[str, Figures]


class Side(msgspec.Struct, frozen=True, rename="camel"):
    """What all probes of one side measured of one operation."""

    p50: float  # milliseconds
    p99: float
    per_second: float


class Row(msgspec.Struct, frozen=True):
    """One operation on both sides."""

    operation: str
    beside: Side
    elsewhere: Side
    keeps: float  # the operations per second elsewhere, as a share of those beside
    clear: bool  # whether each probe of one side was faster than each of the other


def compare(beside: Sequence[Visit], elsewhere: Sequence[Visit]) -> list[Row]:
    """Return a row for each operation. Raises KeyError if a visit lacks one."""
    return [
        _row(name, *([each.figures[name] for each in side] for side in (beside, elsewhere)))
        for name in beside[0].figures
    ]


def _row(operation: str, *probes: Sequence[Figures]) -> Row:
    beside, elsewhere = map(_side, probes)
    here, there = ([each.operations / each.seconds for each in side] for side in probes)
    clear = min(here) > max(there) or min(there) > max(here)
    return Row(operation, beside, elsewhere, round(elsewhere.per_second / beside.per_second, 3), clear)


def _side(probes: Sequence[Figures]) -> Side:
    found = sorted(each for probe in probes for each in probe.microseconds)
    p50, p99 = (found[(len(found) * percent - 1) // 100] / 1000 for percent in (50, 99))
    operations = sum(each.operations for each in probes)
    seconds = sum(each.seconds for each in probes)
    return Side(p50, p99, round(operations / seconds, 1))


def sentence(rows: Sequence[Row]) -> str:
    """Return what the figures mean."""
    row = next(each for each in rows if each.operation == MAIN)
    if not row.clear:
        return f"No difference is measurable for a {MAIN}: the probes of one side differ by more than the two sides do."
    if row.keeps >= 1:
        return f"A {MAIN} is faster on another node ({row.keeps:.0%}): the share-manager's node may be slow or busy."
    longer = 1000 / row.elsewhere.per_second - 1000 / row.beside.per_second
    return (
        f"On another node than its share-manager, a VM that waits for each {MAIN} keeps {row.keeps:.0%} of its writes "
        f"per second, because a write takes {longer:.2f} ms longer on average."
    )


def render(rows: Sequence[Row], columns: int) -> str:
    """Return the rows as a table."""
    cells = [(row.operation, *_cells(row.beside), *_cells(row.elsewhere), f"{row.keeps:.0%}") for row in rows]
    return render_table(HEADS, cells, columns=columns)


def _cells(side: Side) -> tuple[str, str, str]:
    return f"{side.per_second:,.0f}/s", f"{side.p50:.2f} ms", f"{side.p99:.2f} ms"
