"""A share-manager pod follows its VM: softly, and only where Longhorn itself does not object."""

from copy import deepcopy
from typing import Any

import pytest

from tests.support.builders import (
    PREFERRED,
    Object,
    catalog,
    claim,
    decided,
    hotplug_pod,
    injected,
    node,
    node_named,
    patched,
    pod,
    settings,
    share_manager_pod,
    virt_launcher,
    volume,
)
from webhook.placement.consumers import Consumers, avoided_nodes, choose, find_consumers
from webhook.placement.decision import ClaimFinding, Mode, Outcome, Reason, Source

VOLUME = [claim(), volume()]
MIGRATION = {"kubevirt.io/migrationJobUID": "uid"}


def vm(name: str, where: str = "node-b", created: str = "2026-08-01T12:00:00Z", **rest: Any) -> Object:
    made = virt_launcher(name, node=where, **rest)
    made["metadata"]["creationTimestamp"] = created
    return made


def avoiding(*names: str, key: str = "metadata.name", operator: str = "NotIn") -> Object:
    fields = [node_named(name, operator) | {"key": key} for name in names]
    return {"affinity": {"nodeAffinity": {PREFERRED: [{"weight": 100, "preference": {"matchFields": fields}}]}}}


def names(consumers: Consumers) -> list[str]:
    return [found.name for found in consumers.pods]


@pytest.mark.parametrize(
    "consumer",
    [
        pytest.param([vm("one")], id="running"),
        pytest.param([vm("one", phase="Pending")], id="Pending and bound"),
        pytest.param([vm("one", labels=MIGRATION)], id="a migration target"),
        pytest.param(
            [vm("one", opt_in=None, annotations={"scheduler.kubevirt-scheduler.io/co-schedule": "true"})],
            id="later key",
        ),
        pytest.param([vm("one", claims=["other", "disk1"])], id="among other claims"),
        pytest.param([vm("one", claims=["root"]), hotplug_pod(vm("one"), node="node-b")], id="through its hotplug pod"),
        pytest.param(
            [hotplug_pod(vm("one"), node="node-b"), vm("one", claims=["root"])], id="its hotplug pod came first"
        ),
        pytest.param([vm("one"), hotplug_pod(vm("one"), node="node-b")], id="both itself and through its hotplug pod"),
    ],
)
def test_a_running_opted_in_vm_is_a_consumer(consumer: list[Object]) -> None:
    assert names(find_consumers(share_manager_pod(), catalog(*VOLUME, *consumer), settings())) == ["one"]


def test_a_vm_whose_only_claim_is_hotplugged_is_a_consumer() -> None:
    found = [vm("one", claims=[]), hotplug_pod(vm("one"), node="node-b")]
    assert names(find_consumers(share_manager_pod(), catalog(*VOLUME, *found), settings())) == ["one"]


@pytest.mark.parametrize(
    ("others", "consumer"),
    [
        pytest.param(VOLUME, [], id="nobody"),
        pytest.param(VOLUME, [virt_launcher("one")], id="not bound"),
        pytest.param(VOLUME, [vm("one", phase="Succeeded")], id="finished"),
        pytest.param(VOLUME, [vm("one", phase="Failed")], id="failed"),
        pytest.param(VOLUME, [vm("one", phase="Unknown")], id="of an unknown phase"),
        pytest.param(VOLUME, [vm("one", deleting=True)], id="terminating"),
        *(
            pytest.param(VOLUME, [vm("one", opt_in=value)], id=f"opted in by {value!r}")
            for value in (None, "True", True)
        ),
        pytest.param(VOLUME, [vm("one", claims=["disk2"])], id="another claim"),
        pytest.param(VOLUME, [vm("one", namespace="other")], id="a claim of that name elsewhere"),
        pytest.param(VOLUME, [pod("one", node="node-b", claims=["disk1"])], id="no VM"),
        pytest.param(VOLUME, [hotplug_pod(vm("one"), node="node-b")], id="a hotplug pod whose VM is not known"),
        pytest.param(
            VOLUME,
            [vm("one", claims=["root"], opt_in=None), hotplug_pod(vm("one"), node="node-b")],
            id="a hotplug pod whose VM is not opted in",
        ),
        pytest.param(
            VOLUME,
            [vm("one", claims=["root"]), hotplug_pod(vm("one"), node="node-b", phase="Succeeded")],
            id="a hotplug pod that has finished",
        ),
        pytest.param([claim()], [vm("one")], id="the PV is not known"),
        pytest.param([claim(), volume(claim="", name="pvc-disk1", handle="vol-disk1")], [vm("one")], id="no claimRef"),
        pytest.param([claim(), volume(namespace="other")], [vm("one")], id="the claimRef of another namespace"),
    ],
)
def test_without_a_consumer_the_pod_stays_as_it_was(others: list[Object], consumer: list[Object]) -> None:
    made = share_manager_pod(**avoiding("node-z"))
    before = deepcopy(made)
    injection = injected(made, *others, *consumer, node("node-b"))
    assert (injection.decision.outcome, injection.decision.reason) == (Outcome.UNCHANGED, Reason.NO_CONSUMER)
    assert (injection.patch, injection.warnings, injection.decision.node) == (None, (), None)
    assert made == before


def test_a_handle_finds_the_pv_before_a_name_does() -> None:
    other = volume("disk2", name="vol-disk1", handle="else")
    known = catalog(*VOLUME, other, vm("one"), vm("two", claims=["disk2"]))
    assert names(find_consumers(share_manager_pod("vol-disk1"), known, settings())) == ["one"]


def test_a_pv_is_found_by_name_where_no_handle_is() -> None:
    known = catalog(volume(name="vol-disk1", handle=""), vm("one"))
    assert find_consumers(share_manager_pod("vol-disk1"), known, settings()).claim == "disk1"


@pytest.mark.parametrize(
    ("vms", "where"),
    [
        pytest.param([vm("one")], "node-b", id="one"),
        pytest.param([vm("one", "a"), vm("two", "b"), vm("three", "b")], "b", id="the most"),
        pytest.param(
            [vm("one", "a", "2026-08-02T00:00:00Z"), vm("two", "b", "2026-08-01T00:00:00Z")], "b", id="the oldest"
        ),
        pytest.param(
            [vm("one", "a", "2026-08-01T00:00:00Z", labels=MIGRATION), vm("two", "b", "2026-08-02T00:00:00Z")],
            "b",
            id="no migration target, be it older",
        ),
        pytest.param(
            [vm("one", "a", labels=MIGRATION), vm("two", "a", labels=MIGRATION), vm("three", "b")],
            "a",
            id="the most of targets",
        ),
        pytest.param([vm("two", "b"), vm("one", "a")], "a", id="of the same age the first by name"),
    ],
)
def test_the_vms_vote_for_their_nodes(vms: list[Object], where: str) -> None:
    found = find_consumers(share_manager_pod(), catalog(*VOLUME, *vms), settings())
    assert choose(found, frozenset()).node == where


@pytest.mark.parametrize(
    ("fields", "avoided"),
    [
        pytest.param({}, set(), id="none"),
        pytest.param(avoiding("a"), {"a"}, id="Longhorn's term after a stale lease"),
        pytest.param(avoiding("a", "b"), {"a", "b"}, id="several"),
        pytest.param(avoiding("a", operator="In"), set(), id="a wish, not an aversion"),
        pytest.param(avoiding("a", key="metadata.namespace"), set(), id="another field"),
        pytest.param({"affinity": {"nodeAffinity": {PREFERRED: [None, {"preference": None}]}}}, set(), id="nulls"),
        pytest.param(
            {
                "affinity": {
                    "nodeAffinity": {
                        PREFERRED: [{"preference": {"matchFields": [node_named("a", "NotIn") | {"values": None}]}}]
                    }
                }
            },
            set(),
            id="null values",
        ),
    ],
)
def test_the_pod_names_the_nodes_it_prefers_against(fields: Object, avoided: set[str]) -> None:
    assert avoided_nodes(share_manager_pod(**fields)) == avoided


def test_an_avoided_node_is_out_and_the_next_one_wins() -> None:
    vms = [vm("one", "node-a"), vm("two", "node-a"), vm("three", "node-b")]
    decision = decided(share_manager_pod(**avoiding("node-a")), *VOLUME, *vms, node("node-a"), node("node-b"))
    assert (decision.reason, decision.node) == (Reason.CO_SCHEDULED, "node-b")
    assert decision.message == "prefers node-b, where 1 VM of this volume runs"


def test_with_every_node_avoided_nothing_is_added() -> None:
    injection = injected(share_manager_pod(**avoiding("node-b")), *VOLUME, vm("one"), node("node-b"))
    assert (injection.decision.outcome, injection.decision.reason) == (Outcome.UNCHANGED, Reason.NODE_AVOIDED)
    assert injection.patch is None


@pytest.mark.parametrize("mode", list(Mode))
def test_a_share_manager_pod_prefers_the_node_of_its_vms_and_never_requires_it(mode: Mode) -> None:
    made = share_manager_pod(**avoiding("node-a"))
    injection = injected(made, *VOLUME, vm("one"), vm("two"), node("node-b"), affinity_mode=mode)
    decision, after = injection.decision, patched(made, injection)
    assert (decision.outcome, decision.reason, decision.mode) == (
        Outcome.PREFERRED,
        Reason.CO_SCHEDULED,
        Mode.PREFERRED,
    )
    assert decision.claims == (ClaimFinding("disk1", "vol-disk1", "node-b", Source.VIRT_LAUNCHER_POD),)
    ours = {"weight": 100, "preference": {"matchFields": [node_named("node-b")]}}
    theirs = made["spec"]["affinity"]["nodeAffinity"][PREFERRED]
    assert after["spec"]["affinity"] == {"nodeAffinity": {PREFERRED: [*theirs, ours]}}
    assert after["metadata"]["annotations"] == {
        "kubevirt-scheduler/co-scheduled-node": "node-b",
        "kubevirt-scheduler/decision": "CoScheduled: prefers node-b, where 2 VMs of this volume run",
    }
    assert after | {"metadata": made["metadata"], "spec": made["spec"]} == made
    assert injection.warnings == ()


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        pytest.param(node("node-a"), Reason.NODE_NOT_FOUND, id="gone"),
        pytest.param(node("node-b", ready="False"), Reason.NODE_NOT_READY, id="not ready"),
        pytest.param(node("node-b", unschedulable=True), Reason.NODE_CORDONED, id="cordoned"),
        pytest.param(node("node-b", taints=[{"key": "x", "effect": "NoSchedule"}]), Reason.NODE_TAINTED, id="tainted"),
        pytest.param(node("node-b", allocatable={"cpu": "1m"}), Reason.NODE_FULL, id="full"),
    ],
)
def test_a_node_that_can_not_take_the_pod_adds_nothing(where: Object, reason: Reason) -> None:
    made = share_manager_pod(requests={"cpu": "2m"})
    injection = injected(made, *VOLUME, vm("one"), where)
    decision = injection.decision
    assert (decision.outcome, decision.reason, decision.node) == (Outcome.UNCHANGED, reason, "node-b")
    assert (injection.patch, injection.warnings) == (None, ())
    assert injected(made, *VOLUME, vm("one"), where, node_guard=False).decision.reason is Reason.CO_SCHEDULED


@pytest.mark.parametrize(
    ("made", "chosen", "reason"),
    [
        pytest.param(share_manager_pod(), {"steering": False}, Reason.STEERING_OFF, id="steering off"),
        pytest.param(share_manager_pod(node="node-c"), {}, Reason.ALREADY_BOUND, id="bound"),
    ],
)
def test_a_share_manager_pod_that_is_not_asked_about_is_left_alone(
    made: Object, chosen: Object, reason: Reason
) -> None:
    injection = injected(made, *VOLUME, vm("one"), **chosen)
    assert (injection.decision.reason, injection.decision.outcome, injection.patch) == (reason, Outcome.UNCHANGED, None)


def test_a_share_manager_pod_is_steered_once() -> None:
    first = injected(share_manager_pod(), *VOLUME, vm("one"))
    second = injected(patched(share_manager_pod(), first), *VOLUME, vm("one"))
    assert (second.decision.reason, second.patch) == (Reason.ALREADY_INJECTED, None)
