"""The plan of `recolocate` as text and as JSON, and the restarts for the VMs that migration can't move."""

from collections.abc import Iterable, Iterator, Sequence

import click

from webhook.cluster.machines import Inventory
from webhook.commands.fleet_source import Scope, assess_all
from webhook.commands.progress import Progress, no_progress
from webhook.commands.report.document import describe_proposal
from webhook.commands.report.table import TRAFFIC_HEADS, traffic_cells
from webhook.commands.suggestions import close_match
from webhook.commands.tables import NO_VALUE, render_table
from webhook.fleet.move import Move, Proposal, Surroundings, describe_gain, make_plan
from webhook.fleet.run import Relocation, ordered
from webhook.fleet.states import State, Status
from webhook.fleet.wording import commands
from webhook.placement.objects.fields import JsonObject, mapping, printable
from webhook.reading.documents import BadInput

HEADS = ("NAMESPACE", "VM", "NODE", "STORAGE", "ACTION", "WHY")


def propose(
    inventory: Inventory, scope: Scope, names: Sequence[str], around: Surroundings, progress: Progress
) -> list[Proposal]:
    """Return a proposal for each VM that is apart or named, the largest gain first. Raises BadInput."""
    found = list(assess_all(inventory, scope, around.settings, progress))
    known = {each.machine.name for each in found}
    if missing := min(set(names) - known, default=""):
        problem = f'VirtualMachine "{missing}" not found in namespace "{scope.namespace}"'
        raise BadInput("; ".join(filter(None, [problem, close_match(missing, known)])))
    statuses = [each for each in found if _is_named(each, names)]
    if not statuses:
        advice = ". To select all namespaces, add -A" if scope.namespace else ""
        click.echo(printable(scope.not_found + advice), err=True)
    chosen = [each for each in statuses if names or each.state is State.APART]
    return make_plan(chosen, inventory.store, around)


def propose_again(inventory: Inventory, scope: Scope, names: Sequence[str], around: Surroundings) -> list[Proposal]:
    """Return a proposal for each VM that is still apart. Named VMs may be gone."""
    statuses = assess_all(inventory, scope, around.settings, no_progress)
    chosen = [each for each in statuses if each.state is State.APART and _is_named(each, names)]
    return make_plan(chosen, inventory.store, around)


def _is_named(status: Status, names: Sequence[str]) -> bool:
    return not names or status.machine.name in names


def relocations(proposals: Iterable[Proposal]) -> tuple[Relocation, ...]:
    """Return the moves of the proposals in the order of a run."""
    return ordered(Relocation(each.result, each.classes) for each in proposals if isinstance(each.result, Move))


def not_migrated(proposals: Iterable[Proposal]) -> Iterator[str]:
    """Yield for each VM that is not migrated why."""
    for each in proposals:
        if not isinstance(each.result, Move):
            vm = f"{each.status.machine.namespace}/{each.status.machine.name}"
            yield printable(f"{vm} stays: {each.result.word}: {each.result.detail}")


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


def render(proposals: Sequence[Proposal], most: int | None, *, color: bool) -> str:
    """Return the table of a dry run."""
    colors = {"migrate": "green", "restart": "yellow"} if color else {}
    heads = HEADS if not any(each.traffic for each in proposals) else (*HEADS[:-1], *TRAFFIC_HEADS, HEADS[-1])
    table = render_table(heads, [list(_cells(each)) for each in proposals], colors=colors)
    return "\n".join(filter(None, (table, f"{_summary(proposals, most)}\n")))


def _cells(proposal: Proposal) -> Iterator[str]:
    status, result = proposal.status, proposal.result
    yield from (status.machine.namespace, status.machine.name, status.node or NO_VALUE)
    yield status.storage_node or NO_VALUE
    yield proposal.action
    if proposal.traffic:
        yield from traffic_cells(proposal.traffic.as_json())
    yield describe_gain(proposal.gain) if isinstance(result, Move) else f"{result.word}: {result.detail}"


def _summary(proposals: Sequence[Proposal], most: int | None) -> str:
    moves = sum(isinstance(each.result, Move) for each in proposals)
    restarts = sum(each.restart for each in proposals)
    chosen = f"{min(moves, most)} of {moves}" if most is not None and most < moves else str(moves)
    apart = sum(each.status.state is State.APART for each in proposals)
    if not apart:
        return "No VM is apart from its storage."
    line = f"{apart} apart: {chosen} would migrate"
    needed = f"{restarts} {'needs' if restarts == 1 else 'need'} a restart"
    return f"{line}, {needed} (to list them: --restart-list)" if restarts else line


def restart_list(proposals: Iterable[Proposal]) -> Iterator[str]:
    """Yield the lines of a script that restarts the VMs that only a restart moves to their storage."""
    for each in proposals:
        if not each.restart or isinstance(each.result, Move) or not commands(each.status, each.result):
            continue
        command = " && ".join(commands(each.status, each.result))
        why = f"{each.result.word}: {each.result.detail}"
        yield printable(f"{command}  # {describe_gain(each.gain)}; {why}")
