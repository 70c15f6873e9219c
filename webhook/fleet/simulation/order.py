"""The order of a drain: rules that read the state after the steps so far, and yield the next ones."""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from webhook.fleet.relocation.rules import Move, can_restart
from webhook.fleet.simulation.eviction import has_backup, why_not_migrated
from webhook.fleet.simulation.places import where
from webhook.fleet.simulation.plan import make_plan
from webhook.fleet.simulation.servers import NO_SERVER, is_servable
from webhook.fleet.simulation.state import Phase, State, Vm
from webhook.fleet.simulation.steps import Action, Step, apply, targets_of
from webhook.fleet.states import assess
from webhook.fleet.wording import start_command
from webhook.placement.objects.facts import Key
from webhook.placement.objects.fields import is_dns_subdomain


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
    if not can_restart(vm.status.machine.vm) or not restarted.vms[vm.key].nodes:
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
