"""The API server calls again after another webhook has changed a pinned pod: the guard is evaluated again."""

from copy import deepcopy
from typing import Any

import pytest

from tests.support.builders import (
    PREFERRED,
    REQUIRED,
    Object,
    apply_injection,
    injection_for,
    node,
    node_terms,
    share_manager_pod,
    storage,
    virt_launcher,
)
from webhook.placement.affinity import CO_SCHEDULED_NODE, DECISION
from webhook.placement.reasons import Outcome, Reason

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
    ("fields", "settings"),
    [({}, {"node_guard": False}), ({"annotations": {"kubevirt-scheduler/co-schedule-mode": "preferred"}}, {})],
    ids=["guard off", "preferred mode"],
)
def test_a_pod_without_a_guarded_pin_is_not_evaluated_again(fields: Object, settings: Object) -> None:
    launcher = virt_launcher(**fields)
    first = apply_injection(launcher, injection_for(launcher, *CLUSTER, **settings))
    second = injection_for(with_sidecar(first), *CLUSTER, **settings)
    assert (second.decision.reason, second.patch) == (Reason.ALREADY_INJECTED, None)


def test_a_steered_share_manager_pod_is_not_evaluated_again() -> None:
    cluster = [*storage(), virt_launcher("vm", node="node-a"), node()]
    manager_pod = share_manager_pod("vol-disk1")
    first = apply_injection(manager_pod, injection_for(manager_pod, *cluster))
    second = injection_for(with_node_selector(first), *cluster)
    assert (second.decision.reason, second.patch) == (Reason.ALREADY_INJECTED, None)
