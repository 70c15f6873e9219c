"""Steering: a share-manager pod prefers the node of its VMs, unless Longhorn avoids that node."""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import pytest

from tests.support.builders import (
    PREFERRED,
    Object,
    catalog,
    claim,
    decision_for,
    hotplug_pod,
    injection_for,
    name_requirement,
    node,
    settings,
    share_manager_pod,
    virt_launcher,
    volume,
)
from webhook.placement.objects.facts import Pod
from webhook.placement.reasons import Outcome, Reason
from webhook.placement.volume_consumers import consumers_of, ranked_nodes

CLAIM_AND_PV = [claim(), volume()]
MIGRATION_TARGET = {"kubevirt.io/migrationJobUID": "uid"}


def vm(name: str, node_name: str = "node-b", created: str = "2026-08-01T12:00:00Z", **rest: Any) -> Object:
    launcher = virt_launcher(name, node=node_name, **rest)
    launcher["metadata"]["creationTimestamp"] = created
    return launcher


def avoiding_nodes(*names: str, key: str = "metadata.name", operator: str = "NotIn") -> Object:
    fields = [name_requirement(name, operator) | {"key": key} for name in names]
    return {"affinity": {"nodeAffinity": {PREFERRED: [{"weight": 100, "preference": {"matchFields": fields}}]}}}


def consumer_names(consumers: Iterable[Pod]) -> list[str]:
    return [consumer.name for consumer in consumers]


@pytest.mark.parametrize(
    ("storage", "pods"),
    [
        pytest.param(CLAIM_AND_PV, [], id="no pod"),
        pytest.param(CLAIM_AND_PV, [vm("one", deleting=True)], id="a terminating VM"),
        *(
            pytest.param(CLAIM_AND_PV, [vm("one", opt_in=value)], id=f"a VM with opt-in {value!r}")
            for value in (None, "True", True)
        ),
        pytest.param(CLAIM_AND_PV, [hotplug_pod(vm("one"), node="node-b")], id="a hotplug pod without its VM"),
        pytest.param([claim()], [vm("one")], id="an unknown PV"),
        pytest.param(
            [claim(), volume(claim="", name="pvc-disk1", handle="vol-disk1")], [vm("one")], id="a PV without claimRef"
        ),
        pytest.param(
            [claim(), volume(namespace="other")], [vm("one")], id="a PV whose claimRef names another namespace"
        ),
    ],
)
def test_a_share_manager_pod_without_consumers_is_unchanged(storage: list[Object], pods: list[Object]) -> None:
    manager_pod = share_manager_pod(**avoiding_nodes("node-z"))
    before = deepcopy(manager_pod)
    injection = injection_for(manager_pod, *storage, *pods, node("node-b"))
    assert (injection.decision.outcome, injection.decision.reason) == (Outcome.UNCHANGED, Reason.NO_CONSUMER)
    assert (injection.patch, injection.warnings, injection.decision.node) == (None, (), None)
    assert manager_pod == before


@pytest.mark.parametrize(
    ("vms", "winner"),
    [
        pytest.param([vm("one", "a"), vm("two", "b"), vm("three", "b")], "b", id="the node with the most VMs wins"),
        pytest.param(
            [vm("one", "a", "2026-08-02T00:00:00Z"), vm("two", "b", "2026-08-01T00:00:00Z")],
            "b",
            id="the oldest VM wins a tie",
        ),
        pytest.param(
            [vm("one", "a", "2026-08-01T00:00:00Z", labels=MIGRATION_TARGET), vm("two", "b", "2026-08-02T00:00:00Z")],
            "b",
            id="a migration target loses a tie",
        ),
        pytest.param([vm("two", "b"), vm("one", "a")], "a", id="the first name wins a tie of equal age"),
    ],
)
def test_the_vms_elect_one_of_their_nodes(vms: list[Object], winner: str) -> None:
    consumers = consumers_of("vol-disk1", catalog(*CLAIM_AND_PV, *vms), settings())
    assert ranked_nodes(consumers, frozenset())[0] == winner


def test_the_consumers_of_both_pvs_of_a_volume_count() -> None:
    static = volume(name="static", handle="vol-disk1", claim="copy", namespace="other")
    vms = [vm("one", "node-a"), vm("two", "node-b", namespace="other", claims=["copy"])]
    store = catalog(*CLAIM_AND_PV, static, claim("copy", namespace="other", volume="static"), *vms)
    assert consumer_names(consumers_of("vol-disk1", store, settings())) == ["one", "two"]


@pytest.mark.parametrize("uid", ["old-uid", "new-uid", None])
def test_a_released_pv_that_names_its_old_claim_has_no_consumers(uid: str | None) -> None:
    released = volume()
    released["spec"]["claimRef"]["uid"] = "old-uid"
    recreated = claim(volume="pvc-new" if uid == "old-uid" else "pvc-disk1")
    recreated["metadata"]["uid"] = uid
    store = catalog(released, *([recreated] if uid else []), vm("one", "node-a"))
    assert consumer_names(consumers_of("vol-disk1", store, settings())) == []


def test_a_pv_that_names_its_claim_by_uid_has_the_consumers_of_the_claim() -> None:
    bound, its_claim = volume(), claim()
    bound["spec"]["claimRef"]["uid"] = its_claim["metadata"]["uid"] = "a-uid"
    store = catalog(bound, its_claim, vm("one", "node-a"))
    assert consumer_names(consumers_of("vol-disk1", store, settings())) == ["one"]


DRAINED = [vm("source", "node-a"), vm("target", "node-b", labels=MIGRATION_TARGET)]


@pytest.mark.parametrize(
    ("nodes", "outcome", "reason", "target"),
    [
        ([node("node-a"), node("node-b")], Outcome.PREFERRED, Reason.CO_SCHEDULED, "node-a"),
        ([node("node-a", unschedulable=True), node("node-b")], Outcome.PREFERRED, Reason.CO_SCHEDULED, "node-b"),
        (
            [node("node-a", unschedulable=True), node("node-b", ready="False")],
            Outcome.UNCHANGED,
            Reason.NODE_CORDONED,
            "node-a",
        ),
    ],
    ids=["the source's node passes", "only the migration target's node passes", "neither passes: the first reason"],
)
def test_steering_evaluates_the_next_candidate_if_the_guard_refuses_the_first(
    nodes: list[Object], outcome: Outcome, reason: Reason, target: str
) -> None:
    decision = decision_for(share_manager_pod(), *CLAIM_AND_PV, *DRAINED, *nodes)
    assert (decision.outcome, decision.reason, decision.node) == (outcome, reason, target)
    assert [finding.node for finding in decision.claims] == [target]


def test_without_the_guard_steering_takes_the_first_candidate() -> None:
    nodes = [node("node-a", unschedulable=True), node("node-b")]
    decision = decision_for(share_manager_pod(), *CLAIM_AND_PV, *DRAINED, *nodes, node_guard=False)
    assert (decision.reason, decision.node) == (Reason.CO_SCHEDULED, "node-a")


@pytest.mark.parametrize(
    ("manager_pod", "overrides", "reason"),
    [
        pytest.param(share_manager_pod(), {"steering": False}, Reason.STEERING_OFF, id="steering off"),
        pytest.param(share_manager_pod(node="node-c"), {}, Reason.ALREADY_BOUND, id="already bound"),
    ],
)
def test_an_ineligible_share_manager_pod_is_unchanged(manager_pod: Object, overrides: Object, reason: Reason) -> None:
    injection = injection_for(manager_pod, *CLAIM_AND_PV, vm("one"), **overrides)
    assert (injection.decision.reason, injection.decision.outcome, injection.patch) == (reason, Outcome.UNCHANGED, None)
