"""The plan for all VMs together: the step `recolocate`, and restarts for those that it can't move."""

from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from webhook.fleet.forecast_catalog import PlannedPods, forecast
from webhook.fleet.machine import Future, Status
from webhook.fleet.relocation.rules import Move, Refusal, Surroundings, can_restart, not_apart, restart_helps
from webhook.fleet.simulation.state import Server, Site, State
from webhook.fleet.simulation.steps import Action, Step, apply
from webhook.fleet.starts import decide_start
from webhook.fleet.traffic import Traffic, crossing
from webhook.placement.catalog import Catalog
from webhook.placement.reasons import Outcome


class Proposal(Struct, frozen=True):
    """The plan for one VM."""

    status: Status
    result: Move | Refusal  # the move, or the reason for none
    gain: int  # bytes that become local by the move, or else by a restart
    restart: bool = False  # whether a restart helps instead
    classes: frozenset[str] = frozenset()  # the StorageClasses of the VM's claims
    traffic: Traffic | None = None  # what crosses the network; None if unknown

    @property
    def rank(self) -> tuple[Traffic, int]:
        """Return the place in the plan: the VM whose storage causes most traffic comes first, then the largest gain."""
        return self.traffic or Traffic(), self.gain

    @property
    def action(self) -> str:
        """Return what the plan does with the VM."""
        if isinstance(self.result, Move):
            return "migrate"
        return "restart" if self.restart else "none"


def make_plan(statuses: Iterable[Status], catalog: Catalog, around: Surroundings) -> list[Proposal]:
    """Return a proposal for each VM, in the order of their `rank`."""
    chosen = list(statuses)
    before, after = _recolocated(chosen, catalog, around)
    proposals = [_proposal(each, before, after) for each in chosen]
    moves = [each for each in proposals if isinstance(each.result, Move)]
    rest = _ranked(each for each in proposals if isinstance(each.result, Refusal))
    pods = PlannedPods(move.pod for move in after.relocated.values() if isinstance(move, Move) and move.pod)
    return _ranked([*moves, *_with_restarts(rest, catalog, around, pods)])


def plan_move(status: Status, around: Surroundings, catalog: Catalog) -> Move | Refusal:
    """Return the migration that moves a VM to its storage if no other VM moves, or the first hindrance."""
    _, after = _recolocated([status], catalog, around)
    return after.relocated.get(status.machine.key) or not_apart(status)


def together_after_restart(statuses: Iterable[Status], catalog: Catalog, around: Surroundings) -> list[Status]:
    """Return the VMs that come to their storage if all of them are restarted, one after the other."""
    placed = PlannedPods()
    helped = (each for each in statuses if each.start and each.start.helps)
    return [each for each in helped if _takes_place(each, catalog, around, placed)]


def _recolocated(statuses: list[Status], catalog: Catalog, around: Surroundings) -> tuple[State, State]:
    """Return the states before and after `recolocate` moves these VMs."""
    before = State.of(statuses, Site(statuses, catalog, around))
    return before, apply(before, Step(Action.RECOLOCATE, vms=tuple(before.vms)))


def _proposal(status: Status, before: State, after: State) -> Proposal:
    """Return the proposal for one VM. Without a move, it has the gain of a restart."""
    catalog, around, key = before.site.catalog, before.site.around, status.machine.key
    result = after.relocated.get(key) or not_apart(status)
    if isinstance(result, Refusal):
        before = State.of([status], before.site)
        after = _restarted(before, status)
    gain = after.local_bytes(after.vms[key]) - before.local_bytes(before.vms[key]) if key in before.vms else 0
    claims = (catalog.claim(status.machine.namespace, each.claim) for each in status.claims)
    classes = frozenset(claim.storage_class for claim in claims if claim)
    return Proposal(status, result, gain, False, classes, crossing(status, around.rates) if around.rates else None)


def _restarted(state: State, status: Status) -> State:
    """Return the state of a VM after a restart that ends as `status.start` says."""
    start = status.start
    node = start.decision.node if start else None
    nodes = (node,) if node else ()
    vms = {key: replace(vm, nodes=nodes) for key, vm in state.vms.items()}
    following = dict.fromkeys(start.stopped if start else (), Server(nodes, follows=status.machine.key))
    return replace(state, vms=vms, servers={**state.servers, **following})


def _ranked(proposals: Iterable[Proposal]) -> list[Proposal]:
    return sorted(proposals, key=lambda each: each.rank, reverse=True)


def _with_restarts(
    proposals: Iterable[Proposal], catalog: Catalog, around: Surroundings, placed: PlannedPods
) -> Iterator[Proposal]:
    """Yield the proposals without a move, with a restart if it helps beside the pods that the plan has placed."""
    for each in proposals:
        refusal = each.result
        helps = isinstance(refusal, Refusal) and restart_helps(each.status, refusal)
        gains = each.gain >= 0 and can_restart(each.status.machine.vm)
        yield replace(each, restart=helps and gains and _takes_place(each.status, catalog, around, placed))


def _takes_place(status: Status, catalog: Catalog, around: Surroundings, placed: PlannedPods) -> bool:
    """Return whether a restart still brings the VM to its storage after the plan so far, and place its next pod."""
    start = status.start
    if start is None or start.future is Future.FOLLOWS:  # the VM starts on any node
        return start is not None
    later = forecast(catalog, start.stopped, placed)
    decision = decide_start(status.machine, status.opted_in_by, later, around.settings)
    placed.extend(filter(None, [decision.reservation]))
    return decision.outcome is Outcome.PINNED
