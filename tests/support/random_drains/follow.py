"""Follows what the tools say of a fleet, command by command."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any, NamedTuple

from tests.support.random_drains.design import Mode, Plan
from tests.support.random_drains.fleet import Fleet
from tests.support.random_drains.happened import Span, disagreements, effects, place

DRAIN = "--ignore-daemonsets --delete-emptydir-data"
SETTLED_BEFORE = (
    "kubectl drain",
    "kubectl uncordon",
    "kubevirt-scheduler recolocate",
)  # "when the VMs have migrated", "once they run"
# Seconds for a drain that waits for something, and for one that should end. kubectl tries again every 5 s.
BLOCKED, UNBLOCKED = 12, 120
CONDITION = re.compile(r"if it runs on (\S+(?: or \S+)*):")


class Step(NamedTuple):
    """A command of an order, and its comment."""

    command: str
    comment: str = ""


def follow(fleet: Fleet, counts: Counter[str]) -> list[str]:
    """Ask, do what is said, and return in what the answer and the cluster disagree. Count what has happened."""
    fleet.settle()
    counts[fleet.design.mode.name] += 1
    return list(_FOLLOW[fleet.design.mode](fleet, counts))


def _follow_drain(fleet: Fleet, counts: Counter[str]) -> Iterator[str]:
    drained, in_order = fleet.nodes[: fleet.design.drained], fleet.design.mode is Mode.IN_ORDER
    rolling = " --rolling" if len(drained) > 1 else ""
    counts["rolling"] += bool(rolling)
    counts["hotplugged"] += sum(bool(vm.hotplugged) for vm in fleet.design.vms)
    answer = fleet.ask(f"kubevirt-scheduler drain-check {' '.join(drained)}{rolling} -o json")
    said = answer["inOrder"] if in_order else answer
    kinds = ("cordon {}", f"drain {{}} {DRAIN}", "uncordon {}")
    steps = [Step(f"kubectl {kind.format(node)}") for node in drained for kind in kinds]
    if in_order:
        steps = [Step(step["command"], step["comment"]) for step in answer["order"]]
    blocked = {event["step"] for vm in said["vms"] for event in vm["events"] if event["effect"] == "Blocks"}
    spans = list(_taken(fleet, steps, range(len(steps)) if said["obstacles"] else blocked))
    if in_order and not all(span.ended for span in spans):
        yield "a drain did not end"
    for span in spans:
        if not span.ended and not blocked & set(span.steps) and not said["obstacles"]:
            yield f"the drain of {span.drained} did not end, which nothing has announced"
    yield from fleet.failures
    about = {vm["name"]: vm for vm in said["vms"] if vm["namespace"] == fleet.namespace}
    nothing = {"events": [], "after": None, "targets": [], "text": "", "why": ""}
    for vm in fleet.design.vms:
        words = about.get(vm.name, nothing)
        yield from (f"{vm.name}: {each}" for each in disagreements(fleet, vm, words, spans, counts))
        yield from _wrong_targets(fleet, vm, words, spans)


def _wrong_targets(fleet: Fleet, vm: Plan, words: Any, spans: list[Span]) -> Iterator[str]:
    (event,) = words["events"] if len(words["events"]) == 1 else [{"effect": "", "may": True}]
    if event["effect"] in ("Migrates", "Restarts") and not event["may"] and words["targets"]:
        end = next(span.end for span in spans if event["step"] in span.steps)
        now = fleet.vm_at(vm, end)
        if now and now.node_at(end) not in words["targets"]:
            yield f"{vm.name}: said to {words['targets']}; it is on {now.node_at(end)}"


def _taken(fleet: Fleet, steps: list[Step], blocked: Container[int]) -> Iterator[Span]:
    """Take the steps, and yield the spans between the times at which nothing changed. Some steps may wait for ever."""
    begun, begin, drained, ended = 0, time.monotonic(), "", True
    for index, step in enumerate(steps):
        if step.command.startswith("kubectl drain"):
            drained = step.command.split()[2]
            timeout = BLOCKED if index in blocked else UNBLOCKED
            ended = fleet.run(f"{step.command} --timeout={timeout}s") == 0
        elif _applies(fleet, step):
            fleet.do(f"{step.command}{' --settle 1' * ('recolocate' in step.command)}")
        else:
            fleet.log.append(f"# not needed: {step.command}  # {step.comment}")
        following = steps[index + 1].command if index + 1 < len(steps) else ""
        if step.command.startswith("kubectl cordon") and begun == index:
            continue  # which changes nothing by itself
        waits = index + 1 < len(steps) and steps[index + 1].comment.startswith("once ")
        if not following or waits or following.startswith(SETTLED_BEFORE) or step.command.startswith(SETTLED_BEFORE):
            end = fleet.settle()
            yield Span(range(begun, index + 1), begin, end, drained, ended)
            begun, begin, drained, ended = index + 1, end, "", True


def _applies(fleet: Fleet, step: Step) -> bool:
    """Return whether the condition in the comment of a step is fulfilled."""
    vm = next((vm for vm in fleet.design.vms if f" {vm.name} " in f"{step.command} "), None)
    if vm is None or not step.comment.startswith("if "):
        return True
    if step.comment.startswith("if it is stopped"):
        return fleet.vm_at(vm, fleet.settle()) is None
    condition, now = CONDITION.match(step.comment), fleet.vm_at(vm, fleet.settle())
    assert condition, step
    return now is not None and now.node_at(time.monotonic()) in condition[1].split(" or ")


def _follow_report(fleet: Fleet, counts: Counter[str]) -> Iterator[str]:
    """Restart the VMs that the report counts, opt in before where it says so, and look where they are."""
    report = fleet.ask(f"kubevirt-scheduler report -n {fleet.namespace} -o json")
    vms = [vm for vm in report["vms"] if vm["state"] == "Apart" and vm["ifStarted"] and vm["ifStarted"]["together"]]
    if len(vms) != report["summary"]["togetherAfterRestart"]:
        yield f"said {report['summary']['text']}, of {len(vms)} VMs"
    for vm in vms:
        named = f"{vm['name']} -n {fleet.namespace}"
        strategy = next(each.run for each in fleet.design.vms if each.name == vm["name"])
        if vm["ifStarted"]["stoppedBy"]:
            fleet.do(f"kubevirt-scheduler opt-in {named} --yes")
        if vm["ifStarted"]["stopFirst"]:
            fleet.do(f"virtctl stop {named}")
            fleet.settle()
            once = f'kubectl patch vm {named} --type merge -p \'{{"spec":{{"runStrategy":"Once"}}}}\''
            fleet.do(once if strategy == "Once" else f"virtctl start {named}")
        else:
            fleet.do(f"{'kubectl delete vmi' if strategy == 'Once' else 'virtctl restart'} {named}")
        fleet.settle()
    yield from fleet.failures
    yield from _wrong_places(fleet, (vm["name"] for vm in vms), "report: together after a restart", counts)


def _follow_recolocate(fleet: Fleet, counts: Counter[str]) -> Iterator[str]:
    """Do what the plan says, then restart what it lists."""
    command, begin = f"kubevirt-scheduler recolocate -n {fleet.namespace}", time.monotonic()
    plan = [json.loads(line) for line in fleet.lines(f"{command} -o json") if line.startswith("{")]
    moves = [each["name"] for each in plan if each["action"] == "migrate"]
    if fleet.run(f"{command} --yes --settle 1"):
        yield "recolocate failed"
    span = Span(range(1), begin, fleet.settle())
    happened = {vm.name: effects(fleet, vm, span) for vm in fleet.design.vms}
    if unplanned := {
        name: found for name, found in happened.items() if found != ({"Migrates"} if name in moves else set())
    }:
        yield f"planned to migrate {moves}; happened {unplanned}"
    yield from _wrong_places(fleet, moves, "recolocate: migrates", counts)
    lines = [line for line in fleet.lines(f"{command} --restart-list") if " -n " in line]
    for line in lines:
        fleet.do(line.partition("  #")[0])
        fleet.settle()
    yield from fleet.failures
    listed = [line.partition("  #")[0].split(" -n ")[0].split()[-1] for line in lines]
    yield from _wrong_places(fleet, listed, "recolocate: needs a restart", counts)


def _wrong_places(fleet: Fleet, names: Iterable[str], said: str, counts: Counter[str]) -> Iterator[str]:
    now = time.monotonic()
    vms = {vm.name: vm for vm in fleet.design.vms}
    for name in names:
        counts[said] += 1
        if (found := place(fleet, vms[name], now)) != "Together":
            yield f"{name}: {said}; it is {found}"


_FOLLOW: dict[Mode, Callable[[Fleet, Counter[str]], Iterator[str]]] = {
    Mode.AT_ONCE: _follow_drain,
    Mode.IN_ORDER: _follow_drain,
    Mode.RESTART: _follow_report,
    Mode.RECOLOCATE: _follow_recolocate,
}
