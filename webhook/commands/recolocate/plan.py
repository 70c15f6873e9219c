"""The plan of `recolocate`: as JSON, as text, as moves to run, and as restarts where migration can't move a VM."""

from collections.abc import Iterable, Iterator, Sequence

from webhook.commands.report.document import describe_proposal
from webhook.commands.report.table import TRAFFIC_HEADS, traffic_cells
from webhook.commands.tables import NO_VALUE, render_table, terminal_columns
from webhook.fleet.relocation.rules import Hindrance, Move
from webhook.fleet.relocation.run import Relocation, ordered
from webhook.fleet.simulation.plan import Proposal
from webhook.fleet.simulation.recolocation import describe_gain
from webhook.fleet.wording import commands
from webhook.placement.objects.fields import JsonObject, mapping, printable

HEADS = ("NAMESPACE", "VM", "NODE", "STORAGE", "ACTION", "WHY")
COLORS = {"migrate": "green", "restart": "yellow"}


def relocations(proposals: Iterable[Proposal]) -> tuple[Relocation, ...]:
    """Return the moves of the proposals in the order of a run."""
    return ordered(Relocation(each.result, each.classes) for each in proposals if isinstance(each.result, Move))


def describe(proposal: Proposal) -> JsonObject:
    """Return a proposal as a line of JSON."""
    status = proposal.status
    names = {"namespace": status.machine.namespace, "name": status.machine.name}
    nodes = {"node": status.node, "storageNode": status.storage_node}
    return (names | nodes | mapping(describe_proposal(proposal))) | {
        "storageClasses": sorted(proposal.classes),
        "traffic": proposal.traffic.as_json() if proposal.traffic else None,
    }


def render(described: Sequence[JsonObject], most: int | None) -> str:
    """Return the table of a dry run, from its JSON."""
    traffic = any(each["traffic"] for each in described)
    heads = (*HEADS[:-1], *TRAFFIC_HEADS * traffic, HEADS[-1])
    table = render_table(heads, [list(_cells(each)) for each in described], colors=COLORS, columns=terminal_columns())
    apart = [each["action"] for each in described if each["reason"] != Hindrance.NOT_APART]
    if not apart:
        return f"{table}No VM is apart from its storage.\n"
    moves = apart.count("migrate")
    restarts = apart.count("restart")
    chosen = f"{most} of {moves}" if most is not None and most < moves else str(moves)
    return f"{table}\n{len(apart)} apart: {chosen} would migrate{f', {restarts} need a restart' * bool(restarts)}\n"


def restart_lines(proposals: Iterable[Proposal]) -> Iterator[str]:
    """Yield the lines of a script that restarts the VMs that only a restart moves to their storage."""
    for each in proposals:
        if each.action == "restart" and (found := commands(each.status, each.result)):
            line = " && ".join(command.line for command in found)
            yield printable(f"{line}  # {describe_gain(each.gain)}; {why(describe(each))}")


def why(described: JsonObject) -> str:
    """Return what a VM gains from its move, or why it stays."""
    if described["action"] == "migrate":
        return describe_gain(described["gainBytes"])
    return f"{described['reason']}: {described['detail']}"


def _cells(described: JsonObject) -> Iterator[str]:
    yield from (described[key] or NO_VALUE for key in ("namespace", "name", "node", "storageNode", "action"))
    if described["traffic"]:
        yield from traffic_cells(described["traffic"])
    yield why(described)
