"""The plan for all VMs together: each planned move or restart takes its place before the next one is evaluated."""

from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter

from webhook.fleet.forecast import forecast
from webhook.fleet.move import TRANSIENT, Hindrance, Move, Refusal, Surroundings, VmView, can_restart, gain, plan_move
from webhook.fleet.next_pod import as_if_eligible, creation_request
from webhook.fleet.states import Future, State, Status
from webhook.placement.catalog import Catalog
from webhook.placement.injector import without_patch
from webhook.placement.objects.facts import Pod
from webhook.placement.objects.fields import mapping
from webhook.placement.reasons import Decision, Outcome


@dataclass(frozen=True, slots=True)
class Proposal:
    """The plan for one VM: a move, or the reason for none, and whether a restart helps instead.

    `gain` is the number of bytes that become local. `classes` are the StorageClasses of the VM's claims.
    """

    status: Status
    result: Move | Refusal
    gain: int
    restart: bool = False
    classes: frozenset[str] = frozenset()

    @property
    def action(self) -> str:
        """Return what the plan does with the VM."""
        return "migrate" if isinstance(self.result, Move) else "restart" if self.restart else "none"


def make_plan(statuses: Iterable[Status], catalog: Catalog, around: Surroundings) -> list[Proposal]:
    """Return a proposal for each VM, the largest gain first.

    A pod that leaves a node doesn't free its resources there: it may leave later, or not at all.
    """
    placed: list[Pod] = []
    found, refused = list[Proposal](), list[tuple[Status, Refusal, int]]()
    gains = ((gain(each, catalog, restarted=False), each) for each in statuses)
    ranked = sorted(gains, key=itemgetter(0), reverse=True)
    for gained, status in ranked:
        result = plan_move(VmView(status, around), forecast(catalog, placed=placed))
        if isinstance(result, Refusal):
            refused.append((status, result, gain(status, catalog, restarted=True)))
            continue
        placed += [result.pod] if result.pod else []
        found.append(Proposal(status, result, gained, classes=_classes(status, catalog)))
    for status, refusal, gained in sorted(refused, key=lambda each: each[2], reverse=True):
        restart = gained >= 0 and _may_restart(status, refusal) and _takes_place(status, catalog, around, placed)
        found.append(Proposal(status, refusal, gained, restart, _classes(status, catalog)))
    return sorted(found, key=lambda each: each.gain, reverse=True)


def _classes(status: Status, catalog: Catalog) -> frozenset[str]:
    claims = (catalog.claim(status.machine.namespace, each.claim) for each in status.claims)
    return frozenset(claim.storage_class for claim in claims if claim)


def _may_restart(status: Status, refusal: Refusal) -> bool:
    if status.state is not State.APART or refusal.hindrance in (*TRANSIENT, Hindrance.OPTED_OUT):
        return False
    return status.start_helps and can_restart(status.machine.vm)


def _takes_place(status: Status, catalog: Catalog, around: Surroundings, placed: list[Pod]) -> bool:
    """Return whether a restart still brings the VM to its storage after the plan so far, and place its next pod."""
    start = status.start
    if start is None or start.future is Future.FOLLOWS:  # the VM starts on any node
        return start is not None
    decision = _decide_again(status, forecast(catalog, start.stopped, placed), around)
    placed += [decision.reservation] if decision.reservation else []
    return decision.outcome is Outcome.PINNED


def _decide_again(status: Status, catalog: Catalog, around: Surroundings) -> Decision:
    template, _ = as_if_eligible(mapping(status.machine.template), status.opted_in_by, around.settings)
    return without_patch(creation_request(template, around.settings), catalog, around.settings).decision
