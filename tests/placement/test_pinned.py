"""An earlier injection is recognized from the pod alone and can be removed."""

from copy import deepcopy
from typing import Any

import pytest

from tests.support.builders import (
    PREFERRED,
    REQUIRED,
    Object,
    apply_injection,
    injection_for,
    name_requirement,
    node,
    node_terms,
    pinned_fields,
    pod,
    share_manager_pod,
    storage,
    typed,
    virt_launcher,
    without_injection,
)
from webhook.placement.affinity import (
    CO_SCHEDULED_NODE,
    DECISION,
    matches_no_node,
    pinned_node,
    with_node,
)
from webhook.placement.eligibility import MODE_ANNOTATION
from webhook.placement.reasons import Outcome, Reason

PIN = name_requirement("node-a")
PINNED_TERM = {"matchFields": [PIN]}
SSD = {"key": "disk", "operator": "In", "values": ["ssd"]}
NOT_B = name_requirement("node-b", "NotIn")
USER_PREFERENCE = {"weight": 100, "preference": {"matchFields": [name_requirement("node-b")]}}
OTHER_AFFINITY = {"podAntiAffinity": {REQUIRED: [{"topologyKey": "x"}]}, "podAffinity": None, "future": [1]}


PINNED_FIELDS = pinned_fields("node-a")


@pytest.mark.parametrize(
    ("fields", "node"),
    [
        ({}, "node-a"),
        ({"affinity": node_terms(None, {}, PINNED_TERM)}, "node-a"),
        ({"affinity": node_terms(PINNED_TERM, {"matchExpressions": [SSD]})}, ""),
        ({"affinity": None}, ""),
        ({"annotations": {}}, ""),
    ],
    ids=["ours", "empty terms beside it", "a term without the pin", "only the annotation", "only the term: a user's"],
)
def test_pinned_node_requires_the_annotation_and_every_term(fields: Object, node: str) -> None:
    manifest = typed(virt_launcher("one", **PINNED_FIELDS | fields))
    assert pinned_node(manifest.annotations, manifest.node_terms) == node


@pytest.mark.parametrize(
    "affinity",
    [
        {"nodeAffinity": {}},
        node_terms({"matchExpressions": [SSD]}) | OTHER_AFFINITY,
        node_terms({"matchExpressions": [SSD]}, None, {}, {"matchFields": [NOT_B]}),
        {"nodeAffinity": {PREFERRED: [USER_PREFERENCE]}},
    ],
    ids=["no affinity", "one term", "several terms", "a preference"],
)
@pytest.mark.parametrize("pin", [True, False], ids=["required", "preferred"])
def test_without_injection_restores_the_users_pod(affinity: Object, pin: bool) -> None:
    annotations = {"kubevirt-scheduler/co-scheduled-node": "node-a", "kubevirt-scheduler/decision": "x", "user": "y"}
    injected_pod = pod(affinity=with_node(affinity, "node-a", pin=pin), annotations=annotations, hostname="vm1")
    before = deepcopy(injected_pod)
    assert without_injection(injected_pod) == pod(affinity=affinity, annotations={"user": "y"}, hostname="vm1")
    assert injected_pod == before


@pytest.mark.parametrize(
    "required", [{"nodeSelectorTerms": []}, {"nodeSelectorTerms": None}, {}], ids=["empty", "null", "absent"]
)
def test_without_injection_keeps_an_affinity_that_matches_nothing(required: Object) -> None:
    affinity = with_node({"nodeAffinity": {REQUIRED: required}}, "node-a", pin=False)
    restored_pod = without_injection(pod(affinity=affinity, annotations=PINNED_FIELDS["annotations"]))
    assert matches_no_node(typed(restored_pod).node_terms)


# A later call, after another webhook has changed the pinned pod: the guard is evaluated again


ARCH = {"matchExpressions": [{"key": "arch", "operator": "DoesNotExist"}]}
CLUSTER = [*storage(), node(allocatable={"cpu": "4", "pods": "10"})]
SIDECAR = {"name": "sidecar", "image": "any", "resources": {"requests": {"cpu": "5"}}}


def pinned_pod(**fields: Any) -> Object:
    """Return a pod that the webhook has pinned to node-a."""
    launcher = virt_launcher(**fields)
    injection = injection_for(launcher, *CLUSTER)
    assert injection.decision.outcome is Outcome.PINNED
    after: Object = apply_injection(launcher, injection)
    return after


def with_sidecar(pod: Object) -> Object:
    changed = deepcopy(pod)
    changed["spec"]["containers"].append(SIDECAR)
    return changed


def with_node_selector(pod: Object) -> Object:
    changed = deepcopy(pod)
    changed["spec"]["nodeSelector"] = {"disk": "ssd"}
    return changed


@pytest.mark.parametrize(
    ("change", "reason"), [(with_sidecar, Reason.NODE_FULL), (with_node_selector, Reason.NODE_MISMATCH)]
)
@pytest.mark.parametrize("affinity", [{}, node_terms(ARCH)], ids=["only the pin", "the user's own term"])
def test_a_pin_is_removed_if_the_changed_pod_no_longer_fits(change: Any, reason: Reason, affinity: Object) -> None:
    changed = change(pinned_pod(affinity=affinity))
    injection = injection_for(changed, *CLUSTER)
    decision, after = injection.decision, apply_injection(changed, injection)
    assert (decision.outcome, decision.reason, decision.node) == (Outcome.PREFERRED, reason, "node-a")
    node_affinity = after["spec"]["affinity"]["nodeAffinity"]
    assert node_affinity.get(REQUIRED) == affinity.get("nodeAffinity", {}).get(REQUIRED)
    assert node_affinity[PREFERRED] == changed["spec"]["affinity"]["nodeAffinity"][PREFERRED]
    assert after["metadata"]["annotations"][CO_SCHEDULED_NODE] == "node-a"
    assert after["metadata"]["annotations"][DECISION].startswith(f"{reason}: was pinned to node-a")
    assert injection.warnings
    third = injection_for(after, *CLUSTER)
    assert (third.decision.reason, third.patch) == (Reason.ALREADY_INJECTED, None)


@pytest.mark.parametrize(
    ("created", "settings"),
    [
        (virt_launcher(), {"node_guard": False}),
        (virt_launcher(annotations={"kubevirt-scheduler/co-schedule-mode": "preferred"}), {}),
        (share_manager_pod(), {}),
    ],
    ids=["guard off", "preferred mode", "a steered share-manager"],
)
def test_a_pod_without_a_guarded_pin_is_not_evaluated_again(created: Object, settings: Object) -> None:
    cluster = [*CLUSTER, virt_launcher("vm", node="node-a")]
    first = apply_injection(created, injection_for(created, *cluster, **settings))
    assert first != created
    for changed in with_sidecar(first), with_node_selector(first):
        second = injection_for(changed, *cluster, **settings)
        assert (second.decision.reason, second.patch) == (Reason.ALREADY_INJECTED, None)


SMALL_NODE = node(allocatable={"cpu": "2", "memory": "1Gi", "pods": "10"})
RELAXED = {"annotations": {MODE_ANNOTATION: "preferred"}}


@pytest.mark.parametrize(
    ("fields", "options", "reserves", "prefers"),
    [
        ({}, {}, True, False),
        ({}, {"node_guard": False}, False, False),
        (RELAXED, {}, True, True),
        (RELAXED, {"node_guard": False}, False, False),
        (RELAXED | {"requests": {"cpu": "3"}}, {}, False, False),
        (RELAXED | {"schedulingGates": [{"name": "quota"}]}, {}, False, False),
        ({"requests": {"cpu": "3"}}, {}, False, False),
    ],
    ids=["pinned", "no guard", "preferred", "preferred, no guard", "preferred, too large", "gated", "too large"],
)
def test_a_decision_reserves_what_may_soon_run_on_the_node(
    fields: Object, options: Object, reserves: bool, prefers: bool
) -> None:
    reservation = injection_for(virt_launcher(**fields), *storage(), SMALL_NODE, **options).decision.reservation
    assert (reservation is not None, bool(reservation and reservation.prefers)) == (reserves, prefers)
