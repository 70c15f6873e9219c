"""A VM that is not pinned never competes with a pinned one."""

from typing import Any

import pytest

from tests.support.builders import (
    Object,
    catalog,
    decision_for,
    node,
    node_terms,
    pinned_fields,
    pod,
    pod_anti_affinity,
    pod_term,
    request,
    settings,
    share_manager,
    storage,
    virt_launcher,
)
from webhook.placement.injector import decide
from webhook.placement.reasons import Outcome, Reason

FOUR_CPUS = node(allocatable={"cpu": "4", "memory": "8Gi", "pods": "110"})
LABELS = {"app": "db"}
REPELLING = pod_anti_affinity(pod_term(LABELS))


def vm(cpu: str = "1", **rest: Any) -> Object:
    return virt_launcher(requests={"cpu": cpu}, **rest)


def pinned(cpu: str, **rest: Any) -> Object:
    """Build a VM's pod that is pinned to node-a and not bound yet."""
    fields = pinned_fields("node-a")
    affinity = fields["affinity"] | rest.pop("affinity", {})
    return virt_launcher("pinned", requests={"cpu": cpu}, annotations=fields["annotations"], affinity=affinity, **rest)


@pytest.mark.parametrize(
    ("created", "others", "reason"),
    [
        pytest.param(vm("2"), [pinned("3")], Reason.NODE_FULL, id="a full node"),
        pytest.param(
            vm(affinity=REPELLING, labels=LABELS),
            [pinned("1", labels=LABELS)],
            Reason.POD_AFFINITY,
            id="a pinned pod that repels the VM",
        ),
        pytest.param(
            vm("2", resourceClaims=[{"name": "gpu"}], annotations={"kubevirt-scheduler/co-schedule-mode": "preferred"}),
            [pinned("3")],
            Reason.NODE_FULL,
            id="a VM that only prefers the node anyway",
        ),
    ],
)
def test_a_vm_does_not_even_prefer_a_node_whose_room_pinned_pods_need(
    created: Object, others: list[Object], reason: Reason
) -> None:
    decision = decision_for(created, *storage(), FOUR_CPUS, *others)
    assert (decision.outcome, decision.reason, decision.node) == (Outcome.UNCHANGED, reason, "node-a")
    assert decision.message.endswith(", so other nodes are preferred while pinned VMs wait to start there")


@pytest.mark.parametrize(
    ("created", "others", "reason"),
    [
        pytest.param(vm("2"), [pod("o", requests={"cpu": "3"}, node="node-a")], Reason.NODE_FULL, id="bound pods"),
        pytest.param(vm(resourceClaims=[{"name": "gpu"}]), [pinned("3")], Reason.UNJUDGED, id="capacity for both"),
        pytest.param(vm("1"), [pinned("4", node="node-a")], Reason.NODE_FULL, id="a pinned pod that is bound"),
    ],
)
def test_a_vm_prefers_a_node_whose_room_no_pinned_pod_needs(
    created: Object, others: list[Object], reason: Reason
) -> None:
    decision = decision_for(created, *storage(), FOUR_CPUS, *others)
    assert (decision.outcome, decision.reason) == (Outcome.PREFERRED, reason)


def test_a_contested_node_is_not_preferred_while_the_share_manager_starts() -> None:
    starting = [*storage()[:2], share_manager(state="starting")]
    other_vm = virt_launcher("vm2", node="node-a", labels={"kubevirt.io/created-by": "vmi-2"})
    decision = decision_for(vm("2"), *starting, other_vm, pinned("3"), FOUR_CPUS)
    assert (decision.outcome, decision.reason) == (Outcome.UNCHANGED, Reason.SHARE_MANAGER_STARTING)


def test_a_stale_cache_softens_the_pin_and_is_the_first_reason() -> None:
    store = catalog(*storage(), node(ready="False"))
    store.stale = ("nodes", "pods")
    decision = decide(request(vm(affinity=node_terms())), store, settings())
    assert (decision.outcome, decision.reason) == (Outcome.PREFERRED, Reason.CACHE_STALE)
    assert "the webhook received no update of nodes and pods for 5 minutes" in decision.message
