"""The node guard compares requests with free resources exactly, and a rejected pin becomes a preference."""

from typing import Any

import pytest

from tests.support.builders import (
    REQUIRED,
    ZONE,
    Object,
    apply_injection,
    claim,
    decision_for,
    injection_for,
    name_requirement,
    node,
    node_terms,
    pinned_fields,
    pod,
    pod_anti_affinity,
    pod_term,
    share_manager,
    virt_launcher,
    volume,
)
from webhook.placement.reasons import Mode, Outcome, Reason

KVM = "devices.kubevirt.io/kvm"
# A ShareManager object instead of its pod, because a pod would use resources of the node.
SHARED_DISK = [claim(), volume(), share_manager()]


def launcher_requesting(**requests: str) -> Object:
    return virt_launcher(requests=requests)


@pytest.mark.parametrize(
    ("vm", "allocatable", "detail"),
    [
        pytest.param(launcher_requesting(cpu="2"), {"cpu": "2"}, None, id="an exact fit of cpu passes"),
        pytest.param(
            launcher_requesting(cpu="2001m"),
            {"cpu": "2"},
            "cpu (requested 2001m)",
            id="one millicore too much is rejected",
        ),
        pytest.param(
            launcher_requesting(**{KVM: "1"}),
            {"cpu": "1"},
            f"{KVM} (requested 1)",
            id="a device that the node lacks is rejected",
        ),
        pytest.param(launcher_requesting(cpu="1"), {}, "cpu (requested 1)", id="an empty allocatable is rejected"),
        pytest.param(launcher_requesting(cpu="1"), None, None, id="an absent allocatable passes"),
    ],
)
def test_the_requests_of_a_vm_must_fit_an_empty_node(
    vm: Object, allocatable: Object | None, detail: str | None
) -> None:
    decision = decision_for(vm, *SHARED_DISK, node(allocatable=allocatable), node("node-b", allocatable={KVM: "1k"}))
    assert decision.reason is (Reason.NODE_FULL if detail else Reason.CO_SCHEDULED)
    assert detail is None or detail in decision.message


ONE_CPU = {"requests": {"cpu": "1"}}


@pytest.mark.parametrize(
    ("vm", "others", "is_full"),
    [
        pytest.param(
            {}, [pod("x", node="node-a", requests={"cpu": "2"}, deleting=True)], True, id="a terminating pod counts"
        ),
        pytest.param(
            {},
            [virt_launcher("x", requests={"cpu": "2"}, **pinned_fields("node-a"))],
            True,
            id="an unscheduled pod pinned to the node counts",
        ),
        pytest.param(
            {"name": "x"}, [pod("x", node="node-a", requests={"cpu": "2"})], False, id="the pod itself is ignored"
        ),
        pytest.param({}, [pod(f"x{i}", node="node-a") for i in range(4)], True, id="one pod too many is rejected"),
        pytest.param(
            {},
            [pod("x", node="node-a", requests={"memory": "9Gi", "cpu": "1"})],
            False,
            id="memory that the VM does not request is ignored",
        ),
    ],
)
def test_the_pods_on_a_node_reduce_its_free_resources(vm: Object, others: list[Object], is_full: bool) -> None:
    small_node = node(allocatable={"cpu": "2", "memory": "1Gi", "pods": "4"})
    decision = decision_for(virt_launcher(**vm, **ONE_CPU), *SHARED_DISK, small_node, *others)
    assert decision.reason is (Reason.NODE_FULL if is_full else Reason.CO_SCHEDULED)


def test_a_decision_tells_no_free_amount_and_no_taint() -> None:
    taint = {"key": "tenant-b", "value": "secret", "effect": "NoSchedule"}
    small = node(allocatable={"cpu": "12345m", "pods": "9"})
    full = injection_for(
        launcher_requesting(cpu="2"), *SHARED_DISK, small, pod("x", node="node-a", requests={"cpu": "12"})
    )
    tainted = injection_for(launcher_requesting(cpu="2"), *SHARED_DISK, node(taints=[taint]))
    assert [each.decision.reason for each in (full, tainted)] == [Reason.NODE_FULL, Reason.NODE_TAINTED]
    said = repr([full.patch, full.warnings, full.decision.message, tainted.patch, tainted.warnings])
    assert not any(word in said for word in ("345", "12", "tenant-b", "secret"))


def test_every_check_passes_while_no_node_is_known() -> None:
    unreachable_pv = volume(required={"nodeSelectorTerms": []})
    vm = virt_launcher(
        nodeSelector={"a": "b"}, affinity=node_terms({"matchFields": [name_requirement("node-a", "NotIn")]}), **ONE_CPU
    )
    assert decision_for(vm, *SHARED_DISK, unreachable_pv).outcome is Outcome.PINNED


NOT_READY = node(ready="False")
PREFERRED_MODE = {"kubevirt-scheduler/co-schedule-mode": "preferred"}


@pytest.mark.parametrize(
    "owner", ["node-a", "Not A Name", "n" * 254], ids=["a deleted node", "an invalid name", "a name that is too long"]
)
def test_a_nonexistent_node_adds_no_affinity(owner: str) -> None:
    vm_pod = virt_launcher(annotations={"kubevirt-scheduler/co-scheduled-node": "stale"})
    injection = injection_for(vm_pod, claim(), volume(), share_manager(owner=owner), node("node-b"))
    decision, after = injection.decision, apply_injection(vm_pod, injection)
    assert (decision.outcome, decision.reason, decision.node) == (Outcome.UNCHANGED, Reason.NODE_NOT_FOUND, owner)
    assert "affinity" not in after["spec"]
    assert "kubevirt-scheduler/co-scheduled-node" not in after["metadata"]["annotations"]
    assert after["metadata"]["annotations"]["kubevirt-scheduler/decision"].endswith("so no node affinity is added")


@pytest.mark.parametrize(
    ("vm", "overrides", "outcome"),
    [
        pytest.param({}, {"node_guard": False}, Outcome.PINNED, id="a disabled guard pins"),
        pytest.param({}, {"affinity_mode": Mode.PREFERRED}, Outcome.PREFERRED, id="a preferred default mode prefers"),
        pytest.param({"annotations": PREFERRED_MODE}, {}, Outcome.PREFERRED, id="a VM in preferred mode prefers"),
    ],
)
def test_the_guard_checks_nothing_when_disabled_or_in_preferred_mode(
    vm: Object, overrides: Object, outcome: Outcome
) -> None:
    for target_node in (
        NOT_READY,
        node("node-b"),
        node(unschedulable=True),
        node(labels={ZONE: "x"}, allocatable={"pods": "0"}),
    ):
        decision = decision_for(virt_launcher(**vm), *SHARED_DISK, target_node, **overrides)
        assert (decision.outcome, decision.reason) == (outcome, Reason.CO_SCHEDULED)


@pytest.mark.parametrize("terms", [(), (None,), ({}, None)], ids=["none", "null", "empty and null"])
@pytest.mark.parametrize("guard", [True, False])
def test_a_pod_whose_affinity_matches_no_node_is_never_pinned(terms: tuple[Any, ...], guard: bool) -> None:
    vm_pod = virt_launcher(affinity=node_terms(*terms))
    injection = injection_for(vm_pod, *SHARED_DISK, node(), node_guard=guard)
    assert (injection.decision.outcome, injection.decision.reason) == (Outcome.PREFERRED, Reason.NODE_MISMATCH)
    required = apply_injection(vm_pod, injection)["spec"]["affinity"]["nodeAffinity"][REQUIRED]
    assert required == {"nodeSelectorTerms": list(terms)}


@pytest.mark.parametrize(
    ("priority", "node_name", "spec", "expected"),
    [
        (1000, "node-a", {}, Reason.NODE_FULL),
        (999, "node-a", {}, Reason.CO_SCHEDULED),
        (1000, "node-b", {}, Reason.CO_SCHEDULED),
        (
            1000,
            "node-a",
            {"requests": {}, "affinity": pod_anti_affinity(pod_term({"app": "web"}))},
            Reason.POD_AFFINITY,
        ),
        (999, "node-a", {"requests": {}, "affinity": pod_anti_affinity(pod_term({"app": "web"}))}, Reason.CO_SCHEDULED),
        (1000, "node-b", {"affinity": pod_anti_affinity(pod_term({"app": "web"}, ZONE))}, Reason.CO_SCHEDULED),
    ],
    ids=["equal", "lower", "other node", "equal, repelling", "lower, repelling", "other node of the zone, repelling"],
)
def test_a_nominated_pod_counts_on_its_node_if_its_priority_is_at_least_that_of_the_vm(
    priority: int, node_name: str, spec: Object, expected: Reason
) -> None:
    nodes = [node(name, labels={ZONE: "east"}, allocatable={"cpu": "1"}) for name in ("node-a", "node-b")]
    nominated = pod("preemptor", **{"requests": {"cpu": "1"}} | spec, priority=priority)
    nominated["status"]["nominatedNodeName"] = node_name
    vm = virt_launcher(requests={"cpu": "1"}, labels={"app": "web"}, priority=1000)
    assert decision_for(vm, *SHARED_DISK, *nodes, nominated).reason is expected
