"""Properties of every decision, checked with random clusters."""

from copy import deepcopy
from typing import Any

import jsonpatch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.support.builders import REQUIRED, catalog, inject_request, name_requirement, request
from tests.support.random_clusters import clusters, pods, storage
from webhook.catalog.store import Store
from webhook.placement.injector import Injection
from webhook.placement.objects.fields import mappings
from webhook.placement.reasons import Outcome, Reason
from webhook.placement.settings import Settings

thorough = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])

Object = dict[str, Any]


@st.composite
def scenarios(draw: st.DrawFn) -> tuple[Object, Object, Object, str]:
    """Draw a pod, a cluster, the storage, and the node that serves it. Some users name that node themselves."""
    cluster, pod = draw(clusters()), draw(pods())
    node = draw(st.sampled_from(cluster["nodes"]))["metadata"]["name"]
    terms = mappings(pod, "spec", "affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms")
    for term in draw(st.sampled_from([[], [], terms, terms[:1]])):
        term.setdefault("matchFields", []).append(name_requirement(node))
    return pod, cluster, draw(storage(node)), node


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
@given(scenario=scenarios(), guard=st.booleans(), mode=st.sampled_from(["required", "preferred", "nonsense", None]))
def test_a_call_only_adds_to_the_pod_and_a_second_call_adds_nothing(
    scenario: tuple[Object, Object, Object, str], guard: bool, mode: str | None
) -> None:
    pod, cluster, disk, node = scenario
    if mode is not None:
        pod["metadata"]["annotations"]["kubevirt-scheduler/co-schedule-mode"] = mode
    received, store = deepcopy(pod), store_of(cluster, disk)
    chosen = Settings(node_guard=guard, scheduler_names={"default-scheduler": "my-scheduler"})
    first = inject_request(request(pod), store, chosen)
    assert pod == received
    assert all(len(warning) <= 120 for warning in first.warnings)
    result = apply_patch(pod, first)
    second = inject_request(request(deepcopy(result)), store, chosen)
    assert second.patch is None
    added = first.decision.outcome is not Outcome.UNCHANGED
    assert second.decision.reason is (Reason.ALREADY_INJECTED if added else first.decision.reason)
    for key in ("co-scheduled-node", "decision"):
        result["metadata"]["annotations"].pop(f"kubevirt-scheduler/{key}", None)
    assert result["spec"].pop("schedulerName", None) in {"my-scheduler", pod["spec"].pop("schedulerName", None)}
    # A user's requirement that equals the pin is removed from both.
    assert without_empty_values(without_injected_terms(result, node)) == without_empty_values(
        without_injected_terms(pod, node)
    )


@thorough
@given(scenario=scenarios())
def test_a_second_call_removes_no_term_of_the_user(scenario: tuple[Object, Object, Object, str]) -> None:
    """Another webhook adds a sidecar in between, which doesn't fit, so the pin is removed."""
    pod, cluster, disk, _ = scenario
    store = store_of(cluster, disk)
    changed = apply_patch(pod, inject_request(request(pod), store, Settings()))
    sidecar = {"name": "sidecar", "image": "any", "resources": {"requests": {"cpu": "99", "memory": "99Gi"}}}
    changed["spec"]["containers"].append(sidecar)
    second = inject_request(request(changed), store, Settings())
    event(f"removes the pin: {second.decision.unpins}")
    after = apply_patch(changed, second)
    terms, left = (
        mappings(each, "spec", "affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms") for each in (pod, after)
    )
    assert len(left) >= len(terms)
    for term, remaining in zip(terms, left, strict=False):
        assert remaining.get("matchExpressions") == term.get("matchExpressions")
        assert all(field in remaining["matchFields"] for field in term.get("matchFields", []))
