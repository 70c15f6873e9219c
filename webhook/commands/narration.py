"""The walk to a decision in words, line by line."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from webhook.placement.catalog import Pod
from webhook.placement.decision import Outcome
from webhook.placement.injector import Injection
from webhook.placement.resolve import Choice
from webhook.placement.resources import format_quantity
from webhook.placement.settings import Action, Settings
from webhook.placement.walk import Answer, Chain, Guard, Served, Walk
from webhook.placement.wording import ADVICE

YES, NO, SO = "✓", "✗", "·"

SCHEDULER = "/spec/schedulerName"


@dataclass(frozen=True, slots=True)
class Line:
    """A line: the head of a station (level 0), or what was found there, with a mark where a question was answered.

    A mark in brackets decided nothing.
    """

    words: str
    mark: str = ""
    level: int = 1


def narrate(walk: Walk) -> Iterator[Line]:
    """Tell each station of a walk."""
    yield Line("Is the pod ours?", level=0)
    yield from map(_answer, walk.rules)
    if walk.chains:
        yield Line("Which nodes serve its claims?", level=0)
        for chain in walk.chains:
            yield from _chain(chain)
    if walk.served:
        yield Line("Which VMs use its volume?", level=0)
        yield from _served(walk.served)
    if walk.choice:
        yield Line("Which node is meant?", level=0)
        yield from _votes(walk, walk.choice)
    if walk.guard:
        yield Line(f"Could {walk.guard.node} take the pod?", level=0)
        yield from _guard(walk.guard)


def conclude(injection: Injection, settings: Settings) -> Iterator[Line]:
    """Tell the decision, what its patch does, and what to do when it is not the one that was wanted."""
    decision = injection.decision
    yield Line("Decision", level=0)
    yield Line(f"{decision.outcome}, {decision.reason}: {decision.message}")
    yield Line(f"Patch: {_effect(injection, settings)}")
    for warning in injection.warnings:
        if decision.message[:30] not in warning:  # which stands above, and at its full length
            yield Line(f"Warning: {warning}")
    yield Line("What to do", level=0)
    yield Line(ADVICE[decision.reason])


def _answer(answer: Answer) -> Line:
    mark = SO if answer.holds is None else YES if answer.holds else NO
    words = f"{answer.question} {answer.detail}" if answer.detail else answer.question
    return Line(words, mark if answer.decisive else f"({mark})")


def _chain(chain: Chain) -> Iterator[Line]:
    finding, claim = chain.finding, chain.claim
    way = [f"claim {finding.claim}"]
    if claim and claim.volume_name:
        way.append(f"PV {claim.volume_name}{'' if chain.volume else ' (not known)'}")
    if finding.volume:
        way.append(f"volume {finding.volume}")
    yield Line(" → ".join(way), SO)
    for pod in chain.servers:
        yield Line(f"share-manager pod {pod.name}: {_whereabouts(pod)}", SO, 2)
    if chain.manager:
        state, owner = chain.manager.state or "without a state", chain.manager.owner or "nobody"
        yield Line(f"ShareManager: {state}, owned by {owner}{', deleted' if chain.manager.deleting else ''}", SO, 2)
    if finding.reason:
        yield Line(f"{finding.reason}. {ADVICE[finding.reason]}", NO, 2)
    else:
        yield Line(f"{finding.node}, says the {finding.source}", YES, 2)


def _whereabouts(pod: Pod) -> str:
    place = f"on {pod.node}" if pod.node else "not bound to a node"
    return place if pod.alive else f"{place}, terminating or not running"


def _served(served: Served) -> Iterator[Line]:
    way = [f"volume {served.volume}", f"PV {served.pv.name}" if served.pv else "no PV that is known"]
    if served.pv:
        way.append(f"claim {'/'.join(served.pv.claim)}" if served.pv.claim else "no claimRef")
    yield Line(" → ".join(way), SO)
    for pod in served.mounting:
        counts = pod in served.consumers
        why = "" if counts else "; it has no vote unless it is opted in, bound, and Pending or Running"
        yield Line(f"{'/'.join(pod.key)}: {_whereabouts(pod)}{why}", YES if counts else NO, 2)
    if not served.mounting:
        yield Line("no virt-launcher pod mounts it", NO, 2)
    for node in sorted(served.avoided):
        yield Line(f"the pod prefers not to be on {node}", SO, 2)


def _votes(walk: Walk, choice: Choice) -> Iterator[Line]:
    votes: defaultdict[str, list[str]] = defaultdict(list)
    for chain in walk.chains:
        if chain.finding.node:
            votes[chain.finding.node].append(f"claim {chain.finding.claim}")
    for pod in walk.served.consumers if walk.served else ():
        votes[pod.node].append(f"VM pod {'/'.join(pod.key)}")
    for node in sorted(votes, key=lambda name: (choice.node, *choice.others, name).index(name)):
        counts = node in (choice.node, *choice.others)
        mark = YES if node == choice.node else NO
        yield Line(f"{node}: {', '.join(votes[node])}{'' if counts else ' (without a vote)'}", mark)


def _guard(guard: Guard) -> Iterator[Line]:
    yield from map(_answer, guard.answers)
    if not all(answer.decisive for answer in guard.answers):
        yield Line("In brackets: it decided nothing. The guard is off, the mode is preferred, or an earlier ✗ decided.")
    if guard.resource_fits:
        yield Line(f"What the pod asks for, and what is free on {guard.node}", level=0)
    for room in guard.resource_fits:
        asked, free = format_quantity(room.resource, room.requested), format_quantity(room.resource, max(room.free, 0))
        yield Line(f"{room.resource}: {asked} of {free}", YES if room.requested <= room.free else NO)


def _effect(injection: Injection, settings: Settings) -> str:
    if settings.action is Action.OBSERVE:
        return "none is sent, because CO_SCHEDULE_ACTION is observe"
    if not injection.patch:
        return "none, the pod stays as it is"
    decision, places = injection.decision, [operation["path"] for operation in injection.patch]
    effects = []
    if any(place.startswith("/spec/affinity") for place in places):
        verb = "requires and prefers" if decision.outcome is Outcome.PINNED else "prefers"
        effects.append(f"{verb} {decision.node}")
    effects.extend(f"sets schedulerName to {one['value']}" for one in injection.patch if one["path"] == SCHEDULER)
    if any(place.startswith("/metadata/annotations") for place in places):
        effects.append("says so in the annotations")
    return f"{', '.join(effects)} ({len(places)} {'operation' if len(places) == 1 else 'operations'})"
