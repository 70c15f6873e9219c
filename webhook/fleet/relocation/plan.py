"""The plan for all VMs together: each move or restart takes its place before the next one is evaluated."""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from webhook.fleet.forecast_catalog import PlannedPods, forecast
from webhook.fleet.relocation.gain import gain
from webhook.fleet.relocation.rules import (
    NOT_PLANNED,
    Move,
    Refusal,
    Surroundings,
    can_restart,
    plan_move,
    restart_helps,
)
from webhook.fleet.states import Future, Status, decide_start
from webhook.fleet.traffic import Traffic, crossing
from webhook.placement.catalog import Catalog
from webhook.placement.reasons import Outcome


class Proposal(Struct, frozen=True):
    """The plan for one VM."""

    status: Status
    result: Move | Refusal  # the move, or the reason for none
    gain: int  # bytes that become local
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
        return "migrate" if isinstance(self.result, Move) else "restart" if self.restart else "none"


def make_plan(statuses: Iterable[Status], catalog: Catalog, around: Surroundings) -> list[Proposal]:
    """Return a proposal for each VM, in the order of their `rank`.

    A pod that leaves a node doesn't free its resources there: it may leave later, or not at all.
    """
    placed = PlannedPods()
    found, refused = list[Proposal](), list[Proposal]()
    for proposal in _ranked(_unplanned(each, catalog, around) for each in statuses):
        result = plan_move(proposal.status, around, forecast(catalog, placed=placed))
        if isinstance(result, Move):
            placed.extend(filter(None, [result.pod]))
            found.append(replace(proposal, result=result))
        else:
            gained = gain(proposal.status, catalog, restarted=True)
            refused.append(replace(proposal, result=result, gain=gained))
    for proposal in _ranked(refused):
        status, refusal = proposal.status, proposal.result
        restart = isinstance(refusal, Refusal) and restart_helps(status, refusal) and can_restart(status.machine.vm)
        restart = restart and proposal.gain >= 0 and _takes_place(status, catalog, around, placed)
        found.append(replace(proposal, restart=restart))
    return _ranked(found)


def together_after_restart(statuses: Iterable[Status], catalog: Catalog, around: Surroundings) -> list[Status]:
    """Return the VMs that come to their storage if all of them are restarted, one after the other."""
    placed = PlannedPods()
    helped = (each for each in statuses if each.start and each.start.helps)
    return [each for each in helped if _takes_place(each, catalog, around, placed)]


def _ranked(proposals: Iterable[Proposal]) -> list[Proposal]:
    return sorted(proposals, key=lambda each: each.rank, reverse=True)


def _unplanned(status: Status, catalog: Catalog, around: Surroundings) -> Proposal:
    gained = gain(status, catalog, restarted=False)
    claims = (catalog.claim(status.machine.namespace, each.claim) for each in status.claims)
    classes = frozenset(claim.storage_class for claim in claims if claim)
    traffic = crossing(status, around.rates) if around.rates else None
    return Proposal(status, NOT_PLANNED, gained, classes=classes, traffic=traffic)


def _takes_place(status: Status, catalog: Catalog, around: Surroundings, placed: PlannedPods) -> bool:
    """Return whether a restart still brings the VM to its storage after the plan so far, and place its next pod."""
    start = status.start
    if start is None or start.future is Future.FOLLOWS:  # the VM starts on any node
        return start is not None
    later = forecast(catalog, start.stopped, placed)
    decision = decide_start(status.machine, status.opted_in_by, later, around.settings)
    placed.extend(filter(None, [decision.reservation]))
    return decision.outcome is Outcome.PINNED
