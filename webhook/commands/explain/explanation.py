"""The explanation of one pod or VM: its node, each step of the decision on its next pod, and the advice."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from webhook.cluster.caches.store import Store
from webhook.commands.admission_requests import as_json
from webhook.commands.explain.lines import (
    Assumed,
    Line,
    describe_advice,
    describe_decision,
    describe_placement,
    describe_state,
    describe_steps,
)
from webhook.commands.report.document import describe
from webhook.fleet.forecast_catalog import forecast
from webhook.fleet.move import Surroundings, plan_move
from webhook.fleet.next_pod import as_if_eligible, creation_request
from webhook.fleet.release import PENDING_LIMIT, why_kept, why_pin_fails
from webhook.fleet.states import Future, Machine, Status, assess
from webhook.fleet.wording import advice
from webhook.placement import wording
from webhook.placement.catalog import Catalog
from webhook.placement.guard.pins import read_pin
from webhook.placement.injector import Injection, inject
from webhook.placement.objects.fields import JsonObject, mapping, text
from webhook.placement.reasons import GUARD_REASONS, Outcome
from webhook.placement.settings import Settings
from webhook.placement.trace import Trace

_ANSWERS = {"✓": True, "✗": False}


@dataclass(frozen=True, slots=True)
class Explanation:
    """The lines, the decision, and the advice.

    `assumed` is the decision if no rule of eligibility ended it; None if no rule does. `vm` is the VM in the
    report, and None for another pod. `injection` is None if the VM's next pod is unknown.
    """

    name: str
    lines: tuple[Line, ...]
    advice: tuple[str, ...]
    injection: Injection | None = None
    assumed: Injection | None = None
    vm: JsonObject | None = None

    def as_json(self) -> JsonObject:
        """Return the explanation for programs."""
        return {
            "name": self.name,
            "vm": self.vm,
            "steps": list(_steps(self.lines)),
            "decision": as_json(self.injection)["decision"] if self.injection else None,
            "ifEligible": as_json(self.assumed)["decision"] if self.assumed else None,
            "patch": self.injection.patch if self.injection else None,
            "warnings": list(self.injection.warnings) if self.injection else [],
            "advice": list(self.advice),
        }


def _steps(lines: Iterable[Line]) -> Iterator[JsonObject]:
    findings: list[JsonObject] = []
    for line in lines:
        if line.level == 0:
            findings = []
            yield {"title": line.words, "findings": findings}
        else:
            finding: JsonObject = {
                "text": line.words,
                "level": line.level,
                "holds": _ANSWERS.get(line.mark.strip("()")),
            }
            findings.append(finding | {"decisive": not line.mark.startswith("(")})


def explain_request(name: str, request: JsonObject, catalog: Store, settings: Settings) -> Explanation:
    """Explain the decision on a request."""
    return _explained(name, (), request, catalog, settings)


def explain_pod(name: str, pod: JsonObject, template: JsonObject, catalog: Store, settings: Settings) -> Explanation:
    """Explain an existing pod that runs no VM; `template` is the pod as it was at its creation."""
    heading = (Line("Where is the pod?", level=0), *map(Line, describe_placement(pod)))
    return _explained(name, heading, creation_request(template, settings), catalog, settings)


def explain_machine(machine: Machine, catalog: Store, around: Surroundings) -> Explanation:
    """Explain where a VM is, and the decision on its next pod."""
    settings = around.settings
    status = assess(machine, catalog, settings)
    placement = describe_placement(machine.manifest) if machine.manifest else ("no pod runs the VM",)
    lines = (Line("Where is the VM?", level=0), *map(Line, [*placement, *describe_state(status)]))
    move = plan_move(status, around, catalog)
    advised = tuple(_stuck_advice(status, catalog, settings)) or (advice(status, move),)
    name = f"{machine.namespace}/{machine.name}"
    if machine.template is None:
        found = Explanation(name, (*lines, *describe_advice(advised)), advised)
    else:
        later = forecast(catalog, status.start.stopped if status.start else ())
        found = _explained(name, lines, creation_request(machine.template, settings), later, settings, advised)
    return replace(found, vm=describe(status, move))


def _explained(  # noqa: PLR0913, PLR0917 (what the callers know already)
    name: str,
    before: tuple[Line, ...],
    request: JsonObject,
    catalog: Catalog,
    settings: Settings,
    advised: tuple[str, ...] = (),
) -> Explanation:
    trace = Trace()
    injection = inject(request, catalog, settings, trace)
    eligible, broken = as_if_eligible(mapping(request, "object"), injection.decision.opted_in_by, settings)
    assumed = None
    if injection.decision.reason in broken:
        trace = Trace()
        assumed = Assumed(inject(request | {"object": eligible}, catalog, settings, trace), broken)
    heading = Line(f"Does the webhook handle {'the next pod' if advised else 'the pod'}?", level=0)
    try:
        described = list(describe_steps(trace, assumed.broken if assumed else (), catalog, settings, request))
    except Exception as error:  # noqa: BLE001 (as in `injector.inject`; the lines need more fields)
        described = [Line(f"cannot show the steps: a field is malformed ({type(error).__name__})")]
    advised = advised or _advice(injection, assumed)
    lines = (*before, heading, *described, *describe_decision(injection, settings, assumed), *describe_advice(advised))
    return Explanation(name, lines, advised, injection, assumed.injection if assumed else None)


def _advice(injection: Injection, assumed: Assumed | None) -> tuple[str, ...]:
    advised = wording.advice(injection.decision)
    if assumed is None or assumed.injection.decision.outcome is not Outcome.UNCHANGED:
        return advised
    return tuple(dict.fromkeys((*advised, *wording.advice(assumed.injection.decision))))


def _stuck_advice(status: Status, catalog: Store, settings: Settings) -> list[str]:
    """Return the advice for a pinned pod that can't be scheduled. Empty for any other pod."""
    machine = status.machine
    pod = machine.manifest
    pin = read_pin(pod) if pod else None
    if pod is None or pin is None or not pin.unschedulable_since:
        return []
    namespace, after = text(pod, "metadata", "namespace"), settings.release_after
    obstacle = why_pin_fails(pod, namespace, catalog, settings, after)
    if obstacle and status.start and status.start.decision.node == pin.node and status.start.future is Future.PINNED:
        return []  # a restart would pin it there again
    problem = f"but {pin.node} {obstacle.detail}" if obstacle else "but not scheduled there yet"
    advised = [f"The pod is pinned to {pin.node}, {problem}."]
    if obstacle and obstacle.reason in GUARD_REASONS:
        advised.append(wording.ADVICE[obstacle.reason])
    restart = wording.restart_advice(namespace, pin.vm, machine.strategy)
    vm, vmi = catalog.virtual_machine(namespace, pin.vm), catalog.vmi(namespace, pin.vm)
    if kept := why_kept(vm, vmi, 0, settings):
        return [
            *advised,
            f"The webhook does not delete the pod, because {kept}.",
            f"{restart[0].upper()}{restart[1:]}.",
        ]
    seconds = after if obstacle else PENDING_LIMIT
    return [
        *advised,
        f"If releasing pins is enabled, the webhook deletes the pod after {seconds} s, and KubeVirt restarts the VM.",
        f"To release the VM immediately, {restart}.",
    ]
