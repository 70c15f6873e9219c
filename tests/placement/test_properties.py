"""What holds for every pod in every cluster, held against rules that somebody else wrote."""

from copy import deepcopy
from typing import Any

import jsonpatch
import msgspec
from hypothesis import HealthCheck, event, given, note, settings
from hypothesis import strategies as st

from tests.support.builders import catalog, request, share_manager_pod, virt_launcher
from tests.support.random_clusters import clusters, pods, storage
from tests.support.scheduler_oracle import feasible_nodes
from webhook.cluster.store import Store
from webhook.placement.decision import Outcome, Reason
from webhook.placement.injector import Injection, inject
from webhook.placement.settings import Settings

ALLOWED = ("/spec/affinity", "/metadata/annotations", "/spec/schedulerName")
thorough = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])

Object = dict[str, Any]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Object, Object, Object, str]:
    """Draw a pod, a cluster, the storage, and the node that serves it."""
    cluster = draw(clusters())
    node = draw(st.sampled_from(cluster["nodes"]))["metadata"]["name"]
    return draw(pods()), cluster, draw(storage(node)), node


def store_of(cluster: Object, storage: Object) -> Store:
    return catalog(*cluster["nodes"], *cluster["pods"], storage["pvc"], storage["pv"], storage["pod"])


def applied(pod: Object, injection: Injection) -> Object:
    assert injection.error is None, injection.error
    return jsonpatch.JsonPatch(injection.patch or []).apply(deepcopy(pod))


def without_ours(value: Any, node: str) -> Any:
    """Take out what only we may have put in, so that the rest can be compared with what the user wrote."""
    ours = {"key": "metadata.name", "operator": "In", "values": [node]}
    if isinstance(value, list):
        preference = {"weight": 100, "preference": {"matchFields": [ours]}}
        return [without_ours(item, node) for item in value if item not in (ours, preference)]
    if isinstance(value, dict):
        return {key: without_ours(item, node) for key, item in value.items()}
    return value


def bare(value: Any) -> Any:
    """Take out empty lists and maps: a missing parent that was added holds nothing else."""
    if isinstance(value, list):
        return [found for item in value if (found := bare(item)) not in ({}, [], None)]
    if isinstance(value, dict):
        return {key: found for key, item in value.items() if (found := bare(item)) not in ({}, [], None)}
    return value


@thorough
@given(world=worlds())
def test_a_pod_that_could_be_scheduled_still_can_be(world: tuple[Object, Object, Object, str]) -> None:
    pod, cluster, disk, node = world
    injection = inject(request(pod), store_of(cluster, disk), Settings())
    there = [*cluster["pods"], disk["pod"]]
    before = feasible_nodes(pod, cluster["nodes"], there, [disk["pv"]])
    after = feasible_nodes(applied(pod, injection), cluster["nodes"], there, [disk["pv"]])
    note(f"{injection.decision}\nbefore {before}, after {after}")
    event(str(injection.decision.reason))
    if before:
        assert after
    assert after == ({node} if injection.decision.outcome is Outcome.PINNED else before)


@thorough
@given(world=worlds())
def test_the_guard_refuses_a_node_if_and_only_if_the_scheduler_would(world: tuple[Object, Object, Object, str]) -> None:
    pod, cluster, disk, node = world
    decision = inject(request(pod), store_of(cluster, disk), Settings()).decision
    feasible = feasible_nodes(pod, cluster["nodes"], [*cluster["pods"], disk["pod"]], [disk["pv"]])
    assert (decision.reason is Reason.CO_SCHEDULED) == (node in feasible), decision


@thorough
@given(world=worlds(), guard=st.booleans())
def test_a_second_application_changes_nothing(world: tuple[Object, Object, Object, str], guard: bool) -> None:
    pod, cluster, disk, _ = world
    chosen = Settings(node_guard=guard, scheduler_names={"default-scheduler": "my-scheduler"})
    store = store_of(cluster, disk)
    first = inject(request(pod), store, chosen)
    second = inject(request(applied(pod, first)), store, chosen)
    assert second.patch is None
    added = first.decision.outcome is not Outcome.UNCHANGED
    assert second.decision.reason is (Reason.ALREADY_INJECTED if added else first.decision.reason)


@thorough
@given(world=worlds(), guard=st.booleans())
def test_nothing_the_user_wrote_is_removed_or_reordered(world: tuple[Object, Object, Object, str], guard: bool) -> None:
    pod, cluster, disk, node = world
    received = deepcopy(pod)
    injection = inject(request(pod), store_of(cluster, disk), Settings(node_guard=guard))
    assert pod == received
    result = applied(pod, injection)
    for key in ("co-scheduled-node", "decision"):
        result["metadata"]["annotations"].pop(f"kubevirt-scheduler/{key}", None)
    # The universe never draws our own requirement for a node that serves the disk as the user's.
    assert bare(without_ours(result, node)) == bare(without_ours(pod, node))


@thorough
@given(world=worlds(), mode=st.sampled_from(["required", "preferred", "nonsense", None]))
def test_a_patch_stays_below_the_allowed_paths(world: tuple[Object, Object, Object, str], mode: str | None) -> None:
    pod, cluster, disk, _ = world
    if mode is not None:
        pod["metadata"]["annotations"]["kubevirt-scheduler/co-schedule-mode"] = mode
    injection = inject(request(pod), store_of(cluster, disk), Settings(node_guard=False))
    for operation in injection.patch or []:
        assert operation["op"] in ("add", "replace", "remove")
        assert operation["path"].startswith(ALLOWED)
    assert all(len(warning) <= 120 for warning in injection.warnings)


@thorough
@given(world=worlds())
def test_a_steered_share_manager_pod_only_gains_a_preference(world: tuple[Object, Object, Object, str]) -> None:
    vm, cluster, disk, node = world
    vm["metadata"] |= {"name": "virt-launcher-vm1-x", "uid": "1", "namespace": "default"}
    vm["spec"]["nodeName"] = node
    disk["pv"]["spec"]["claimRef"] = {"namespace": "default", "name": "disk1"}
    new = share_manager_pod()
    injection = inject(request(new, "longhorn-system"), catalog(*cluster["nodes"], disk["pv"], vm), Settings())
    if injection.decision.reason is not Reason.CO_SCHEDULED:
        assert injection.patch is None
        return
    before, after = (feasible_nodes(pod, cluster["nodes"], [vm]) for pod in (new, applied(new, injection)))
    assert after == before
    assert node in after


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def paths(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [prefix, *(path for key, item in children for path in paths(item, (*prefix, key)))]


def with_wreck(value: Any, path: tuple[Any, ...], wreck: Any) -> Any:
    """Put something else in the place of one field, however deep."""
    if not path:
        return wreck
    copy = deepcopy(value)
    place = copy
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = wreck
    return copy


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(world=worlds(), data=st.data(), wreck=JSON)
def test_a_wrongly_typed_field_anywhere_never_breaks_an_answer(
    world: tuple[Object, Object, Object, str], data: st.DataObject, wreck: Any
) -> None:
    pod, cluster, disk, _ = world
    whole = request(pod | virt_launcher()["metadata"] if data.draw(st.booleans()) else pod)
    path = data.draw(st.sampled_from(paths(whole)[1:]))
    broken = with_wreck(whole, path, wreck)
    injection = inject(broken, store_of(cluster, disk), Settings())
    event(str(injection.decision.reason))
    if injection.error is not None:
        assert injection.decision.reason is Reason.INTERNAL_ERROR
        assert injection.patch is None
    elif injection.patch:
        jsonpatch.JsonPatch(injection.patch).apply(broken["object"])
    msgspec.json.encode(injection.patch)
