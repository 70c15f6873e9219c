"""The steps of a simulation: `apply` returns the state after one step.

Each step is something that an operator does. Its consequences belong to it: Longhorn replaces the share-managers that
lose their node, the webhook steers them to a VM, KubeVirt starts VMs that were waiting for a node, and Longhorn deletes
the pods that used a share-manager which it has replaced.
"""

from collections.abc import Callable
from enum import StrEnum
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from webhook.fleet.nfs import deletes_pods
from webhook.fleet.relocation.rules import target_candidate
from webhook.fleet.simulation.eviction import FEW, Answer, Budgets, answer, waiting_pods, why_not_migrated
from webhook.fleet.simulation.places import NO_NODE, Places, find_places, where
from webhook.fleet.simulation.recolocation import recolocate
from webhook.fleet.simulation.servers import is_decided, may_have_moved, place_servers, stop_unused, was_replaced
from webhook.fleet.simulation.state import Phase, Server, State, Vm, on_node, placed, union
from webhook.fleet.starts import decide_start
from webhook.placement.catalog import Catalog
from webhook.placement.guard.candidate import Candidate
from webhook.placement.objects.facts import Key
from webhook.placement.reasons import Outcome


class Action(StrEnum):
    """What a step does."""

    RECOLOCATE = "recolocate"
    CORDON = "cordon"
    MIGRATE = "migrate"
    RESTART = "restart"
    STOP = "stop"
    DRAIN = "drain"
    UNCORDON = "uncordon"
    START = "start"


class Step(Struct, frozen=True):
    """A step: what is done to nodes, or to VMs."""

    action: Action
    nodes: tuple[str, ...] = ()  # of a step for VMs: they must run on one of these; empty for any
    vms: tuple[Key, ...] = ()
    why: str = ""  # for the operator


def apply(state: State, step: Step) -> State:
    """Return the state after a step."""
    vms = {key: replace(vm, at_risk=False) for key, vm in state.vms.items()}
    none = frozenset[Key]()
    begun = replace(state, step=state.step + 1, vms=vms, contested=none, elsewhere=none)
    before = replace(begun, refused={}, waits={}, relocated={})
    after = _start_waiting(_APPLY[step.action](before, step))
    after = place_servers(stop_unused(after))
    return _delete_consumers(before, after)


def _recolocate(state: State, step: Step) -> State:
    return recolocate(state, step.vms)


def _cordon(state: State, step: Step) -> State:
    return replace(state, cordons={**state.cordons, **dict.fromkeys(step.nodes, step.action is Action.CORDON)})


def _migrate(state: State, step: Step) -> State:
    for key in step.vms:
        vm = state.vms[key]
        if (places := targets_of(vm, state)).nodes:
            state = _or_elsewhere(state.with_vm(_migrated(vm, places, state)), vm, step)
    return state


def _migrated(vm: Vm, places: Places, state: State, why: str = "") -> Vm:
    """Return a VM after its migration. One that may find no node also may stay where it is."""
    nodes = places.nodes if places.sure else (*places.nodes, *vm.nodes)
    return replace(placed(vm, nodes, vm.pod, state.step, why or where(places.nodes)), sure=places.sure)


def _restart(state: State, step: Step) -> State:
    for key in step.vms:
        vm = state.vms[key]
        state = _or_elsewhere(_next_pod(_ended(state, vm, ""), key), vm, step)
    return state


def _stop(state: State, step: Step) -> State:
    for key in step.vms:
        vm = state.vms[key]
        state = _ended(state, vm, step.why, Phase.STOPPED)
        state = _or_elsewhere(state.with_vm(replace(state.vms[key], halted=True)), vm, step)
    return state


def _start(state: State, step: Step) -> State:
    for key in step.vms:
        if state.vms[key].phase is not Phase.RUNS:
            state = _next_pod(state.with_vm(replace(state.vms[key], phase=Phase.WAITS)), key)
        elif state.vms[key].may_stop:
            state = _perhaps_started(state, key)
    return state


def _perhaps_started(state: State, key: Key) -> State:
    """Return the state in which a VM either still runs, or had stopped and now starts, on any node that can run it.

    The share-managers that only it uses have stopped in that case, and start again.
    """
    vm = state.vms[key]
    alone = [volume for volume in vm.volumes if not state.is_shared(volume, vm)]
    stopped = state.with_vm(replace(vm, nodes=(), phase=Phase.WAITS))
    for volume in alone:
        stopped = stopped.with_server(volume, replace(state.servers[volume], nodes=(), moved=True))
    started = place_servers(_next_pod(stopped, key))
    again = started.vms[key]
    nodes = union(vm.nodes, again.nodes)
    always_together = state.is_together(vm) and started.is_together(again)
    for volume in alone:
        server = state.servers[volume]
        beside = bool(always_together) and volume == vm.status.volume
        anywhere = union(server.nodes, started.servers[volume].nodes)
        server = replace(server, nodes=anywhere, follows=key if beside else None, certain=beside, moved=True)
        state = state.with_server(volume, server)
    return state.with_vm(replace(vm, nodes=nodes, may_stop=again.phase is not Phase.RUNS or not again.sure))


def _drain(state: State, step: Step) -> State:
    """Evict the pods of nodes: first VMs' pods, as KubeVirt answers, then share-managers and all others."""
    before = state
    budgets = Budgets(state)
    evicted = [vm for vm in state.vms.values() if not set(vm.nodes).isdisjoint(step.nodes)]
    deletable = {vm.key for vm in evicted if answer(vm, state, budgets)[0] is Answer.DELETE}
    state = _without_users(state, evicted, deletable)
    for vm in evicted:
        state = _evicted(before, state, vm, budgets)
    for vm in evicted:
        state = _after_the_race(before, state, vm.key)
    for vm in evicted:
        state = _or_elsewhere(state, vm, step)
    waits = dict(waiting_pods(state, step.nodes, budgets))
    contested = budgets.contested([*(vm.pod.key for vm in evicted if vm.key in deletable), *waits])
    rivals = [vm for vm in evicted if vm.pod.key in contested]
    refused = {vm.key: FEW for vm in rivals} | dict(state.refused)
    state = replace(state, waits=waits, contested=contested, refused=refused)
    for vm in rivals:
        state = _perhaps_evicted(state, vm)
    for volume, server in state.servers.items():
        if not set(server.nodes).isdisjoint(step.nodes):
            stays = tuple(node for node in server.nodes if node not in step.nodes)
            lost = replace(server, nodes=(), follows=None, lost_at=state.step, moved=True, stays=stays)
            state = state.with_server(volume, lost)
    return state


def _without_users(state: State, evicted: list[Vm], deletable: set[Key]) -> State:
    """Return the state in which the share-managers that only evicted VMs share may have moved.

    The pods of all these VMs may be gone at the same time.
    """
    for volume in dict.fromkeys(volume for vm in evicted for volume in vm.volumes):
        users = {vm.key for vm in state.users(volume)}
        unused = len(users) > 1 and users <= deletable and not any(state.other_users(volume))
        if unused and state.servers[volume].nodes:
            state = may_have_moved(volume, state)
    return state


def _or_elsewhere(state: State, old: Vm, step: Step) -> State:
    """Return the state in which a step has met a VM on one of the step's nodes, or the VM ran on another one."""
    nodes = tuple(node for node in old.nodes if node not in step.nodes)
    if not step.nodes or not nodes:
        return state
    new = state.vms[old.key]
    if new.phase is Phase.RUNS:
        new = replace(new, nodes=union(nodes, new.nodes))
    else:
        new = replace(old, pod=on_node(old.pod, nodes[0]), nodes=nodes, halted=new.halted, may_stop=True)
    return replace(state.with_vm(new), elsewhere=state.elsewhere | {old.key})


def _evicted(before: State, state: State, vm: Vm, budgets: Budgets) -> State:
    """Evict the pod of a VM, as if it were the first one of the drain, which began with the state `before`."""
    reply, why = answer(vm, state, budgets)
    if reply is Answer.MIGRATE:
        places = targets_of(vm, before)
        if not places.nodes:
            return replace(state, refused={**state.refused, vm.key: places.problem})
        return state.with_vm(_migrated(vm, places, state, why))
    if reply is Answer.DENY:
        return replace(state, refused={**state.refused, vm.key: why})
    state = _ended(state, vm, why, Phase.WAITS if vm.restarts else Phase.STOPPED)
    state = _next_pod(state, vm.key, before) if vm.restarts else state
    if state.vms[vm.key].phase is not Phase.RUNS:
        budgets.use(vm.pod.key)
    return state


def _perhaps_evicted(state: State, old: Vm) -> State:
    """Return the state in which a VM still runs, or has ended: its budget may let the drain evict another one first."""
    new = state.vms[old.key]
    has_moved = new.phase is Phase.RUNS and new.placed_at == state.step
    return state if has_moved else state.with_vm(replace(old, may_stop=True))


def _after_the_race(before: State, state: State, key: Key) -> State:
    """Return the state in which a VM is only placed for sure if all others of the same drain leave it a node."""
    old = before.vms[key]
    vm = state.vms[key]
    if vm.phase is not Phase.RUNS or vm.placed_at < state.step or not vm.nodes:
        return state
    moves = vm.starts == old.starts
    others = state.crowded_catalog(key)
    places = targets_of(old, before, others) if moves else _places_of_next_pod(old, before, others)
    if places.sure or not vm.sure:
        return state
    if not moves:
        return state.with_vm(vm.unless_taken(sure=False))
    state = replace(state, refused={**state.refused, key: NO_NODE})
    return state.with_vm(_migrated(old, replace(places, sure=False), state, vm.why))


def _ended(state: State, vm: Vm, why: str, phase: Phase = Phase.WAITS) -> State:
    """End the pod of a VM. The share-managers that only it uses may stop before its next pod needs them."""
    state = state.with_vm(
        replace(vm, nodes=(), phase=phase, starts=vm.starts + 1, placed_at=state.step, why=why, may_stop=False)
    )
    for volume in vm.volumes:
        server = state.servers[volume]
        if not server.nodes or state.is_shared(volume, vm):
            continue
        # Where the share-manager of the disk that decides starts, follows from the next pod.
        decides = volume == vm.status.volume
        state = state.with_server(volume, replace(server, certain=False)) if decides else may_have_moved(volume, state)
    return state


def _next_pod(state: State, key: Key, others: State | None = None) -> State:
    """Start a VM, on a node that the webhook pins it to, or else on any that can run it beside the `others`."""
    vm = state.vms[key]
    others = others or state
    if state.may_be_unused(vm.status.volume, vm):
        state = state.with_server(vm.status.volume, replace(state.servers[vm.status.volume], certain=False))
    if vm.machine.template is None or vm.machine.manifest is None:
        why = vm.why or "where it can run is unknown"
        return state.with_vm(replace(vm, phase=Phase.RUNS, placed_at=state.step, why=why))
    places = _places_of_next_pod(vm, others, others.crowded_catalog(key))
    if not places.nodes or places.pod is None:
        return state.with_vm(replace(vm, why=places.problem))
    state, nodes = _beside_storage(state, vm, places.nodes, others)
    return state.with_vm(placed(vm, nodes, places.pod, state.step, vm.why).unless_taken(sure=places.sure))


def _beside_storage(state: State, vm: Vm, nodes: tuple[str, ...], others: State) -> tuple[State, tuple[str, ...]]:
    """Return where a VM that can run on these nodes starts, and the state with its share-manager."""
    volume = vm.status.volume
    server = state.servers.get(volume)
    if is_decided(vm):
        decision = decide_start(vm.machine, vm.status.opted_in_by, others.catalog, state.site.around.settings)
        pinned = decision.outcome is Outcome.PINNED
        if pinned and decision.node and (server is None or server.certain):
            serving = _serving(decision.node, server)
            return state, serving if _all_run(vm, serving, others) else nodes
        if pinned and server and _may_follow(vm, server, state) and _all_run(vm, server.nodes, others):
            # It starts beside its share-manager, or that has stopped and follows it: a race decides.
            nodes = union(nodes, server.nodes)
            beside = replace(server, nodes=nodes, follows=vm.key, certain=True, moved=True)
            return state.with_server(volume, beside), nodes
    if server and server.nodes and not server.certain and not _is_followed(vm, state):
        return may_have_moved(volume, state), nodes
    return state, nodes


def _is_followed(vm: Vm, state: State) -> bool:
    """Return whether a share-manager that only this VM uses, and that starts now, follows the VM."""
    return is_decided(vm) and state.site.around.settings.steering


def _may_follow(vm: Vm, server: Server, state: State) -> bool:
    """Return whether the share-manager of a VM that starts may have stopped, and then follows it."""
    volume = vm.status.volume
    alone = not state.is_shared(volume, vm) or state.may_be_unused(volume, vm)
    return alone and not server.certain and _is_followed(vm, state)


def _serving(node: str, server: Server | None) -> tuple[str, ...]:
    """Return the nodes that a VM may be pinned to: wherever its share-manager is, which the catalog shows on `node`."""
    return server.nodes if server and node in server.nodes else (node,)


def _all_run(vm: Vm, nodes: tuple[str, ...], state: State) -> bool:
    """Return whether each of these nodes, and at least one, can run the next pod of a VM."""
    candidate = partial(Candidate, vm.machine.next_pod)
    return bool(nodes) and len(find_places(candidate, state.catalog, None, None, nodes).nodes) == len(nodes)


def targets_of(vm: Vm, state: State, others: Catalog | None = None) -> Places:
    """Return the nodes to which KubeVirt can migrate a VM. `others` has all other VMs, wherever they may be."""
    machine = vm.machine
    if vm.is_ending or why_not_migrated(vm, state) or machine.target is None:
        return Places()
    others = others or state.crowded_catalog(vm.key)
    return find_places(partial(target_candidate, machine, machine.target), state.catalog, others, state.most)


def _places_of_next_pod(vm: Vm, state: State, others: Catalog) -> Places:
    created = vm.machine.next_pod
    return find_places(partial(Candidate, created), state.catalog, others, state.most)


def _start_waiting(state: State) -> State:
    """Start the VMs that wait for a node."""
    for key, vm in state.vms.items():
        if vm.phase is Phase.WAITS:
            state = _next_pod(state, key)
        elif vm.may_stop and vm.restarts and vm.placed_at < state.step:
            state = _perhaps_started(state, key)
    return state


def _delete_consumers(before: State, after: State) -> State:
    """Note the VMs whose pods Longhorn may delete, because it has replaced a share-manager that they used before.

    Of a hotplugged volume, it deletes the pod that mounts it, which KubeVirt creates again. It only deletes pods if the
    new share-manager started in a later second than it asked for a remount:
    https://github.com/longhorn/longhorn-manager/blob/5ddaa369/controller/kubernetes_pod_controller.go#L686
    """
    if not deletes_pods(after.site.longhorn):
        return after
    for volume in after.servers:
        for vm in after.users(volume) if was_replaced(volume, before, after) else ():
            if vm.mounts(volume) and vm.starts == before.vms[vm.key].starts:
                after = _at_risk(after, after.vms[vm.key])
    return after


def _at_risk(state: State, vm: Vm) -> State:
    """Note that the pod of a VM may have been deleted. If so, KubeVirt has started it again, or it has stopped."""
    state = state.with_vm(replace(vm, at_risk=True, may_stop=True))
    return _perhaps_restarted(state, state.vms[vm.key]) if vm.restarts else state


def _perhaps_restarted(state: State, vm: Vm) -> State:
    """Return the state in which a VM either still runs, or has been started again, if a node can run it.

    It may wait for a node that another VM takes first.
    """
    restarted = _next_pod(_ended(state, vm, ""), vm.key)
    again = restarted.vms[vm.key]
    if again.phase is not Phase.RUNS:
        return state
    nodes = union(vm.nodes, again.nodes)
    state = state.with_vm(replace(vm, nodes=nodes).unless_taken(sure=again.sure))
    for volume in vm.volumes:
        server = state.servers[volume]
        follows = server.follows == vm.key and is_decided(vm)
        both = replace(server, nodes=nodes) if follows else _either(server, restarted.servers[volume])
        state = state.with_server(volume, both)
    return state


def _either(one: Server, other: Server) -> Server:
    """Return a share-manager that is in one of two states."""
    return one if one == other else replace(one, nodes=union(one.nodes, other.nodes), certain=False)


_APPLY: dict[Action, Callable[[State, Step], State]] = {
    Action.RECOLOCATE: _recolocate,
    Action.CORDON: _cordon,
    Action.MIGRATE: _migrate,
    Action.RESTART: _restart,
    Action.STOP: _stop,
    Action.DRAIN: _drain,
    Action.UNCORDON: _cordon,
    Action.START: _start,
}
