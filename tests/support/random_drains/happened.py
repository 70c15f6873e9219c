"""What a VM went through in a span of steps, in the words of `drain-check`, and in what the words were wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple

from tests.support.live_view import Life
from tests.support.random_drains.design import Plan
from tests.support.random_drains.fleet import Fleet

# A virt-launcher pod needs so many seconds to mount an NFS share. Here, it runs at once.
MOUNTING = 10.0


class Span(NamedTuple):
    """Steps between two times at which nothing changed."""

    steps: range
    begin: float
    end: float
    drained: str = ""  # the node that one of the steps drains
    ended: bool = True  # the drain has ended


def effects(fleet: Fleet, vm: Plan, span: Span) -> set[str]:
    """Return what has happened to a VM in a span."""
    before, after = fleet.vm_at(vm, span.begin), fleet.vm_at(vm, span.end)
    instances = [life for life in fleet.instances(vm) if life.end > span.begin and life.begin <= span.end]
    found = set[str]()
    if any(span.begin < at <= span.end for life in instances for at, _ in life.nodes[1:]):
        found.add("Migrates")
    if before and any(life.begin > span.begin for life in instances):
        found.add("Restarts")
    if before and not after:
        found.add("Stops")
    if any(_pauses(life, fleet.servers(claim), span) for life in instances for claim in vm.claims):
        found.add("IOPauses")
    hung = before and after and before.uid == after.uid and _hangs(fleet, vm, span.begin)
    if after and _hangs(fleet, vm, span.end) and not hung:
        found.add("IOHangs")
    if after and span.drained == after.node_at(span.end) and not span.ended:
        found.add("Blocks")
    return found


def _pauses(instance: Life, servers: Sequence[Life], span: Span) -> bool:
    """Return whether an instance has lost a share-manager and got another one."""
    for old, new in pairwise(servers):
        used = instance.begin <= span.begin or old.end > instance.begin + MOUNTING
        lost = span.begin < old.end <= span.end and instance.runs_at(old.end) and used
        if lost and new.begin <= span.end and instance.runs_at(new.begin):
            return True
    return False


def _hangs(fleet: Fleet, vm: Plan, moment: float) -> bool:
    return not fleet.is_served(vm, moment)


def place(fleet: Fleet, vm: Plan, moment: float) -> str:
    """Return where a VM with claims is then, relative to its storage."""
    now, server = fleet.vm_at(vm, moment), fleet.server_at(vm.claims[0], moment)
    if not now:
        return "Stopped"
    return "Together" if server and server.node_at(moment) == now.node_at(moment) else "Apart"


def disagreements(fleet: Fleet, vm: Plan, said: Any, spans: Sequence[Span], counts: Counter[str]) -> Iterator[str]:
    """Yield in what the words about a VM are wrong. Count what has happened."""
    for span in spans:
        happened = effects(fleet, vm, span)
        events = [each for each in said["events"] if each["step"] in span.steps]
        can, must = {each["effect"] for each in events}, {each["effect"] for each in events if not each["may"]}
        if not must <= happened <= can:
            words = f"{_words(events)} ({said['text']}: {said['why']})"
            yield f"steps {span.steps}: said {words}; happened {sorted(happened)}"
        counts.update(happened)
        counts.update(f"may {each}" for each in can - must)
    for event in said["events"]:
        if event["until"] and not event["may"]:
            yield from _wrong_ends(fleet, vm, event, spans)
    if vm.claims and said["after"]:
        now = place(fleet, vm, spans[-1].end)
        may_stop = any(each["effect"] == "Stops" for each in said["events"])  # until somebody acts
        right = may_stop if now == "Stopped" else said["after"] == "MayBeApart"
        if said["after"] != now and not right:
            yield f"said {said['after']} afterwards; it is {now}"
        counts[now] += 1


def _words(events: Sequence[Any]) -> str:
    return ", ".join(f"{'may ' * each['may']}{each['effect']}" for each in events) or "nothing"


def _wrong_ends(fleet: Fleet, vm: Plan, event: Any, spans: Sequence[Span]) -> Iterator[str]:
    """Yield if an effect that lasts has ended earlier or later than said."""
    if event["effect"] == "Blocks":
        return
    begun = next(index for index, span in enumerate(spans) if event["step"] in span.steps)
    ends = inf
    if event["untilStep"] is not None:
        ends = next(index for index, span in enumerate(spans) if event["untilStep"] in span.steps)
    for index, span in enumerate(spans[begun:], begun):
        over = bool(fleet.vm_at(vm, span.end)) if event["effect"] == "Stops" else not _hangs(fleet, vm, span.end)
        if event["effect"] == "IOHangs" and not fleet.vm_at(vm, span.end):
            return
        if over is not (index >= ends):
            words = f"said {event['effect']} until {event['until']}"
            yield f"{words}; after steps {span.steps}, that is {'over' if over else 'not over'}"
        if over or index >= ends:  # it may happen again
            return
