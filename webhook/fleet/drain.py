"""What a drain of nodes does to VMs, and in which order to prepare it: steps, a fold over them, and differences.

A drain cordons the nodes, evicts their pods and brings the nodes back. `fold` applies these steps to the cluster, one
after the other. What a step does to a VM is the difference between the state before it and the state after it.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import chain

from msgspec import Struct

from webhook.fleet.machine import Status
from webhook.fleet.simulation.course import Course, fold
from webhook.fleet.simulation.differences import events_of, events_of_pod
from webhook.fleet.simulation.events import Effect, Event, reasons_of
from webhook.fleet.simulation.obstacles import Obstacle, waiting_volumes
from webhook.fleet.simulation.order import RULES
from webhook.fleet.simulation.state import Phase, Site, State, Vm
from webhook.fleet.simulation.steps import Action, Step
from webhook.fleet.wording import migrate_command, restart_command, start_command, stop_command
from webhook.placement.objects.facts import Pod
from webhook.placement.objects.fields import is_dns_subdomain
from webhook.placement.reasons import ClaimFinding

_MILD = frozenset({Effect.MIGRATES, Effect.IO_PAUSES})
_MOVES = (Effect.MIGRATES, Effect.RESTARTS)
RECREATE = "; create it again from its manifest afterwards"
DRAIN = "--ignore-daemonsets --delete-emptydir-data"
COMMANDS = {Action.MIGRATE: migrate_command, Action.RESTART: restart_command, Action.STOP: stop_command}


class Affected(Struct, frozen=True):
    """A VM that a drain affects."""

    status: Status
    lost: tuple[ClaimFinding, ...]  # its claims that a drained node serves
    events: tuple[Event, ...]
    targets: tuple[str, ...]  # the nodes that can run it, if it runs on a drained one
    after: Vm
    together: bool | None  # whether it is beside its share-manager afterwards, None if that is uncertain

    @property
    def place(self) -> str:
        """Return where it is afterwards, relative to its storage. Empty if no share-manager serves it."""
        if not self.status.volume:
            return ""
        if self.after.phase is not Phase.RUNS:
            return "Stopped"
        return {True: "Together", False: "Apart", None: "MayBeApart"}[self.together]

    @property
    def effects(self) -> tuple[Effect, ...]:
        """Return what happens to it, in this order."""
        return tuple(dict.fromkeys(each.effect for each in self.events))

    @property
    def why(self) -> str:
        """Return the reasons of the events."""
        return reasons_of(self.events)

    @property
    def interrupted(self) -> bool:
        """Return whether the drain may interrupt the VM or take its disk away, or can't end before it is stopped."""
        return not _MILD.issuperset(self.effects)

    @property
    def surely_interrupted(self) -> bool:
        """Return whether no race decides about that."""
        return any(each.effect not in _MILD and not each.may for each in self.events)


class AffectedPod(Struct, frozen=True):
    """A pod of no VM, elsewhere, whose claim a drained node serves."""

    pod: Pod
    claim: str
    events: tuple[Event, ...]


class Drain(Struct, frozen=True):
    """What a drain of nodes does to VMs and to other pods elsewhere, and what it waits for."""

    nodes: tuple[str, ...]
    course: Course
    vms: tuple[Affected, ...]
    pods: tuple[AffectedPod, ...]
    obstacles: tuple[Obstacle, ...]

    @property
    def site(self) -> Site:
        """Return the cluster before it."""
        return self.course.states[0].site

    @property
    def is_safe(self) -> bool:
        """Return whether the drain ends, no VM is interrupted, and none is without its disk for longer than a pause."""
        return not any(each.interrupted for each in self.vms) and all(each.ends for each in self.obstacles)


def check_drain(site: Site, nodes: Collection[str], most: int | None = None, *, rolling: bool = False) -> Drain:
    """Return what a drain of these nodes does, all at once or one after the other.

    Name at most so many targets of each VM, None for all.
    """
    drained = tuple(dict.fromkeys(nodes))
    kinds = Action.CORDON, Action.DRAIN, Action.UNCORDON
    steps = (Step(kind, turn) for turn in turns(drained, rolling=rolling) for kind in kinds)
    return described(fold(Course((), (State.before(site, drained, most),)), steps), drained)


def order_drain(site: Site, nodes: Collection[str], *, rolling: bool = False) -> Drain:
    """Return a drain in the order that interrupts fewest VMs and ends."""
    drained = tuple(dict.fromkeys(nodes))
    course = Course((), (State.before(site, drained),))
    for turn in turns(drained, rolling=rolling):
        for rule in RULES:
            course = fold(course, rule(course.states[-1], turn))
    return described(course, drained)


def turns(nodes: tuple[str, ...], *, rolling: bool) -> list[tuple[str, ...]]:
    """Return the nodes that are drained together."""
    return [(node,) for node in nodes] if rolling else [nodes]


def described(course: Course, nodes: tuple[str, ...]) -> Drain:
    """Return what the steps do to each VM on the nodes, and to those whose disks these nodes serve."""
    first = course.states[0]
    events = {key: list(events_of(key, course)) for key in first.vms}
    vms = [_affected(vm, course, nodes, events[vm.key]) for vm in first.vms.values()]
    vms.sort(key=lambda each: (each.status.node not in nodes, each.status.machine.key))
    waits = (Obstacle("Pod", "/".join(key), why) for state in course.states for key, why in state.waits.items())
    volumes = chain.from_iterable(waiting_volumes(first.site, turn) for turn in _drained(course))
    return Drain(nodes, course, tuple(vms), tuple(_pods(course)), tuple(dict.fromkeys(chain(waits, volumes))))


def _drained(course: Course) -> Iterator[tuple[str, ...]]:
    return (step.nodes for step in course.steps if step.action is Action.DRAIN)


def _affected(vm: Vm, course: Course, nodes: Sequence[str], events: list[Event]) -> Affected:
    last = course.states[-1]
    lost = tuple(each for each in vm.status.claims if each.node in nodes and not each.reason)
    step = next((each.step for each in events if each.effect in _MOVES), None)
    later = course.states[step + 1].vms[vm.key].nodes if step is not None and vm.status.node in nodes else ()
    targets = tuple(node for node in later if node != vm.status.node)
    return Affected(vm.status, lost, tuple(events), targets, last.vms[vm.key], last.is_together(last.vms[vm.key]))


def _pods(course: Course) -> Iterator[AffectedPod]:
    """Yield the pods of no VM elsewhere whose claims are served by a drained node."""
    first = course.states[0]
    drained = {node for nodes in _drained(course) for node in nodes}
    for volume, server in first.servers.items():
        pods = first.other_users(volume) if not drained.isdisjoint(server.nodes) else ()
        for claim, pod in ((claim, pod) for claim, pod in pods if pod.node not in drained):
            yield AffectedPod(pod, claim, tuple(events_of_pod(pod, volume, course)))


def commands(drain: Drain) -> Iterator[tuple[str, str]]:
    """Yield the steps as commands, each with a comment."""
    waits = False
    starts = False
    for step, state in zip(drain.course.steps, drain.course.states, strict=False):
        nodes = " ".join(filter(is_dns_subdomain, step.nodes))
        machines = [state.vms[key].status.machine for key in step.vms]
        match step.action:
            case Action.RECOLOCATE:
                names = " ".join(each.name for each in machines)
                yield f"kubevirt-scheduler recolocate {names} -n {machines[0].namespace} --yes", step.why
            case Action.DRAIN:
                yield f"kubectl drain {nodes} {DRAIN}", "when the VMs have migrated" if waits else ""
            case Action.CORDON:
                yield f"kubectl cordon {nodes}", "once the VMs run" if starts else ""
            case Action.UNCORDON:
                yield f"kubectl uncordon {nodes}", step.why
            case Action.START:
                yield start_command(machines[0], halted=state.vms[step.vms[0]].halted), step.why
            case _:
                again = step.action is Action.STOP and not machines[0].is_vm
                yield COMMANDS[step.action](machines[0]), step.why + RECREATE * again
        waits = step.action is Action.MIGRATE or (waits and step.action is not Action.DRAIN)
        starts = step.action is Action.START or (starts and step.action is not Action.CORDON)
