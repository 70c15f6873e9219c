"""The plan for all VMs together: each planned move or restart takes its place before the next one is evaluated."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from webhook.fleet.forecast_catalog import forecast
from webhook.fleet.move import TRANSIENT, Hindrance, Move, Refusal, Surroundings, can_restart, gain, plan_move
from webhook.fleet.next_pod import as_if_eligible, creation_request
from webhook.fleet.states import Future, State, Status
from webhook.fleet.traffic import Traffic, crossing
from webhook.placement.catalog import Catalog
from webhook.placement.injector import without_patch
from webhook.placement.objects.facts import Pod
from webhook.placement.objects.fields import mapping
from webhook.placement.reasons import Outcome


@dataclass(frozen=True, slots=True)
class Proposal:
    """The plan for one VM: a move, or the reason for none, and whether a restart helps instead.

    `gain` is the number of bytes that become local. `classes` are the StorageClasses of the VM's claims. `traffic`
    crosses the network; None if it is unknown.
    """

    status: Status
    result: Move | Refusal
    gain: int
    restart: bool = False
    classes: frozenset[str] = frozenset()
    traffic: Traffic | None = None

    @property
    def rank(self) -> tuple[float, float, int]:
        """Return the place in the plan: the VM whose storage causes most traffic comes first, then the largest gain."""
        return *(self.traffic or Traffic()).rank, self.gain

    @property
    def action(self) -> str:
        """Return what the plan does with the VM."""
        return "migrate" if isinstance(self.result, Move) else "restart" if self.restart else "none"


def make_plan(statuses: Iterable[Status], catalog: Catalog, around: Surroundings) -> list[Proposal]:
    """Return a proposal for each VM, in the order of their `rank`.

    A pod that leaves a node doesn't free its resources there: it may leave later, or not at all.
    """
    placed: list[Pod] = []
    found, refused = list[Proposal](), list[Proposal]()
    for proposal in _ranked(_unplanned(each, catalog, around) for each in statuses):
        result = plan_move(proposal.status, around, forecast(catalog, placed=placed))
        if isinstance(result, Move):
            placed += [result.pod] if result.pod else []
            found.append(replace(proposal, result=result))
        else:
            gained = gain(proposal.status, catalog, restarted=True)
            refused.append(replace(proposal, result=result, gain=gained))
    for proposal in _ranked(refused):
        restart = _may_restart(proposal) and _takes_place(proposal.status, catalog, around, placed)
        found.append(replace(proposal, restart=restart))
    return _ranked(found)


def _ranked(proposals: Iterable[Proposal]) -> list[Proposal]:
    return sorted(proposals, key=lambda each: each.rank, reverse=True)


def _unplanned(status: Status, catalog: Catalog, around: Surroundings) -> Proposal:
    none, gained = Refusal(Hindrance.NOT_APART, ""), gain(status, catalog, restarted=False)
    claims = (catalog.claim(status.machine.namespace, each.claim) for each in status.claims)
    classes = frozenset(claim.storage_class for claim in claims if claim)
    traffic = crossing(status, around.rates) if around.rates else None
    return Proposal(status, none, gained, classes=classes, traffic=traffic)


def _may_restart(proposal: Proposal) -> bool:
    status, refusal = proposal.status, proposal.result
    if status.state is not State.APART or proposal.gain < 0 or isinstance(refusal, Move):
        return False
    if refusal.hindrance in (*TRANSIENT, Hindrance.OPTED_OUT):
        return False
    return status.start_helps and can_restart(status.machine.vm)


def _takes_place(status: Status, catalog: Catalog, around: Surroundings, placed: list[Pod]) -> bool:
    """Return whether a restart still brings the VM to its storage after the plan so far, and place its next pod."""
    start = status.start
    if start is None or start.future is Future.FOLLOWS:  # the VM starts on any node
        return start is not None
    template, _ = as_if_eligible(mapping(status.machine.template), status.opted_in_by, around.settings)
    request, later = creation_request(template, around.settings), forecast(catalog, start.stopped, placed)
    decision = without_patch(request, later, around.settings).decision
    placed += [decision.reservation] if decision.reservation else []
    return decision.outcome is Outcome.PINNED
