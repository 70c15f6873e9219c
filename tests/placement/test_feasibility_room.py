"""The node guard counts room exactly, and what it refuses is softened."""

import re
from typing import Any

import pytest

from tests.support.builders import (
    PREFERRED,
    REQUIRED,
    ZONE,
    Object,
    catalog,
    claim,
    decided,
    injected,
    node,
    node_named,
    node_terms,
    patched,
    pinned,
    pod,
    share_manager,
    virt_launcher,
    volume,
)
from webhook.placement.decision import Mode, Outcome, Reason
from webhook.placement.feasibility import Candidate, ResourceFit, first_failed_check, resource_fits
from webhook.placement.resources import amounts

KVM = "devices.kubevirt.io/kvm"
# A share-manager pod would be a load of its own.
SERVED = [claim(), volume(), share_manager()]


def asking(**requests: str) -> Object:
    return virt_launcher(requests=requests)


@pytest.mark.parametrize(
    ("vm", "allocatable", "full"),
    [
        pytest.param(asking(cpu="2"), {"cpu": "2"}, None, id="an exact fit"),
        pytest.param(asking(cpu="2001m"), {"cpu": "2"}, "cpu: 2001m asked for, 2 free", id="one milli too much"),
        pytest.param(asking(memory="1Gi"), {"memory": "1Gi"}, None, id="an exact fit of memory"),
        pytest.param(asking(memory="1073741825"), {"memory": "1Gi"}, "memory: ", id="a byte"),
        pytest.param(asking(**{KVM: "1"}), {KVM: "1"}, None, id="the last device"),
        pytest.param(asking(**{KVM: "1"}), {KVM: "0"}, f"{KVM}: 1 asked for, 0 free", id="no device left"),
        pytest.param(
            asking(**{KVM: "1"}), {"cpu": "1"}, f"{KVM}: 1 asked for, 0 free", id="a device that the node has not"
        ),
        pytest.param(asking(cpu="1"), {}, "cpu: 1 asked for, 0 free", id="a node that offers nothing"),
        pytest.param(asking(cpu="1"), None, None, id="a node that does not tell"),
        pytest.param(asking(cpu="0"), {"cpu": "0"}, None, id="nothing is asked for"),
        pytest.param(asking(), {"pods": "1"}, None, id="the last place"),
        pytest.param(asking(), {"pods": "0"}, "pods: 1 asked for, 0 free", id="no place for a pod"),
        pytest.param(asking(), {"cpu": "0"}, None, id="a node that does not tell how many pods it takes"),
        pytest.param(
            asking(**{"ephemeral-storage": "51M"}), {"ephemeral-storage": "50M"}, "ephemeral-storage", id="disk"
        ),
        pytest.param(
            virt_launcher(overhead={"cpu": "1"}), {"cpu": "999m"}, "cpu: 1 asked for, 999m free", id="overhead"
        ),
        pytest.param(
            virt_launcher(resources={"requests": {"cpu": "2"}}),
            {"cpu": "1"},
            "cpu: 2 asked for",
            id="pod-level requests",
        ),
        pytest.param(
            virt_launcher(initContainers=[{"name": "i", "resources": {"requests": {"cpu": "2"}}}]),
            {"cpu": "1"},
            "cpu",
            id="init",
        ),
    ],
)
def test_an_empty_node_has_room_for_what_it_offers(vm: Object, allocatable: Object | None, full: str | None) -> None:
    decision = decided(vm, *SERVED, node(allocatable=allocatable))
    assert decision.reason is (Reason.NODE_FULL if full else Reason.CO_SCHEDULED)
    assert full is None or full in decision.message


ONE_CPU = {"requests": {"cpu": "1"}}


@pytest.mark.parametrize(
    ("vm", "others", "full"),
    [
        pytest.param({}, [pod("x", node="node-a", **ONE_CPU)], False, id="an exact fit beside another"),
        pytest.param({}, [pod("x", node="node-a", requests={"cpu": "1001m"})], True, id="one milli too much"),
        pytest.param({}, [pod("x", node="node-b", requests={"cpu": "2"})], False, id="a pod on another node"),
        pytest.param({}, [pod("x", "other", node="node-a", requests={"cpu": "2"})], True, id="of any namespace"),
        pytest.param({}, [pod("x", node="node-a", requests={"cpu": "2"}, deleting=True)], True, id="a terminating pod"),
        pytest.param({}, [pod("x", node="node-a", requests={"cpu": "2"}, phase="Pending")], True, id="a Pending pod"),
        pytest.param(
            {}, [pod("x", node="node-a", requests={"cpu": "2"}, phase="Succeeded")], False, id="a finished pod"
        ),
        pytest.param({}, [pod("x", node="node-a", requests={"cpu": "2"}, phase="Failed")], False, id="a failed pod"),
        pytest.param({}, [pod("x", requests={"cpu": "2"})], False, id="a pod without a node"),
        pytest.param({}, [pod("x", requests={"cpu": "2"}, **pinned("node-a"))], True, id="a pod that we pinned"),
        pytest.param({}, [pod("x", requests={"cpu": "2"}, **pinned("node-b"))], False, id="a pod pinned elsewhere"),
        pytest.param(
            {}, [pod("x", node="node-b", requests={"cpu": "2"}, **pinned("node-a"))], False, id="bound elsewhere"
        ),
        pytest.param({"name": "x"}, [pod("x", node="node-a", requests={"cpu": "2"})], False, id="the pod itself"),
        pytest.param({}, [pod(f"x{i}", node="node-a") for i in range(3)], False, id="the last place"),
        pytest.param({}, [pod(f"x{i}", node="node-a") for i in range(4)], True, id="one pod too many"),
        pytest.param(
            {}, [pod("x", node="node-a", requests={"memory": "9Gi", "cpu": "1"})], False, id="what is not asked for"
        ),
    ],
)
def test_the_pods_on_a_node_leave_less_room(vm: Object, others: list[Object], full: bool) -> None:
    offered = node(allocatable={"cpu": "2", "memory": "1Gi", "pods": "4"})
    decision = decided(virt_launcher(**vm, **ONE_CPU), *SERVED, offered, *others)
    assert decision.reason is (Reason.NODE_FULL if full else Reason.CO_SCHEDULED)


def test_a_pod_that_only_prefers_a_node_is_no_load_on_it() -> None:
    softened = pod("x", requests={"cpu": "2"}, **pinned("node-a"))
    del softened["spec"]["affinity"]["nodeAffinity"][REQUIRED]
    assert decided(asking(cpu="2"), *SERVED, node(allocatable={"cpu": "2"}), softened).reason is Reason.CO_SCHEDULED


def test_room_is_told_resource_by_resource() -> None:
    offered = node(allocatable={"cpu": "4", "memory": "1k", "pods": "9"})
    known = catalog(offered, pod("x", node="node-a", requests={"cpu": "5", "memory": "1"}))
    asked = Candidate(asking(cpu="100m", memory="1k"), "default", "node-a", (), known)
    assert resource_fits(asked) == [
        ResourceFit("pods", 1, 8),
        ResourceFit("cpu", 100, -1000),
        ResourceFit("memory", 1000, 999),
    ]
    assert first_failed_check(asked).detail == "it is full (cpu: 100m asked for, 0 free)"


@pytest.mark.parametrize("size", ["1Gi", "20Gi", "200Mi"])
def test_what_does_not_fit_is_not_written_as_if_it_did(size: str) -> None:
    (offered,) = amounts({"memory": size}).values()
    message = decided(asking(memory=str(offered + 1)), *SERVED, node(allocatable={"memory": size})).message
    asked, free = re.findall(r"(\S+) (?:asked for|free)", message)
    assert asked != free


@pytest.mark.parametrize("known", [catalog(), catalog(node())], ids=["no node", "a node without allocatable"])
def test_room_that_is_not_known_is_not_told(known: Any) -> None:
    asked = Candidate(asking(cpu="1"), "default", "node-a", (), known)
    assert (resource_fits(asked), first_failed_check(asked)) == ([], None)


def test_without_any_node_known_every_check_passes() -> None:
    tied = volume(required={"nodeSelectorTerms": []})
    vm = virt_launcher(nodeSelector={"a": "b"}, affinity=node_terms({"matchFields": [node_named("node-b")]}), **ONE_CPU)
    assert decided(vm, *SERVED, tied).outcome is Outcome.PINNED


NOT_READY = node(ready="False")
WISH = {"kubevirt-scheduler/co-schedule-mode": "preferred"}


def test_a_refused_pin_is_softened() -> None:
    made = virt_launcher(affinity=node_terms({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}))
    injection = injected(made, *SERVED, NOT_READY)
    decision, after = injection.decision, patched(made, injection)
    assert (decision.outcome, decision.reason, decision.node, decision.mode) == (
        Outcome.PREFERRED,
        Reason.NODE_NOT_READY,
        "node-a",
        Mode.REQUIRED,
    )
    assert decision.message == "node-a serves claim disk1, but it is not Ready; it is preferred, not required"
    ours = [{"weight": 100, "preference": {"matchFields": [node_named("node-a")]}}]
    before = made["spec"]["affinity"]["nodeAffinity"]
    assert after["spec"]["affinity"]["nodeAffinity"] == before | {PREFERRED: ours}
    assert after["metadata"]["annotations"]["kubevirt-scheduler/co-scheduled-node"] == "node-a"


@pytest.mark.parametrize("owner", ["node-a", "Not A Name", "n" * 254], ids=["gone", "no name", "too long"])
def test_a_node_that_does_not_exist_gets_no_term_at_all(owner: str) -> None:
    made = virt_launcher(annotations={"kubevirt-scheduler/co-scheduled-node": "stale"})
    injection = injected(made, claim(), volume(), share_manager(owner=owner), node("node-b"))
    decision, after = injection.decision, patched(made, injection)
    assert (decision.outcome, decision.reason, decision.node) == (Outcome.UNCHANGED, Reason.NODE_NOT_FOUND, owner)
    assert "affinity" not in after["spec"]
    assert "kubevirt-scheduler/co-scheduled-node" not in after["metadata"]["annotations"]
    assert after["metadata"]["annotations"]["kubevirt-scheduler/decision"].endswith("nothing was added")


@pytest.mark.parametrize(
    ("vm", "chosen", "outcome"),
    [
        pytest.param({}, {"node_guard": False}, Outcome.PINNED, id="the guard is off"),
        pytest.param({}, {"affinity_mode": Mode.PREFERRED}, Outcome.PREFERRED, id="only a wish"),
        pytest.param({"annotations": WISH}, {}, Outcome.PREFERRED, id="only the VM's wish"),
        pytest.param({"annotations": WISH}, {"node_guard": False}, Outcome.PREFERRED, id="a wish without a guard"),
    ],
)
def test_nothing_is_guarded_where_nothing_is_to_guard(vm: Object, chosen: Object, outcome: Outcome) -> None:
    for where in (
        NOT_READY,
        node("node-b"),
        node(unschedulable=True),
        node(labels={ZONE: "x"}, allocatable={"pods": "0"}),
    ):
        decision = decided(virt_launcher(**vm), *SERVED, where, **chosen)
        assert (decision.outcome, decision.reason) == (outcome, Reason.CO_SCHEDULED)


@pytest.mark.parametrize("terms", [(), (None,), ({}, None)], ids=["none", "null", "empty and null"])
@pytest.mark.parametrize("guard", [True, False])
def test_a_pod_that_matches_no_node_is_never_pinned(terms: tuple[Any, ...], guard: bool) -> None:
    made = virt_launcher(affinity=node_terms(*terms))
    injection = injected(made, *SERVED, node(), node_guard=guard)
    assert (injection.decision.outcome, injection.decision.reason) == (Outcome.PREFERRED, Reason.NODE_MISMATCH)
    required = patched(made, injection)["spec"]["affinity"]["nodeAffinity"][REQUIRED]
    assert required == {"nodeSelectorTerms": list(terms)}
