"""Where share-managers run: Longhorn starts one for each volume in use, and the webhook steers it to a VM."""

from functools import partial

from msgspec.structs import replace

from webhook.fleet.simulation.places import find_places
from webhook.fleet.simulation.state import Server, State, Vm, union
from webhook.placement.guard.candidate import Candidate
from webhook.placement.injector import place_share_manager
from webhook.placement.objects.longhorn import COMPONENT_LABEL, SHARE_MANAGER, VOLUME_LABEL, share_manager_name
from webhook.placement.objects.pod import Manifest
from webhook.placement.objects.pod_object import NO_SPEC, PodMetadata, PodObject
from webhook.placement.reasons import Outcome

NO_SERVER = "no other node can run its share-manager"


def stop_unused(state: State) -> State:
    """Stop the share-managers that nothing uses any more, and note which ones are needed again."""
    for volume, server in state.servers.items():
        needed = bool(state.users(volume)) or any(state.other_users(volume))
        if needed is not server.needed:
            nodes = server.nodes if needed else ()
            state = state.with_server(volume, replace(server, needed=needed, nodes=nodes, moved=True, follows=None))
    return state


def place_servers(state: State) -> State:
    """Place the share-managers that run nowhere."""
    for volume, server in state.servers.items():
        if server.needed and not server.nodes:
            placed = _placed_server(volume, server, state)
            if server.stays and server.lost_at == state.step:
                nodes = union(server.stays, placed.nodes)
                placed = replace(placed, nodes=nodes, follows=None, certain=False, moved=True)
            state = state.with_server(volume, placed)
    return state


def _placed_server(volume: str, server: Server, state: State) -> Server:
    """Return where Longhorn's next pod for a volume runs: where the webhook steers it, or else anywhere."""
    created = _server_pod(volume, state)
    fitting = partial(find_places, partial(Candidate, created), state.catalog, None)
    nodes = fitting(state.most).nodes
    if not nodes:
        return replace(server, why=NO_SERVER)
    all_known = len(nodes) != state.most
    anywhere = replace(server, nodes=nodes, follows=None, certain=all_known, moved=True, why="")
    users = state.users(volume)
    settings = state.site.around.settings
    if not settings.steering:
        return anywhere
    decision = place_share_manager(created, state.catalog, settings)
    voter = next((vm for vm in users if vm.nodes[:1] == (decision.node,)), None)
    if decision.outcome is not Outcome.PREFERRED or voter is None or not is_enforced(voter):
        return anywhere
    if len(users) > 1 or any(state.other_users(volume)):  # which of them has most votes may depend on their nodes
        certain = all(_is_settled(vm, server, state) and len(vm.nodes) == 1 for vm in users)
        return replace(anywhere, nodes=(str(decision.node),), certain=True) if certain else anywhere
    if len(fitting(None, voter.nodes).nodes) < len(voter.nodes):
        return anywhere
    return replace(anywhere, nodes=voter.nodes, follows=voter.key, certain=_is_settled(voter, server, state))


def may_have_moved(volume: str, state: State) -> State:
    """Return the state in which a share-manager that runs may have stopped, and have started again on any node."""
    server = state.servers[volume]
    anywhere = find_places(partial(Candidate, _server_pod(volume, state)), state.catalog, None, state.most).nodes
    return state.with_server(volume, replace(server, nodes=union(server.nodes, anywhere), follows=None, certain=False))


def is_servable(volume: str, state: State) -> bool:
    """Return whether a node can run the next share-manager of a volume now."""
    created = _server_pod(volume, state)
    return bool(find_places(partial(Candidate, created), state.catalog, None, 1).nodes)


def is_enforced(vm: Vm) -> bool:
    """Return whether the webhook changes pods."""
    return vm.status.start is None or vm.status.start.enforced


def is_decided(vm: Vm) -> bool:
    """Return whether the webhook decides on the next pod of a VM, and changes it."""
    return vm.status.opted_in and is_enforced(vm)


def _is_settled(vm: Vm, server: Server, state: State) -> bool:
    """Return whether a VM is on its node when its share-manager starts, and does not reach it in the same step."""
    return vm.placed_at < state.step or server.lost_at < state.step


def _server_pod(volume: str, state: State) -> Manifest:
    """Return the next share-manager pod of a volume, as Longhorn creates it."""
    namespace = state.site.around.settings.longhorn_namespace
    labels = {COMPONENT_LABEL: SHARE_MANAGER, VOLUME_LABEL: volume}
    metadata = PodMetadata(share_manager_name(volume), namespace, labels=labels)
    spec = replace(state.site.servers.get(volume, NO_SPEC), node_name="")
    return Manifest(PodObject(metadata, spec), namespace)


def was_replaced(volume: str, before: State, after: State) -> bool:
    """Return whether the last step started a new share-manager for the users of a volume."""
    old = before.servers[volume]
    new = after.servers[volume]
    return bool(new.nodes) and old.needed and (new.lost_at == after.step or not old.nodes)
