"""What steps do to a VM, or to another pod: the difference between the states before and after each of them."""

from collections.abc import Iterable, Iterator
from itertools import chain, pairwise

from msgspec.structs import replace

from webhook.fleet.nfs import deletes_pods
from webhook.fleet.simulation.course import Course
from webhook.fleet.simulation.events import Effect, Event
from webhook.fleet.simulation.servers import was_replaced
from webhook.fleet.simulation.state import Phase, Server, State, Vm
from webhook.placement.objects.facts import Key, Pod
from webhook.placement.objects.pod_object import NO_POD

_LASTING = frozenset({Effect.IO_HANGS, Effect.STOPS, Effect.BLOCKS})
MAY_DELETE = "Longhorn may delete its pod once the new share-manager runs"
MAY_UNPLUG = "Longhorn may delete the pod that mounts its hotplugged disk, and KubeVirt creates it again"


def events_of(key: Key, course: Course) -> Iterator[Event]:
    """Yield what each step does to a VM."""
    for i, (before, after) in enumerate(pairwise(course.states)):
        for event in _differences(before.vms[key], before, after.vms[key], after):
            may = event.may or before.vms[key].may_stop  # it may not run
            yield _with_end(replace(event, may=may), key, i, course)


def events_of_pod(pod: Pod, volume: str, course: Course) -> Iterator[Event]:
    """Yield what each step does to a pod that runs no VM, stays where it is, and uses a volume."""
    for i, (before, after) in enumerate(pairwise(course.states)):
        differences = chain(_of_volumes([volume], before, after, pod.key), _deletion(volume, before, after, pod))
        yield from (_with_end(event, volume, i, course) for event in differences)


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
    may_not_run = contested or (ended and not new.sure)
    of_disks = _of_its_disks(before, new, after, started=ended)
    yield from (replace(each, may=each.may or may_not_run) for each in of_disks)
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


def _deletion(volume: str, before: State, after: State, pod: Pod) -> Iterator[Event]:
    """Yield that Longhorn may delete a pod: a PodDisruptionBudget doesn't count for that."""
    owner = after.site.manifests.get(pod.key, NO_POD).metadata.controller
    kind = f"{owner.api_version.partition('/')[0]}/{owner.kind}"
    if owner.kind and was_replaced(volume, before, after) and deletes_pods(after.site.longhorn, kind):
        yield Event(Effect.RESTARTS, 0, may=True, why=MAY_DELETE)


def _hangs(vm: Vm, state: State) -> bool:
    return any(state.servers[volume].needed and not state.servers[volume].nodes for volume in vm.volumes)
