"""The plan of `recolocate`: as text, as JSON, as moves to run, and as restarts where migration can't move a VM."""

from collections.abc import Iterable, Iterator, Sequence

from webhook.cluster.machines import Inventory
from webhook.commands.report.document import describe_proposal
from webhook.commands.report.table import TRAFFIC_HEADS, traffic_cells
from webhook.commands.tables import NO_VALUE, render_table
from webhook.fleet.move import Move, Proposal, Surroundings, describe_gain, make_plan
from webhook.fleet.run import Relocation, ordered
from webhook.fleet.states import State, Status
from webhook.fleet.wording import commands
from webhook.placement.objects.fields import JsonObject, mapping, printable

HEADS = ("NAMESPACE", "VM", "NODE", "STORAGE", "ACTION", "WHY")
COLORS = {"migrate": "green", "restart": "yellow"}


def propose(
    statuses: Iterable[Status], names: Sequence[str], inventory: Inventory, around: Surroundings
) -> list[Proposal]:
    """Return a proposal for each VM of these names, or without names for each that is apart; the best one first."""
    chosen = [each for each in statuses if (each.machine.name in names if names else each.state is State.APART)]
    return make_plan(chosen, inventory.store, around)


def relocations(proposals: Iterable[Proposal]) -> tuple[Relocation, ...]:
    """Return the moves of the proposals in the order of a run."""
    return ordered(Relocation(each.result, each.classes) for each in proposals if isinstance(each.result, Move))


def describe(proposal: Proposal) -> JsonObject:
    """Return a proposal as a line of JSON."""
    status, result = proposal.status, proposal.result
    names = {"namespace": status.machine.namespace, "name": status.machine.name}
    nodes = {"node": status.node, "storageNode": status.storage_node}
    return (names | nodes | mapping(describe_proposal(proposal))) | {
        "action": proposal.action if isinstance(result, Move) else "none",
        "restartHelps": proposal.restart,
        "storageClasses": sorted(proposal.classes),
        "traffic": proposal.traffic.as_json() if proposal.traffic else None,
    }


def render(proposals: Sequence[Proposal], most: int | None) -> str:
    """Return the table of a dry run."""
    heads = HEADS if not any(each.traffic for each in proposals) else (*HEADS[:-1], *TRAFFIC_HEADS, HEADS[-1])
    table = render_table(heads, [list(_cells(each)) for each in proposals], colors=COLORS)
    return "\n".join(filter(None, (table, f"{_summary(proposals, most)}\n")))


def why(proposal: Proposal) -> str:
    """Return what a VM gains from its move, or why it stays."""
    result = proposal.result
    return describe_gain(proposal.gain) if isinstance(result, Move) else f"{result.word}: {result.detail}"


def _cells(proposal: Proposal) -> Iterator[str]:
    status = proposal.status
    yield from (status.machine.namespace, status.machine.name, status.node or NO_VALUE)
    yield from (status.storage_node or NO_VALUE, proposal.action)
    if proposal.traffic:
        yield from traffic_cells(proposal.traffic.as_json())
    yield why(proposal)


def _summary(proposals: Sequence[Proposal], most: int | None) -> str:
    moves = sum(isinstance(each.result, Move) for each in proposals)
    restarts = sum(each.restart for each in proposals)
    chosen = f"{min(moves, most)} of {moves}" if most is not None and most < moves else str(moves)
    apart = sum(each.status.state is State.APART for each in proposals)
    if not apart:
        return "No VM is apart from its storage."
    line = f"{apart} apart: {chosen} would migrate"
    return f"{line}, {restarts} would restart (to list them: --restart-list)" if restarts else line


def restart_lines(proposals: Iterable[Proposal]) -> Iterator[str]:
    """Yield the lines of a script that restarts the VMs that only a restart moves to their storage."""
    for each in proposals:
        if each.restart and not isinstance(each.result, Move) and (found := commands(each.status, each.result)):
            yield printable(f"{' && '.join(found)}  # {describe_gain(each.gain)}; {why(each)}")
