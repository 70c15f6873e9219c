"""The output of `explain`: each step of a placement decision as lines of text."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from webhook.placement.catalog import PendingPin, Pod
from webhook.placement.decision import GUARD_REASONS, Outcome
from webhook.placement.feasibility import FailedCheck
from webhook.placement.injector import Injection
from webhook.placement.resources import format_quantity
from webhook.placement.settings import Action, Settings
from webhook.placement.votes import Choice
from webhook.placement.walk import Answer, ClaimPath, Guard, VolumeUsers, Walk
from webhook.placement.wording import ADVICE, advice, restart_advice

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


def describe_walk(walk: Walk) -> Iterator[Line]:
    """Yield the lines for each step of the walk."""
    yield Line("Is the pod ours?", level=0)
    yield from map(_answer, walk.rules)
    if walk.chains:
        yield Line("Which nodes serve its claims?", level=0)
        for chain in walk.chains:
            yield from _claim_path(chain)
    if walk.served:
        yield Line("Which VMs use its volume?", level=0)
        yield from _volume_consumers(walk.served)
    if walk.choice:
        yield Line("Which node is meant?", level=0)
        yield from _votes(walk, walk.choice)
    for guard in walk.guards:
        yield Line(f"Could {guard.node} take the pod?", level=0)
        yield from _guard(guard)


def describe_decision(injection: Injection, settings: Settings, instead: Sequence[str] = ()) -> Iterator[Line]:
    """Yield the lines for the decision, the effect of its patch, the warnings and the advice.

    `instead` replaces the advice on the decision.
    """
    decision = injection.decision
    yield Line("Decision", level=0)
    yield Line(f"{decision.outcome}, {decision.reason}: {decision.message}")
    yield Line(f"Patch: {_patch_effect(injection, settings)}")
    for warning in injection.warnings:
        if decision.message[:30] not in warning:  # the decision line above has the full text
            yield Line(f"Warning: {warning}")
    yield Line("What to do", level=0)
    yield from map(Line, instead or advice(decision))


def stuck_advice(namespace: str, pin: PendingPin, obstacle: FailedCheck | None, kept: str, after: int) -> list[str]:
    """Return the advice for a pinned pod that the scheduler can't place.

    `obstacle` is why the pin can't hold, None if the node seems able to run the pod. `kept` is why the webhook doesn't
    delete the pod, empty if it deletes the pod `after` seconds.
    """
    problem = f" and can't be scheduled there: {obstacle.detail}" if obstacle else ", but is not scheduled there yet"
    sentences = [f"The pod is pinned to {pin.node}{problem}."]
    if obstacle and obstacle.reason in GUARD_REASONS:
        sentences.append(ADVICE[obstacle.reason])
    restart = restart_advice(namespace, pin.vm)
    if kept:
        return [*sentences, f"The webhook does not delete the pod, because {kept}: {restart}."]
    return [
        *sentences,
        f"If its release is on, the webhook deletes the pod after {after} s, and KubeVirt starts the VM again.",
        f"To have that at once, {restart}.",
    ]


def _answer(answer: Answer) -> Line:
    mark = NEUTRAL if answer.holds is None else YES if answer.holds else NO
    words = f"{answer.question} {answer.detail}" if answer.detail else answer.question
    return Line(words, mark if answer.decisive else f"({mark})")


def _claim_path(chain: ClaimPath) -> Iterator[Line]:
    finding, claim = chain.finding, chain.claim
    path = [f"claim {finding.claim}"]
    if claim and claim.volume_name:
        path.append(f"PV {claim.volume_name}{'' if chain.volume else ' (not known)'}")
    if finding.volume:
        path.append(f"volume {finding.volume}")
    yield Line(" → ".join(path), NEUTRAL)
    for pod in chain.servers:
        yield Line(f"share-manager pod {pod.name}: {_location(pod)}", NEUTRAL, 2)
    if chain.manager:
        state, owner = chain.manager.state or "without a state", chain.manager.owner or "nobody"
        yield Line(
            f"ShareManager: {state}, owned by {owner}{', deleted' if chain.manager.deleting else ''}", NEUTRAL, 2
        )
    if finding.reason:
        yield Line(f"{finding.reason}. {ADVICE[finding.reason]}", NO, 2)
    if finding.node and finding.reason:
        yield Line(f"{finding.node}: other VMs use the volume there, so the share-manager is steered there", NEUTRAL, 2)
    elif finding.node:
        yield Line(f"{finding.node}, says the {finding.source}", YES, 2)


def _location(pod: Pod) -> str:
    location = f"on {pod.node}" if pod.node else "not bound to a node"
    return location if pod.alive else f"{location}, terminating or not running"


def _volume_consumers(served: VolumeUsers) -> Iterator[Line]:
    for pv in served.pvs:
        claim = f"claim {'/'.join(pv.claim)}" if pv.claim else "no claimRef"
        yield Line(f"volume {served.volume} → PV {pv.name} → {claim}", NEUTRAL)
    if not served.pvs:
        yield Line(f"volume {served.volume} → no PV that is known", NEUTRAL)
    for pod in served.mounting:
        has_vote = pod in served.consumers
        exclusion = "" if has_vote else "; it has no vote unless it is opted in, bound, and Pending or Running"
        yield Line(f"{'/'.join(pod.key)}: {_location(pod)}{exclusion}", YES if has_vote else NO, 2)
    if not served.mounting:
        yield Line("no virt-launcher pod mounts it", NO, 2)
    for node in sorted(served.avoided):
        yield Line(f"the pod prefers not to be on {node}", NEUTRAL, 2)


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
        yield Line(f"{node}: {', '.join(votes[node])}{'' if has_vote else ' (without a vote)'}", mark)


def _guard(guard: Guard) -> Iterator[Line]:
    yield from map(_answer, guard.answers)
    if not all(answer.decisive for answer in guard.answers):
        yield Line("In brackets: it decided nothing. The guard is off, the mode is preferred, or an earlier ✗ decided.")
    if guard.resource_fits:
        yield Line(f"What the pod asks for, and what is free on {guard.node}", level=0)
    for fit in guard.resource_fits:
        requested, free = format_quantity(fit.resource, fit.requested), format_quantity(fit.resource, max(fit.free, 0))
        yield Line(f"{fit.resource}: {requested} of {free}", YES if fit.requested <= fit.free else NO)


def _patch_effect(injection: Injection, settings: Settings) -> str:
    if settings.action is Action.OBSERVE:
        return "none is sent, because CO_SCHEDULE_ACTION is observe"
    if not injection.patch:
        return "none, the pod stays as it is"
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
        effects.append("says so in the annotations")
    return f"{', '.join(effects)} ({len(paths)} {'operation' if len(paths) == 1 else 'operations'})"
