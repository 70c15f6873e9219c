"""Render the report on the fleet as text: a table of VMs, a summary line, and a table of nodes."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

import click

from webhook.placement.objects.fields import JsonObject, mapping, printable

COLORS = {"Together": "green", "Apart": "red", "Unserved": "yellow", "Waiting": "yellow"}
NODE_HEADS = ("NODE", "VMS", "APART", "SHARE-MANAGERS", "CPU", "MEMORY", "PODS")
NO_VALUE = "-"
GAP = 3  # columns between two cells
MIN_PROSE_WIDTH = 24  # columns; narrower sentences are hard to read
_PROSE = 2  # the last columns of a VM are sentences, which may wrap; a wrapped name could not be copied
_OPTED_IN = {None: "no", "annotation": "yes", "namespace": "by namespace", "storage-class": "by StorageClass"}
_COUNTED = (
    ("together", "together"),
    ("apart", "apart"),
    ("unserved", "unserved"),
    ("waiting", "waiting"),
    ("stopped", "stopped"),
    ("notConcerned", "not concerned"),
)


def render_report(report: JsonObject, *, wide: bool, color: bool, columns: int | None) -> str:
    """Return the report as text. With `columns`, the width of a terminal, long sentences wrap."""
    head = mapping(report, "webhook").get("text")
    parts = [f"{printable(head)}\n"] if head else []
    if report["vms"]:
        rows = [list(_vm_cells(vm, wide=wide)) for vm in report["vms"]]
        parts.append(_table(_vm_heads(wide=wide), rows, color=color, columns=columns, prose=_PROSE))
    parts.append(f"{summary_line(report['summary'])}\n")
    if report["nodes"]:
        parts.append(_table(NODE_HEADS, [list(_node_cells(node)) for node in report["nodes"]], color=color))
    return "\n".join(parts)


def summary_line(summary: JsonObject) -> str:
    """Return the summary, such as "3 VMs: 2 together, 1 apart; 1 of 1 would be together after a restart"."""
    vms = summary["vms"]
    counts = ", ".join(f"{summary[key]} {words}" for key, words in _COUNTED if summary[key])
    line = f"{vms} {'VM' if vms == 1 else 'VMs'}{f': {counts}' if counts else ''}"
    if not summary["apart"]:
        return line
    helped, to_opt_in = summary["togetherAfterRestart"], summary["togetherAfterRestartNotOptedIn"]
    if moves := summary.get("togetherAfterRecolocate"):
        line += f"; {moves} of {summary['apart']} would be together after recolocate"
    line += f"; {helped} of {summary['apart']} would be together after a restart"
    return f"{line} ({to_opt_in} only after opt-in)" if to_opt_in else line


def _vm_heads(*, wide: bool) -> Sequence[str]:
    more = ("CLAIM", "REASON") if wide else ()
    return ("NAMESPACE", "VM", "OPT-IN", "NODE", "STORAGE", "STATE", *more, "IF STARTED", "WHAT TO DO")


def _vm_cells(vm: JsonObject, *, wide: bool) -> Iterator[str]:
    yield from (vm["namespace"], vm["name"], "opted out" if vm.get("optedOut") else _OPTED_IN[vm["optedInBy"]])
    yield from (vm["node"] or NO_VALUE, vm["storageNode"] or NO_VALUE)
    marks = [mark for mark in ("paused", "migrating") if wide and vm[mark]]
    yield f"{vm['state']} ({', '.join(marks)})" if marks else vm["state"]
    if wide:
        yield from (vm["claim"] or NO_VALUE, vm["reason"] or NO_VALUE)
    yield mapping(vm, "ifStarted").get("text") or NO_VALUE
    yield (vm["advice"] if wide else vm["nextStep"]) or NO_VALUE


def _node_cells(node: JsonObject) -> Iterator[str]:
    yield from (node["name"], str(node["vms"]), str(node["states"]["apart"]), str(node["shareManagers"]))
    for resource in ("cpu", "memory", "pods"):
        share = node["requested"].get(resource)
        yield NO_VALUE if share is None else f"{share:.0%}"


# Not rich: a table of 5,000 rows takes it 12 seconds.
def _table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, color: bool, columns: int | None = None, prose: int = 0
) -> str:
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    if columns and prose:
        left = columns - sum(widths[:-prose]) - GAP * (len(heads) - 1)
        widths[-prose:] = [min(width, max(left // prose, MIN_PROSE_WIDTH)) for width in widths[-prose:]]
    lines = [_line(heads, widths, color=False)]
    for row in cells:
        wrapped = [textwrap.wrap(cell, width) or [""] for cell, width in zip(row, widths, strict=True)]
        lines.extend(_line(parts, widths, color=color) for parts in zip_longest(*wrapped, fillvalue=""))
    return "".join(f"{line}\n" for line in lines)


def _line(cells: Iterable[str], widths: Sequence[int], *, color: bool) -> str:
    padded = [(cell, " " * (width - len(cell) + GAP)) for cell, width in zip(cells, widths, strict=True)]
    styled = (click.style(cell, fg=COLORS.get(cell.partition(" ")[0])) if color else cell for cell, _ in padded)
    return "".join(f"{cell}{space}" for cell, (_, space) in zip(styled, padded, strict=True)).rstrip()
