"""The output of `explain`: each step of a placement decision as lines of text."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from webhook.commands.explain.walk import Answer, ClaimPath, Guard, VolumeUsers, Walk
from webhook.fleet.states import Status
from webhook.placement.affinity import CO_SCHEDULED_NODE, DECISION
from webhook.placement.guard.feasibility import FailedCheck
from webhook.placement.injector import Injection
from webhook.placement.objects.facts import PendingPin, Pod
from webhook.placement.objects.fields import JsonObject, mapping, mappings, text
from webhook.placement.objects.resources import format_quantity
from webhook.placement.reasons import COLD_REASONS, GUARD_REASONS, Outcome, Reason
from webhook.placement.settings import Action, Settings
from webhook.placement.votes import Choice
from webhook.placement.wording import ADVICE, restart_advice

YES, NO, NEUTRAL = "✓", "✗", "·"

SCHEDULER_NAME_PATH = "/spec/schedulerName"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of output: a heading (level 0), or a finding below it.

    `mark` is the answer to a question, empty if the line answers none. Parentheses mark an answer that did not affect
    the decision.
    """

    words: str
    mark: str = ""
    level: int = 1


@dataclass(frozen=True, slots=True)
class Assumed:
    """The decision on a pod as if it broke none of the rules in `broken`."""

    injection: Injection
    broken: tuple[Reason, ...]


def describe_placement(pod: JsonObject) -> Iterator[str]:
    """Describe where a pod is, the scheduler's report, and the webhook's decision at its creation."""
    node, phase = text(pod, "spec", "nodeName"), text(pod, "status", "phase") or "no phase"
    yield f"pod {text(pod, 'metadata', 'name')}: {phase}, {f'on {node}' if node else 'not bound to a node'}"
    for condition in mappings(pod, "status", "conditions"):
        if (condition.get("type"), condition.get("status")) == ("PodScheduled", "False"):
            yield f"the scheduler reports: {text(condition, 'message')}"
    annotations = mapping(pod, "metadata", "annotations")
    yield f"decision at creation: {text(annotations, DECISION) or 'none (no annotation)'}"
    if target := text(annotations, CO_SCHEDULED_NODE):
        yield f"target node at creation: {target}{' (the pod runs there)' if target == node else ''}"


def describe_state(status: Status) -> Iterator[str]:
    """Describe where a VM is relative to its storage."""
    if status.machine.paused:
        yield "the VM is paused"
    if status.machine.migrating:
        yield "a live migration is in progress"
    words = f"{status.state}, {status.reason}" if status.reason else f"{status.state}"
    served = f": {status.storage_node} serves claim {status.claim}" if status.storage_node else ""
    yield f"{words}{served}"


def describe_walk(walk: Walk, pod: str = "the pod") -> Iterator[Line]:
    """Yield the lines for each step of the walk; `pod` is the name of the pod in sentences."""
    yield Line(f"Does the webhook handle {pod}?", level=0)
    yield from map(_answer, walk.rules)
    if walk.assumes:
        yield Line(f"the next steps assume that the pod is {_eligible(walk.assumes)}", NEUTRAL)
    if walk.chains:
        yield Line("Which nodes serve the claims?", level=0)
        for chain in walk.chains:
            yield from _claim_path(chain)
    if walk.served:
        yield Line("Which VMs use the volume?", level=0)
        yield from _volume_consumers(walk.served)
    if walk.choice:
        yield Line("Which node is the target?", level=0)
        yield from _votes(walk, walk.choice)
    for guard in walk.guards:
        yield Line(f"Can {guard.node} run the pod?", level=0)
        yield from _guard(guard)


def _eligible(broken: Iterable[Reason]) -> str:
    words = {Reason.NOT_OPTED_IN: "opted in", Reason.MIGRATION_TARGET: "not a live-migration target"}
    return " and ".join(words[reason] for reason in broken)


def describe_decision(injection: Injection, settings: Settings, assumed: Assumed | None = None) -> Iterator[Line]:
    """Yield the lines for the decision, the effect of its patch, and the warnings."""
    decision = injection.decision
    yield Line("Decision", level=0)
    yield Line(f"{decision.outcome}, {decision.reason}: {decision.message}")
    if assumed:
        would_be = assumed.injection.decision
        yield Line(f"if {_eligible(assumed.broken)}: {would_be.outcome}, {would_be.reason}: {would_be.message}")
    yield Line(f"Patch: {_patch_effect(injection, settings)}")
    for warning in injection.warnings:
        if decision.message[:30] not in warning:  # the decision line above has the full text
            yield Line(f"Warning: {warning}")


def describe_advice(advice: Iterable[str]) -> Iterator[Line]:
    """Yield the lines of advice."""
    yield Line("What to do", level=0)
    yield from map(Line, advice)


def stuck_advice(namespace: str, pin: PendingPin, obstacle: FailedCheck | None, kept: str, after: int) -> list[str]:
    """Return the advice for a pinned pod that the scheduler can't place.

    `obstacle` is why the pin can't hold, None if the node seems able to run the pod. `kept` is why the webhook doesn't
    delete the pod, empty if it deletes the pod after `after` seconds.
    """
    problem = f"but {pin.node} {obstacle.detail}" if obstacle else "but not scheduled there yet"
    sentences = [f"The pod is pinned to {pin.node}, {problem}."]
    if obstacle and obstacle.reason in GUARD_REASONS:
        sentences.append(ADVICE[obstacle.reason])
    restart = restart_advice(namespace, pin.vm)
    if kept:
        return [*sentences, f"The webhook does not delete the pod, because {kept}.", _sentence(restart)]
    return [
        *sentences,
        f"If releasing pins is enabled, the webhook deletes the pod after {after} s, and KubeVirt restarts the VM.",
        f"To release the VM immediately, {restart}.",
    ]


def _sentence(clause: str) -> str:
    return f"{clause[0].upper()}{clause[1:]}."


def _answer(answer: Answer) -> Line:
    mark = NEUTRAL if answer.holds is None else YES if answer.holds else NO
    words = f"{answer.question}: {answer.detail}" if answer.detail else answer.question
    return Line(words, mark if answer.decisive else f"({mark})")


def _claim_path(chain: ClaimPath) -> Iterator[Line]:
    finding, claim = chain.finding, chain.claim
    path = [f"claim {finding.claim}"]
    if claim and claim.volume_name:
        path.append(f"PV {claim.volume_name}{'' if chain.volume else ' (unknown)'}")
    if finding.volume:
        path.append(f"volume {finding.volume}")
    yield Line(" → ".join(path), NEUTRAL)
    for pod in chain.servers:
        yield Line(f"share-manager pod {pod.name}: {_location(pod)}", NEUTRAL, 2)
    if chain.manager:
        state, owner = chain.manager.state or "no state yet", chain.manager.owner or "no node"
        yield Line(
            f"ShareManager: {state}, owned by {owner}{', being deleted' if chain.manager.deleting else ''}", NEUTRAL, 2
        )
    if finding.reason:
        mark = NEUTRAL if finding.reason in COLD_REASONS else NO
        yield Line(f"{finding.reason}. {ADVICE[finding.reason]}", mark, 2)
    if finding.node and finding.reason:
        yield Line(
            f"{finding.node} runs other VMs of the volume, so the webhook steers the share-manager there", NEUTRAL, 2
        )
    elif finding.node:
        yield Line(f"served by {finding.node} (source: {finding.source})", YES, 2)


def _location(pod: Pod) -> str:
    location = f"on {pod.node}" if pod.node else "not bound to a node"
    return location if pod.alive else f"{location}, terminating or not running"


def _volume_consumers(served: VolumeUsers) -> Iterator[Line]:
    for pv in served.pvs:
        claim = f"claim {'/'.join(pv.claim)}" if pv.claim else "no claimRef"
        yield Line(f"volume {served.volume} → PV {pv.name} → {claim}", NEUTRAL)
    if not served.pvs:
        yield Line(f"volume {served.volume} → no known PV", NEUTRAL)
    for pod in served.mounting:
        has_vote = pod in served.consumers
        exclusion = "" if has_vote else "; no vote: the pod must be opted in, bound, and Pending or Running"
        yield Line(f"{'/'.join(pod.key)}: {_location(pod)}{exclusion}", YES if has_vote else NO, 2)
    if not served.mounting:
        yield Line("no virt-launcher pod mounts the volume", NO, 2)
    for node in sorted(served.avoided):
        yield Line(f"the pod prefers to avoid {node}", NEUTRAL, 2)


def _votes(walk: Walk, choice: Choice) -> Iterator[Line]:
    votes: defaultdict[str, list[str]] = defaultdict(list)
    for chain in walk.chains:
        if chain.finding.node:
            votes[chain.finding.node].append(f"claim {chain.finding.claim}")
    for pod in walk.served.consumers if walk.served else ():
        votes[pod.node].append(f"VM pod {'/'.join(pod.key)}")
    for node in sorted(votes, key=lambda name: (choice.node, *choice.others, name).index(name)):
        has_vote = node in (choice.node, *choice.others)
        mark = YES if node == choice.node else NO
        yield Line(f"{node}: {', '.join(votes[node])}{'' if has_vote else ' (no vote)'}", mark)


def _guard(guard: Guard) -> Iterator[Line]:
    yield from map(_answer, guard.answers)
    if not all(answer.decisive for answer in guard.answers):
        yield Line("Parentheses mark checks that did not affect the decision.")
    if guard.resource_fits:
        yield Line(f"Does {guard.node} have enough free resources?", level=0)
    for fit in guard.resource_fits:
        requested, free = format_quantity(fit.resource, fit.requested), format_quantity(fit.resource, max(fit.free, 0))
        yield Line(f"{fit.resource}: requested {requested}, free {free}", YES if fit.requested <= fit.free else NO)


def _patch_effect(injection: Injection, settings: Settings) -> str:
    if settings.action is Action.OBSERVE:
        return "none, because the webhook only observes, or is not called"
    if not injection.patch:
        return "none, the pod stays unchanged"
    decision, paths = injection.decision, [operation["path"] for operation in injection.patch]
    effects = []
    if any(path.startswith("/spec/affinity") for path in paths):
        verb = "requires and prefers" if decision.outcome is Outcome.PINNED else "prefers"
        effects.append(f"{verb} {decision.node}")
    effects.extend(
        f"sets schedulerName to {operation['value']}"
        for operation in injection.patch
        if operation["path"] == SCHEDULER_NAME_PATH
    )
    if any(path.startswith("/metadata/annotations") for path in paths):
        effects.append("records the decision in the annotations")
    return f"{', '.join(effects)} ({len(paths)} {'operation' if len(paths) == 1 else 'operations'})"
