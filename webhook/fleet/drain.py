"""What a drain of nodes does to VMs, and in which order to prepare it: steps, a fold over them, and differences.

A drain cordons the nodes, evicts their pods and brings the nodes back. `fold` applies these steps to the cluster, one
after the other. What a step does to a VM is the difference between the state before it and the state after it.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, pairwise

from msgspec import Struct
from msgspec.structs import replace

from webhook.fleet.nfs import deletes_pods
from webhook.fleet.relocation.rules import Move
from webhook.fleet.simulation.events import Effect, Event, reasons_of
from webhook.fleet.simulation.eviction import has_backup, why_not_migrated
from webhook.fleet.simulation.obstacles import Obstacle, waiting_volumes
from webhook.fleet.simulation.places import where
from webhook.fleet.simulation.plan import make_plan
from webhook.fleet.simulation.servers import NO_SERVER, is_servable, was_replaced
from webhook.fleet.simulation.state import Phase, Server, Site, State, Vm
from webhook.fleet.simulation.steps import (
    Action,
    Step,
    apply,
    targets_of,
)
from webhook.fleet.states import Status, assess
from webhook.fleet.wording import migrate_command, restart_command, start_command, stop_command
from webhook.placement.objects.facts import Key, Pod
from webhook.placement.objects.fields import is_dns_subdomain, text
from webhook.placement.objects.kubevirt import controller_of
from webhook.placement.reasons import ClaimFinding

_MILD = frozenset({Effect.MIGRATES, Effect.IO_PAUSES})
_MOVES = (Effect.MIGRATES, Effect.RESTARTS)
_LASTING = frozenset({Effect.IO_HANGS, Effect.STOPS, Effect.BLOCKS})
MAY_DELETE = "Longhorn may delete its pod once the new share-manager runs"
MAY_UNPLUG = "Longhorn may delete the pod that mounts its hotplugged disk, and KubeVirt creates it again"
RECREATE = "; create it again from its manifest afterwards"
DRAIN = "--ignore-daemonsets --delete-emptydir-data"
COMMANDS = {Action.MIGRATE: migrate_command, Action.RESTART: restart_command, Action.STOP: stop_command}


class Course(Struct, frozen=True):
    """Steps, and the states before, between and after them."""

    steps: tuple[Step, ...]
    states: tuple[State, ...]


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


def fold(course: Course, steps: Iterable[Step]) -> Course:
    """Apply steps to the last state of a course, one after the other."""
    for step in steps:
        course = Course((*course.steps, step), (*course.states, apply(course.states[-1], step)))
    return course


def turns(nodes: tuple[str, ...], *, rolling: bool) -> list[tuple[str, ...]]:
    """Return the nodes that are drained together."""
    return [(node,) for node in nodes] if rolling else [nodes]


# The order: each rule reads the state after the steps so far, and yields the next ones.


def _to_storage(state: State, nodes: Sequence[str]) -> Iterator[Step]:
    """Move VMs away from the nodes to their storage elsewhere."""
    here = _on(state, nodes)
    statuses = [assess(vm.machine, state.catalog, state.site.around.settings) for vm in here]
    elsewhere = [each for each in statuses if each.storage_node not in nodes]
    moves = [each for each in make_plan(elsewhere, state.catalog, state.site.around) if isinstance(each.result, Move)]
    yield from _recolocations(sorted(each.status.machine.key for each in moves), "to their storage")


def _recolocations(keys: Sequence[Key], why: str) -> Iterator[Step]:
    for namespace in dict.fromkeys(namespace for namespace, _ in keys):
        yield Step(Action.RECOLOCATE, vms=tuple(key for key in keys if key[0] == namespace), why=why)


def _cordon(_: State, nodes: Sequence[str]) -> Iterator[Step]:
    yield Step(Action.CORDON, tuple(nodes))


def _stop_diskless(state: State, nodes: Sequence[str]) -> Iterator[Step]:
    """Stop VMs whose disks no other node can serve."""
    lost = (volume for volume, server in state.servers.items() if not set(server.nodes).isdisjoint(nodes))
    unservable = {volume for volume in lost if not is_servable(volume, state)}
    for key, vm in state.vms.items() if unservable else ():
        if vm.phase is Phase.RUNS and not unservable.isdisjoint(vm.volumes) and _is_named(vm):
            yield Step(Action.STOP, vms=(key,), why=NO_SERVER)


def _migrate(state: State, nodes: Sequence[str]) -> Iterator[Step]:
    """Migrate VMs before the drain takes their share-managers, so that these follow them."""
    for vm in _on(state, nodes):
        if not has_backup(vm) and (targets := targets_of(vm, state).nodes):
            step = Step(Action.MIGRATE, tuple(nodes), (vm.key,), _if_there(vm, nodes) + where(targets))
            state = apply(state, step)
            yield step


def _restart_or_stop(state: State, nodes: Sequence[str]) -> Iterator[Step]:
    """Restart VMs for which the drain would wait, and stop those that nothing else helps."""
    drain = Step(Action.DRAIN, tuple(nodes))
    drained = apply(state, drain)
    for vm in _on(state, nodes):
        if step := _preparation(vm, state, drained, drain):
            state = apply(state, step)
            drained = apply(state, drain)
            yield step


def _preparation(vm: Vm, state: State, drained: State, drain: Step) -> Step | None:
    """Return the step that keeps a drain from waiting for a VM, or from parting it and its share-manager.

    `drained` is the state after the drain.
    """
    later = drained.vms[vm.key]
    refusal = drained.refused.get(vm.key)
    parts = later.starts > vm.starts and drained.is_together(later) is None
    if refusal is None and not parts:
        return None
    restart = Step(Action.RESTART, drain.nodes, (vm.key,), _if_there(vm, drain.nodes) + "it cannot migrate")
    restarted = apply(state, restart)
    if not can_restart(vm) or not restarted.vms[vm.key].nodes:
        stop = Step(Action.STOP, drain.nodes, (vm.key,), _if_there(vm, drain.nodes) + (refusal or ""))
        return stop if refusal is not None else None
    after = apply(restarted, drain)
    follows = after.is_together(after.vms[vm.key]) and not after.vms[vm.key].at_risk
    if refusal is None:
        restart = replace(restart, why=_if_there(vm, drain.nodes) + "so that its share-manager follows it")
    return restart if follows or refusal is not None else None


def _if_there(vm: Vm, nodes: Sequence[str]) -> str:
    """Return a condition if it is uncertain where the VM runs."""
    return "" if set(vm.nodes) <= set(nodes) else f"if it runs on {' or '.join(nodes)}: "


def _drain(_: State, nodes: Sequence[str]) -> Iterator[Step]:
    yield Step(Action.DRAIN, tuple(nodes))


def _uncordon(_: State, nodes: Sequence[str]) -> Iterator[Step]:
    yield Step(Action.UNCORDON, tuple(nodes), why="after the maintenance")


def _start(state: State, _: Sequence[str]) -> Iterator[Step]:
    """Start the VMs that have stopped."""
    for key, vm in state.vms.items():
        stopped = vm.phase is Phase.STOPPED or vm.may_stop
        if stopped and start_command(vm.status.machine, halted=vm.halted) and _is_named(vm):
            yield Step(Action.START, vms=(key,), why="" if vm.phase is Phase.STOPPED else "if it is stopped")


def _bring_back(state: State, _: Sequence[str]) -> Iterator[Step]:
    """Migrate VMs that may be apart from their storage by now."""
    apart = [vm for vm in state.vms.values() if vm.placed_at or _is_lost(vm, state)]
    apart = [vm for vm in apart if vm.phase is Phase.RUNS and vm.status.volume and not state.is_together(vm)]
    movable = (vm for vm in apart if not vm.status.opted_out and not why_not_migrated(vm, state))
    yield from _recolocations([vm.key for vm in movable if _is_named(vm)], "once they run, those that are apart")


RULES = (_to_storage, _cordon, _stop_diskless, _migrate, _restart_or_stop, _drain, _uncordon, _start, _bring_back)


def _on(state: State, nodes: Sequence[str]) -> list[Vm]:
    here = (vm for vm in state.vms.values() if not set(vm.nodes).isdisjoint(nodes))
    return [vm for vm in here if _is_named(vm)]


def _is_named(vm: Vm) -> bool:
    """Return whether a command can name the VM: a hand-written file may have names that a shell takes for commands."""
    return all(map(is_dns_subdomain, vm.key))


def _is_lost(vm: Vm, state: State) -> bool:
    return any(state.servers[volume].moved for volume in vm.volumes)


def _hangs(vm: Vm, state: State) -> bool:
    return any(state.servers[volume].needed and not state.servers[volume].nodes for volume in vm.volumes)


def can_restart(vm: Vm) -> bool:
    """Return whether a command restarts the VM."""
    return vm.status.machine.strategy not in (None, "", "Halted")


# The difference between two states.


def described(course: Course, nodes: tuple[str, ...]) -> Drain:
    """Return what the steps do to each VM on the nodes, and to those whose disks these nodes serve."""
    first = course.states[0]
    events = {key: list(_events(key, course)) for key in first.vms}
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


def _events(key: Key, course: Course) -> Iterator[Event]:
    """Yield what each step does to a VM."""
    for i, (before, after) in enumerate(pairwise(course.states)):
        for event in _differences(before.vms[key], before, after.vms[key], after):
            may = event.may or before.vms[key].may_stop  # it may not run
            yield _with_end(replace(event, may=may), key, i, course)


def _differences(old: Vm, before: State, new: Vm, after: State) -> Iterator[Event]:
    """Yield what happens to a VM between two states, and what may happen to it instead."""
    refusal = after.refused.get(new.key)
    contested = new.pod.key in after.contested
    placed = new.placed_at == after.step
    ended = new.starts > old.starts
    elsewhere = new.key in after.elsewhere
    if refusal is not None:
        yield Event(Effect.BLOCKS, 0, may=placed or contested or new.at_risk or elsewhere, why=refusal)
    if old.phase is Phase.RUNS and placed and not ended:
        # Longhorn may delete the pod before the migration has ended.
        yield Event(Effect.MIGRATES, 0, may=not new.sure or new.at_risk or elsewhere, why=new.why)
    elif old.phase is Phase.RUNS and ended:
        yield from _while_it_ends(before, new, after)
        if new.phase is Phase.RUNS:
            yield Event(Effect.RESTARTS, 0, may=contested or elsewhere or not new.sure, why=new.why)
        if new.phase is not Phase.RUNS or not new.sure:
            yield Event(Effect.STOPS, 0, may=contested or new.phase is Phase.RUNS, why=new.why)
    elif contested or (elsewhere and new.may_stop):
        yield Event(Effect.STOPS, 0, may=True)
    may_wait = ended and not new.sure
    of_disks = _of_its_disks(before, new, after, started=ended)
    yield from (replace(each, may=each.may or may_wait) for each in of_disks)
    if new.at_risk and not (new.may_stop and new.sure):
        yield Event(Effect.RESTARTS, 0, may=True, why=MAY_DELETE)
    if new.at_risk and new.may_stop:
        yield Event(Effect.STOPS, 0, may=True, why=MAY_DELETE)


def _while_it_ends(before: State, new: Vm, after: State) -> Iterator[Event]:
    """Yield that a guest that shuts down may lose a share-manager before it has ended, and get it back."""
    pauses = (each for each in _of_volumes(new.volumes, before, after, new.key) if each.effect is Effect.IO_PAUSES)
    yield from (replace(each, may=True, why="") for each in pauses)


def _of_its_disks(before: State, new: Vm, after: State, *, started: bool) -> Iterator[Event]:
    """Yield what happens to the disks of a VM that runs. The step may have started it again."""
    if new.phase is not Phase.RUNS:
        return
    yield from _of_volumes(new.volumes, before, after, new.key, started=started)
    plugged = (volume for volume in new.volumes if not new.mounts(volume))
    if any(was_replaced(volume, before, after) for volume in plugged) and deletes_pods(after.site.longhorn, "v1/Pod"):
        yield Event(Effect.IO_PAUSES, 0, may=True, why=MAY_UNPLUG)


def _of_volumes(
    volumes: Iterable[str], before: State, after: State, user: Key, *, started: bool = False
) -> Iterator[Event]:
    """Yield what happens to the disks of a VM or a pod, which has `started` in this step or not.

    One disk may hang while another one pauses.
    """
    pairs = [(before.servers[volume], after.servers[volume]) for volume in volumes]
    hanging = [now for was, now in pairs if now.needed and not now.nodes and (was.nodes or started)]
    if hanging:
        yield Event(Effect.IO_HANGS, 0, why=hanging[0].why)
    lost = [(was, now) for was, now in pairs if now.lost_at == after.step and was.nodes and now not in hanging]
    if lost and not started:
        may = all(now.stays or not was.certain for was, now in lost)
        yield Event(Effect.IO_PAUSES, 0, may=may, why=_where_served(lost[0][1], user))


def _where_served(server: Server, user: Key) -> str:
    if server.follows != user:
        return "its share-manager may start on any node"
    return "its share-manager follows it" + ("" if server.certain else " if it migrates first")


def _with_end(event: Event, user: Key | str, step: int, course: Course) -> Event:
    """Return the event with its step and its end. `user` is a VM, or the volume of another pod."""
    if event.effect not in _LASTING:
        return replace(event, step=step)
    later = enumerate(course.states[step + 2 :], step + 1)
    end = next((index for index, state in later if _is_over(event.effect, user, state)), None)
    until = None if end is None else course.steps[end].action
    return replace(event, step=step, until=until, until_step=end, lasts=until is None)


def _is_over(effect: Effect, user: Key | str, state: State) -> bool:
    if isinstance(user, str):
        return bool(state.servers[user].nodes)
    vm = state.vms[user]
    if effect is Effect.IO_HANGS:
        return not _hangs(vm, state)
    return effect is Effect.STOPS and vm.phase is Phase.RUNS and not vm.may_stop


def _pods(course: Course) -> Iterator[AffectedPod]:
    """Yield the pods of no VM elsewhere whose claims are served by a drained node."""
    first = course.states[0]
    drained = {node for nodes in _drained(course) for node in nodes}
    for volume, server in first.servers.items():
        pods = first.other_users(volume) if not drained.isdisjoint(server.nodes) else ()
        for claim, pod in ((claim, pod) for claim, pod in pods if pod.node not in drained):
            events = list[Event]()
            for i, (before, after) in enumerate(pairwise(course.states)):
                found = chain(_of_volumes([volume], before, after, pod.key), _deletion(volume, before, after, pod))
                events += (_with_end(event, volume, i, course) for event in found)
            yield AffectedPod(pod, claim, tuple(events))


def _deletion(volume: str, before: State, after: State, pod: Pod) -> Iterator[Event]:
    """Yield that Longhorn may delete a pod: a PodDisruptionBudget doesn't count for that."""
    owner = controller_of(after.site.manifests.get(pod.key, {}))
    kind = f"{text(owner, 'apiVersion').partition('/')[0]}/{text(owner, 'kind')}"
    if owner and was_replaced(volume, before, after) and deletes_pods(after.site.longhorn, kind):
        yield Event(Effect.RESTARTS, 0, may=True, why=MAY_DELETE)


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
