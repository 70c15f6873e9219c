"""The step `recolocate`: VMs migrate to their storage, and each migration is the basis of the next one."""

from collections.abc import Sequence

from msgspec.structs import replace

from webhook.fleet.forecast_catalog import PlannedPods, forecast
from webhook.fleet.machine import Status
from webhook.fleet.relocation.rules import (
    Hindrance,
    Move,
    Refusal,
    migration_to_storage,
    nodes_by_hostname,
    why_not_moved,
)
from webhook.fleet.simulation.state import State, Vm, placed
from webhook.fleet.states import assess
from webhook.fleet.traffic import Traffic, crossing
from webhook.placement.catalog import Catalog
from webhook.placement.objects.facts import Key

GIBIBYTE = 1024**3


def recolocate(state: State, keys: Sequence[Key]) -> State:
    """Migrate VMs to their storage: first the one whose storage causes most traffic, then the one that gains most.

    A pod that leaves a node doesn't free its resources there: it may leave later, or not at all.
    """
    shown = {key: _as_if_apart(state.vms[key], state) for key in keys}
    catalog = replace(state, vms={**state.vms, **shown}).catalog
    hostnames = nodes_by_hostname(catalog)
    statuses = {key: _status(vm, state, catalog) for key, vm in shown.items()}
    ranks = {key: (_traffic(status, state), _gain(shown[key], status, state)) for key, status in statuses.items()}
    pods = PlannedPods()
    moved = dict[Key, Vm]()
    relocated = dict[Key, Move | Refusal]()
    for key in sorted(keys, key=ranks.__getitem__, reverse=True):
        refusal = _refusal(statuses[key], ranks[key][1], state, catalog)
        result = refusal or migration_to_storage(statuses[key], forecast(catalog, placed=pods), hostnames)
        relocated[key] = result
        if isinstance(result, Move):
            pods.extend(filter(None, [result.pod]))
            state, moved[key] = _at_storage(state.vms[key], result, state)
    return replace(state, vms={**state.vms, **moved}, relocated=relocated)


def _refusal(status: Status, gained: int, state: State, catalog: Catalog) -> Refusal | None:
    refusal = why_not_moved(status, state.site.around, catalog)
    if refusal is None and gained < 0:
        return Refusal(Hindrance.NO_GAIN, describe_gain(gained))
    return refusal


def describe_gain(gained: int) -> str:
    """Return a gain in GiB. It is negative if claims without a vote are larger, such as an image that VMs share."""
    return f"{abs(gained) / GIBIBYTE:.4g}Gi becomes {'remote' if gained < 0 else 'local'}"


def _as_if_apart(vm: Vm, state: State) -> Vm:
    """Return a VM on a node without its share-manager, if the VM may run on one."""
    server = state.servers.get(vm.status.volume)
    node = next((node for node in vm.nodes if server and node not in server.nodes[:1]), "")
    return placed(vm, (node,), vm.pod, state.step) if node and vm.nodes != (node,) else vm


def _status(vm: Vm, state: State, catalog: Catalog) -> Status:
    if catalog is state.site.catalog:  # nothing has changed yet
        return vm.status
    return assess(vm.machine, catalog, state.site.around.settings)


def _traffic(status: Status, state: State) -> Traffic:
    rates = state.site.around.rates
    return crossing(status, rates) if rates else Traffic()


def _gain(vm: Vm, status: Status, state: State) -> int:
    """Return how many bytes of a VM's claims become local by the move to its storage, less those that are local now."""
    here = replace(vm, status=status)
    there = replace(here, nodes=(status.storage_node,) if status.storage_node else ())
    return state.local_bytes(there) - state.local_bytes(here)


def _at_storage(vm: Vm, move: Move, state: State) -> tuple[State, Vm]:
    """Return a VM at its storage. It moves to wherever its share-manager is, which may be one of several nodes."""
    server = state.servers.get(vm.status.volume)
    sure = state.is_together(vm) is not None
    if server is None or len(server.nodes) < 2:
        return state, replace(placed(vm, (move.target,), vm.pod, state.step), sure=sure)
    beside = replace(server, follows=vm.key, certain=True)
    found = replace(placed(vm, server.nodes, vm.pod, state.step), sure=sure)
    return state.with_server(vm.status.volume, beside), found
