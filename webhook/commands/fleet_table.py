"""Render the report on the fleet as text: a table of VMs, a summary line, and a table of nodes."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO

from webhook.cluster.documents import printable
from webhook.placement.shape import JsonObject, mapping

STYLES = {"Together": "green", "Apart": "red", "Unserved": "yellow", "Waiting": "yellow"}
_COUNTED = (
    ("together", "together"),
    ("apart", "apart"),
    ("unserved", "unserved"),
    ("waiting", "waiting"),
    ("stopped", "stopped"),
    ("notConcerned", "not concerned"),
)
UNLIMITED = 10_000  # columns, for output that no terminal shows
NO_VALUE = "-"


def render_report(report: JsonObject, *, wide: bool, color: bool, is_terminal: bool) -> str:
    """Return the report as text. On a terminal, long cells wrap."""
    # Imported here: `kubevirt-scheduler --help` imports the commands, and only this function needs rich.
    from rich.console import Console  # noqa: PLC0415

    output = StringIO()
    console = Console(
        file=output,
        width=shutil.get_terminal_size((80, 24)).columns if is_terminal else UNLIMITED,
        color_system="standard" if color else None,
        no_color=not color,
        force_terminal=color,
        highlight=False,
    )
    if report["vms"]:
        _print_table(console, _vm_heads(wide=wide), [_vm_cells(vm, wide=wide) for vm in report["vms"]])
        console.print()
    console.print(summary_line(report["summary"]))
    if report["nodes"]:
        console.print()
        _print_table(console, NODE_HEADS, map(_node_cells, report["nodes"]))
    return "".join(f"{line.rstrip()}\n" for line in output.getvalue().split("\n")[:-1])


def summary_line(summary: JsonObject) -> str:
    """Return the summary, such as "3 VMs: 2 together, 1 apart; it would be together after a restart"."""
    vms = summary["vms"]
    counts = ", ".join(f"{summary[key]} {words}" for key, words in _COUNTED if summary[key])
    line = f"{vms} {'VM' if vms == 1 else 'VMs'}{f': {counts}' if counts else ''}"
    if not summary["apart"]:
        return line
    helped, to_opt_in = summary["togetherAfterRestart"], summary["togetherAfterRestartNotOptedIn"]
    line += f"; {helped} of the {summary['apart']} would be together after a restart"
    return f"{line} ({to_opt_in} of them only once opted in)" if to_opt_in else line


NODE_HEADS = ("NODE", "VMS", "APART", "SHARE-MANAGERS", "CPU", "MEMORY", "PODS")


def _vm_heads(*, wide: bool) -> Sequence[str]:
    more = ("CLAIM", "REASON") if wide else ()
    return ("NAMESPACE", "VM", "OPT-IN", "NODE", "STORAGE", "STATE", *more, "IF STARTED", "WHAT TO DO")


def _vm_cells(vm: JsonObject, *, wide: bool) -> Iterator[str]:
    yield from (vm["namespace"], vm["name"], "yes" if vm["optedIn"] else "no")
    yield from (vm["node"] or NO_VALUE, vm["storageNode"] or NO_VALUE)
    marks = [mark for mark in ("paused", "migrating") if wide and vm[mark]]
    yield f"{vm['state']} ({', '.join(marks)})" if marks else vm["state"]
    if wide:
        yield from (vm["claim"] or NO_VALUE, vm["reason"] or NO_VALUE)
    yield mapping(vm, "ifStarted").get("text") or NO_VALUE
    yield vm["advice"]


def _node_cells(node: JsonObject) -> Iterator[str]:
    yield from (node["name"], str(node["vms"]), str(node["states"]["apart"]), str(node["shareManagers"]))
    for resource in ("cpu", "memory", "pods"):
        share = node["requested"].get(resource)
        yield NO_VALUE if share is None else f"{share:.0%}"


def _print_table(console: object, heads: Sequence[str], rows: Iterable[Iterable[str]]) -> None:
    from rich.table import Table  # noqa: PLC0415 (as above)
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for head in heads:
        # Names don't wrap: a wrapped name can't be copied.
        table.add_column(head, no_wrap=head not in ("IF STARTED", "WHAT TO DO"), overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell), STYLES.get(cell, "")) for cell in row))
    console.print(table)  # type: ignore[attr-defined]
