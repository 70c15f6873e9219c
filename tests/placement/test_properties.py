"""Properties of every decision, checked with random clusters."""

from copy import deepcopy
from typing import Any

import jsonpatch
import msgspec
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.support.builders import PREFERRED, catalog, name_requirement, request, share_manager_pod, virt_launcher
from tests.support.malformed import replaced, value_paths
from tests.support.random_clusters import clusters, pods, storage
from webhook.cluster.caches.store import Store
from webhook.placement.injector import Injection, inject
from webhook.placement.reasons import Outcome, Reason
from webhook.placement.settings import Settings

ALLOWED = ("/spec/affinity", "/metadata/annotations", "/spec/schedulerName")
thorough = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])

Object = dict[str, Any]


@st.composite
def scenarios(draw: st.DrawFn) -> tuple[Object, Object, Object, str]:
    """Draw a pod, a cluster, the storage, and the node that serves it."""
    cluster = draw(clusters())
    node = draw(st.sampled_from(cluster["nodes"]))["metadata"]["name"]
    return draw(pods()), cluster, draw(storage(node)), node


def store_of(cluster: Object, storage: Object) -> Store:
    return catalog(*cluster["nodes"], *cluster["pods"], storage["pvc"], storage["pv"], storage["pod"])


def apply_patch(pod: Object, injection: Injection) -> Object:
    assert injection.error is None, injection.error
    return jsonpatch.JsonPatch(injection.patch or []).apply(deepcopy(pod))


def without_injected_terms(value: Any, node: str) -> Any:
    """Remove the terms that the webhook may add, so that the rest can be compared with the user's pod."""
    pin = {"key": "metadata.name", "operator": "In", "values": [node]}
    if isinstance(value, list):
        fields = (pin, pin | {"operator": "NotIn"})  # a node that nominated pods need is avoided
        added = [pin, *({"weight": 100, "preference": {"matchFields": [field]}} for field in fields)]
        return [without_injected_terms(item, node) for item in value if item not in added]
    if isinstance(value, dict):
        return {key: without_injected_terms(item, node) for key, item in value.items()}
    return value


def without_empty_values(value: Any) -> Any:
    """Remove empty lists and maps, because an added parent is empty without the webhook's terms."""
    if isinstance(value, list):
        return [kept for item in value if (kept := without_empty_values(item)) not in ({}, [], None)]
    if isinstance(value, dict):
        return {key: kept for key, item in value.items() if (kept := without_empty_values(item)) not in ({}, [], None)}
    return value


@thorough
@given(scenario=scenarios(), guard=st.booleans())
def test_a_second_call_returns_no_patch(scenario: tuple[Object, Object, Object, str], guard: bool) -> None:
    pod, cluster, disk, _ = scenario
    overrides = Settings(node_guard=guard, scheduler_names={"default-scheduler": "my-scheduler"})
    store = store_of(cluster, disk)
    first = inject(request(pod), store, overrides)
    second = inject(request(apply_patch(pod, first)), store, overrides)
    assert second.patch is None
    added = first.decision.outcome is not Outcome.UNCHANGED
    assert second.decision.reason is (Reason.ALREADY_INJECTED if added else first.decision.reason)


@thorough
@given(scenario=scenarios(), guard=st.booleans())
def test_user_fields_are_never_removed_or_reordered(scenario: tuple[Object, Object, Object, str], guard: bool) -> None:
    pod, cluster, disk, node = scenario
    received = deepcopy(pod)
    injection = inject(request(pod), store_of(cluster, disk), Settings(node_guard=guard))
    assert pod == received
    result = apply_patch(pod, injection)
    for key in ("co-scheduled-node", "decision"):
        result["metadata"]["annotations"].pop(f"kubevirt-scheduler/{key}", None)
    # The strategies never draw a user requirement that equals the webhook's own pin to the serving node.
    assert without_empty_values(without_injected_terms(result, node)) == without_empty_values(
        without_injected_terms(pod, node)
    )


@thorough
@given(scenario=scenarios(), mode=st.sampled_from(["required", "preferred", "nonsense", None]))
def test_a_patch_changes_only_the_allowed_paths(scenario: tuple[Object, Object, Object, str], mode: str | None) -> None:
    pod, cluster, disk, _ = scenario
    if mode is not None:
        pod["metadata"]["annotations"]["kubevirt-scheduler/co-schedule-mode"] = mode
    injection = inject(request(pod), store_of(cluster, disk), Settings(node_guard=False))
    for operation in injection.patch or []:
        assert operation["op"] in ("add", "replace", "remove")
        assert operation["path"].startswith(ALLOWED)
    assert all(len(warning) <= 120 for warning in injection.warnings)


@thorough
@given(scenario=scenarios())
def test_a_steered_share_manager_pod_only_gains_a_preference(scenario: tuple[Object, Object, Object, str]) -> None:
    vm, cluster, disk, node = scenario
    vm["metadata"] |= {"name": "virt-launcher-vm1-x", "uid": "1", "namespace": "default"}
    vm["spec"]["nodeName"] = node
    new = share_manager_pod()
    injection = inject(request(new, "longhorn-system"), catalog(*cluster["nodes"], disk["pv"], vm), Settings())
    if injection.decision.reason is not Reason.CO_SCHEDULED:
        assert injection.patch is None
        return
    (added,) = apply_patch(new, injection)["spec"]["affinity"].pop("nodeAffinity").items()
    assert added == (PREFERRED, [{"weight": 100, "preference": {"matchFields": [name_requirement(node)]}}])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenario=scenarios(), data=st.data(), replacement=JSON)
def test_a_field_of_the_wrong_type_never_produces_an_invalid_answer(
    scenario: tuple[Object, Object, Object, str], data: st.DataObject, replacement: Any
) -> None:
    pod, cluster, disk, _ = scenario
    admission_request = request(pod | virt_launcher()["metadata"] if data.draw(st.booleans()) else pod)
    path = data.draw(st.sampled_from([*value_paths(admission_request)][1:]))
    broken = replaced(admission_request, path, replacement)
    injection = inject(broken, store_of(cluster, disk), Settings())
    event(str(injection.decision.reason))
    if injection.error is not None:
        assert injection.decision.reason is Reason.INTERNAL_ERROR
        assert injection.patch is None
    elif injection.patch:
        jsonpatch.JsonPatch(injection.patch).apply(broken["object"])
    msgspec.json.encode(injection.patch)
