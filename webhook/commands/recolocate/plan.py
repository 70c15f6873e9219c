"""The plan of `recolocate`: an action for each VM, and the restarts for the VMs that migration can't move."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

import click

from webhook.cluster.inventory import Inventory
from webhook.commands.fleet_source import Scope, assess_all
from webhook.commands.progress import Progress
from webhook.fleet.recolocation import TRANSIENT, Hindrance, Move, Refusal, VmView, can_restart, gain, plan_move
from webhook.fleet.recolocation_run import ordered
from webhook.fleet.relocation import Relocation
from webhook.fleet.states import State, Status
from webhook.placement.objects.facts import Key
from webhook.placement.objects.fields import JsonObject, printable
from webhook.placement.settings import Settings
from webhook.reading.documents import BadInput

if TYPE_CHECKING:
    from webhook.commands.recolocate.migrations import Disk

HEADS = ("NAMESPACE", "VM", "NODE", "STORAGE", "ACTION", "WHY")
NO_VALUE = "-"
GAP = 3  # columns between two cells
GIBIBYTE = 1024**3


@dataclass(frozen=True, slots=True)
class Proposal:
    """The plan for one VM: a move, or the reason for none. `gain` is the number of bytes that become local.

    `can_restart` means that KubeVirt accepts a request to restart the VM.
    """

    status: Status
    result: Move | Refusal
    classes: frozenset[str]
    gain: int
    can_restart: bool

    @property
    def needs_restart(self) -> bool:
        """Return whether migration can't move the VM, but a restart would."""
        if isinstance(self.result, Move) or self.result.hindrance in (*TRANSIENT, Hindrance.OPTED_OUT):
            return False
        return self.status.state is State.APART and self.status.start_helps and self.can_restart


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The cluster: its objects, its claims, and the VMs that have an unfinished migration.

    If not `supported`, KubeVirt is too old to migrate a VM to a chosen node.
    """

    inventory: Inventory
    disks: Mapping[Key, Disk]
    unfinished: frozenset[Key]
    supported: bool


def propose(
    found: Surroundings, scope: Scope, names: Sequence[str], settings: Settings, progress: Progress
) -> list[Proposal]:
    """Return a proposal for each VM that is apart or named, the largest gain first. Raises BadInput."""
    statuses = [each for each in assess_all(found.inventory, scope, settings, progress) if _is_named(each, names)]
    missing = set(names) - {each.machine.name for each in statuses}
    if missing:
        names = ", ".join(f'"{name}"' for name in sorted(missing))
        raise BadInput(f'VirtualMachine {names} not found in namespace "{scope.namespace}"')
    if not statuses:
        advice = ". To select all namespaces, add -A" if scope.namespace else ""
        click.echo(printable(scope.not_found + advice), err=True)
    chosen = [each for each in statuses if names or each.state is State.APART]
    proposals = [_proposal(each, found, settings) for each in chosen]
    return sorted(proposals, key=attrgetter("gain"), reverse=True)


def _is_named(status: Status, names: Sequence[str]) -> bool:
    return not names or status.machine.name in names


def _proposal(status: Status, found: Surroundings, settings: Settings) -> Proposal:
    machine = status.machine
    result = plan_move(view_of(status, found.inventory, found.unfinished, settings), found.inventory.store)
    if isinstance(result, Move) and not found.supported:
        result = Refusal(Hindrance.OLD_KUBEVIRT, "KubeVirt is older than 1.6")
    pod_claims = machine.pod.claims if machine.pod else ()
    own = {claim: found.disks.get((machine.namespace, claim)) for claim in (*pod_claims, *machine.hotplugged)}
    sizes = {claim: disk.size for claim, disk in own.items() if disk}
    classes = frozenset(disk.storage_class for disk in own.values() if disk)
    gained = gain(status, sizes, restarted=isinstance(result, Refusal))
    restartable = can_restart(found.inventory.vms.get((machine.namespace, machine.name), {}))
    return Proposal(status, result, classes, gained, restartable)


def view_of(status: Status, inventory: Inventory, unfinished: frozenset[Key], settings: Settings) -> VmView:
    """Return what the rules read of a VM."""
    key = status.machine.namespace, status.machine.name
    return VmView(status, inventory.vms.get(key, {}), inventory.vmis.get(key, {}), key in unfinished, settings)


def relocations(proposals: Iterable[Proposal]) -> tuple[Relocation, ...]:
    """Return the moves of the proposals in the order of a run."""
    return ordered(Relocation(each.result, each.classes) for each in proposals if isinstance(each.result, Move))


def describe(proposal: Proposal) -> JsonObject:
    """Return a proposal as a line of JSON."""
    status, result = proposal.status, proposal.result
    moves = isinstance(result, Move)
    return {
        "namespace": status.machine.namespace,
        "name": status.machine.name,
        "node": status.node,
        "storageNode": status.storage_node,
        "action": "migrate" if moves else "none",
        "reason": None if isinstance(result, Move) else result.word,
        "detail": None if isinstance(result, Move) else result.detail,
        "restartHelps": proposal.needs_restart,
        "gainBytes": proposal.gain,
        "storageClasses": sorted(proposal.classes),
    }


def render(proposals: Sequence[Proposal], most: int | None, *, color: bool) -> str:
    """Return the table of a dry run."""
    rows = [tuple(map(printable, _cells(each))) for each in proposals]
    widths = [max(map(len, column)) for column in zip(HEADS, *rows, strict=True)]
    lines = [_line(row, widths, color=color) for row in (HEADS, *rows)] if rows else []
    return "".join(f"{line}\n" for line in (*lines, *([""] if rows else []), _summary(proposals, most)))


def _cells(proposal: Proposal) -> Iterator[str]:
    status, result = proposal.status, proposal.result
    yield from (status.machine.namespace, status.machine.name, status.node or NO_VALUE)
    yield status.storage_node or NO_VALUE
    if isinstance(result, Move):
        yield from ("migrate", describe_gain(proposal.gain))
    else:
        yield from ("restart" if proposal.needs_restart else "none", f"{result.word}: {result.detail}")


def describe_gain(gained: int) -> str:
    """Return a gain in GiB. It is negative if claims without a vote are larger, such as an image that VMs share."""
    return f"{abs(gained) / GIBIBYTE:.4g}Gi becomes {'remote' if gained < 0 else 'local'}"


def _line(cells: Sequence[str], widths: Sequence[int], *, color: bool) -> str:
    padded = [(cell, " " * (width - len(cell) + GAP)) for cell, width in zip(cells, widths, strict=True)]
    colors = {"migrate": "green", "restart": "yellow"} if color else {}
    return "".join(f"{click.style(cell, fg=colors.get(cell)) if color else cell}{gap}" for cell, gap in padded).rstrip()


def _summary(proposals: Sequence[Proposal], most: int | None) -> str:
    moves = sum(isinstance(each.result, Move) for each in proposals)
    restarts = sum(each.needs_restart for each in proposals)
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
        if not each.needs_restart or isinstance(each.result, Move):
            continue
        machine, start = each.status.machine, each.status.start
        command = f"virtctl restart {machine.name} -n {machine.namespace}"
        if start and start.stopped_by:
            command = f"kubevirt-scheduler opt-in {machine.name} -n {machine.namespace} --yes && {command}"
        why = f"{each.result.word}: {each.result.detail}"
        yield printable(f"{command}  # {describe_gain(each.gain)}; {why}")
