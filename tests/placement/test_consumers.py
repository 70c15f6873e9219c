"""Steering: a share-manager pod prefers the node of its VMs, unless Longhorn avoids that node."""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import pytest

from tests.support.builders import (
    OPT_IN,
    PREFERRED,
    Object,
    catalog,
    claim,
    decision_for,
    hotplug_pod,
    injection_for,
    labeled_namespace,
    name_requirement,
    node,
    pod,
    settings,
    share_manager,
    share_manager_pod,
    storage_class,
    virt_launcher,
    volume,
)
from webhook.placement.objects.facts import Pod
from webhook.placement.reasons import OptedInBy, Outcome, Reason, Source
from webhook.placement.settings import OptIn
from webhook.placement.voting_consumers import MAX_CLASSES, consumers_of, ranked_nodes

CLAIM_AND_PV = [claim(), volume()]
MIGRATION_TARGET = {"kubevirt.io/migrationJobUID": "uid"}


def vm(name: str, node_name: str = "node-b", created: str = "2026-08-01T12:00:00Z", **rest: Any) -> Object:
    launcher = virt_launcher(name, node=node_name, **rest)
    launcher["metadata"]["creationTimestamp"] = created
    return launcher


def web(name: str, node_name: str = "node-b", **rest: Any) -> Object:
    """Build an opted-in pod that runs no VM."""
    return pod(name, node=node_name, **{"claims": ["disk1"], "annotations": {OPT_IN: "true"}} | rest)


def avoiding_nodes(*names: str, key: str = "metadata.name", operator: str = "NotIn") -> Object:
    fields = [name_requirement(name, operator) | {"key": key} for name in names]
    return {"affinity": {"nodeAffinity": {PREFERRED: [{"weight": 100, "preference": {"matchFields": fields}}]}}}


def consumer_names(consumers: Iterable[Pod]) -> list[str]:
    return [consumer.name for consumer in consumers]


WITHOUT_CLAIM_REF = volume(claim="", name="pvc-disk1", handle="vol-disk1")
NO_CONSUMERS = {
    "no pod": (CLAIM_AND_PV, []),
    "a terminating VM": (CLAIM_AND_PV, [vm("one", deleting=True)]),
    **{f"a VM with opt-in {value!r}": (CLAIM_AND_PV, [vm("one", opt_in=value)]) for value in (None, "True", True)},
    "a hotplug pod without its VM": (CLAIM_AND_PV, [hotplug_pod(vm("one"), node="node-b")]),
    "a pod without the opt-in": (CLAIM_AND_PV, [web("one", annotations={})]),
    "a pod that is opted out": (CLAIM_AND_PV, [web("one", annotations={OPT_IN: "false"})]),
    "an unbound pod": (CLAIM_AND_PV, [web("one", "")]),
    "a terminating pod": (CLAIM_AND_PV, [web("one", deleting=True)]),
    "a pod of another namespace": (CLAIM_AND_PV, [web("one", namespace="other")]),
    "an unknown PV": ([claim()], [vm("one")]),
    "a PV without claimRef": ([claim(), WITHOUT_CLAIM_REF], [vm("one")]),
    "a claimRef of another namespace": ([claim(), volume(namespace="other")], [vm("one")]),
}


@pytest.mark.parametrize(("storage", "pods"), NO_CONSUMERS.values(), ids=NO_CONSUMERS)
def test_a_share_manager_pod_without_consumers_is_unchanged(storage: list[Object], pods: list[Object]) -> None:
    manager_pod = share_manager_pod(**avoiding_nodes("node-z"))
    before = deepcopy(manager_pod)
    injection = injection_for(manager_pod, *storage, *pods, node("node-b"))
    assert (injection.decision.outcome, injection.decision.reason) == (Outcome.UNCHANGED, Reason.NO_CONSUMER)
    assert (injection.patch, injection.warnings, injection.decision.node) == (None, (), None)
    assert manager_pod == before


@pytest.mark.parametrize(
    ("pods", "unseen"),
    [
        ([], True),
        ([web("one", "")], True),
        ([vm("one", ""), vm("two", deleting=True)], True),
        ([vm("one", opt_in=None)], False),
        ([web("one", annotations={})], False),
    ],
    ids=["no pod", "an unbound pod", "a VM that restarts", "a VM that is not opted in", "a pod that is not opted in"],
)
def test_a_bound_user_of_a_starting_share_manager_may_be_one_that_no_watch_has_shown_yet(
    pods: list[Object], unseen: bool
) -> None:
    decision = injection_for(share_manager_pod(), *CLAIM_AND_PV, *pods, node("node-b")).decision
    assert (decision.reason, decision.user_unseen) == (Reason.NO_CONSUMER, unseen)


EARLY, LATE = "2026-08-01T00:00:00Z", "2026-08-02T00:00:00Z"
ELECTIONS = {
    "the node with the most VMs": ([vm("one", "a"), vm("two", "b"), vm("three", "b")], "b"),
    "a tie: the oldest VM": ([vm("one", "a", LATE), vm("two", "b", EARLY)], "b"),
    "a tie: no migration target": ([vm("one", "a", EARLY, labels=MIGRATION_TARGET), vm("two", "b", LATE)], "b"),
    "a tie of equal age: the first name": ([vm("two", "b"), vm("one", "a")], "a"),
}


@pytest.mark.parametrize(("vms", "winner"), ELECTIONS.values(), ids=ELECTIONS)
def test_the_vms_elect_one_of_their_nodes(vms: list[Object], winner: str) -> None:
    consumers = consumers_of("vol-disk1", catalog(*CLAIM_AND_PV, *vms), settings())
    assert ranked_nodes(consumers, frozenset())[0] == winner


BY_NAMESPACE = {"opt_in": OptIn.NAMESPACE}
PLAIN: Object = {"annotations": {}}


OF_CLASS = claim(storageClassName="longhorn-rwx")
FOLLOWED = {
    "an opted-in pod": ([web("one", "node-a", phase="Pending")], "node-a", "1 pod"),
    "most pods": ([web("one", "node-b"), web("two", "node-a"), web("three", "node-a")], "node-a", "2 pods"),
    "VMs before pods": ([web("one", "node-b"), web("two", "node-b"), vm("vm1", "node-a")], "node-a", "1 VM"),
    "a VM that is not opted in": ([web("one", "node-a"), vm("vm1", "node-b", opt_in=None)], "node-a", "1 pod"),
    "a VM that is not bound yet": ([web("one", "node-a"), vm("vm1", "")], "node-a", "1 pod"),
    "by the namespace": ([web("one", "node-a", **PLAIN), labeled_namespace()], "node-a", "1 pod"),
    "by the StorageClass": ([web("one", "node-a", **PLAIN), OF_CLASS, storage_class()], "node-a", "1 pod"),
}


@pytest.mark.parametrize(("objects", "target", "words"), FOLLOWED.values(), ids=FOLLOWED)
def test_a_share_manager_pod_follows_an_opted_in_pod(objects: list[Object], target: str, words: str) -> None:
    nodes = [node("node-a"), node("node-b")]
    decision = decision_for(share_manager_pod(), *CLAIM_AND_PV, *nodes, *objects, **BY_NAMESPACE)
    assert (decision.outcome, decision.reason, decision.node) == (Outcome.PREFERRED, Reason.CO_SCHEDULED, target)
    assert decision.message == f"prefers {target}, which runs {words} of this volume"
    assert [each.source for each in decision.claims] == [Source.VIRT_LAUNCHER_POD if "VM" in words else Source.POD]


def test_a_share_manager_has_the_opt_in_of_the_pod_that_it_follows() -> None:
    labeled = {"opt_in": OptIn.NAMESPACE}
    for users, by in (
        ([web("one")], OptedInBy.ANNOTATION),
        ([vm("one", opt_in=None), labeled_namespace()], OptedInBy.NAMESPACE),
        ([], OptedInBy.NOTHING),
    ):
        for target in (node("node-b"), node("node-b", unschedulable=True)):
            assert decision_for(share_manager_pod(), *CLAIM_AND_PV, *users, target, **labeled).opted_in_by is by


def test_no_pod_is_named_a_vm_if_the_share_manager_can_not_follow_it() -> None:
    cordoned, avoided = node("node-b", unschedulable=True), share_manager_pod(**avoiding_nodes("node-b"))
    decision = decision_for(share_manager_pod(), *CLAIM_AND_PV, web("one"), cordoned)
    assert decision.message.startswith("node-b runs a pod of this volume but is cordoned")
    decision = decision_for(avoided, *CLAIM_AND_PV, web("one"), node("node-b"))
    assert decision.message == "the pod prefers to avoid the nodes of the pods that use volume vol-disk1"


def test_a_vm_prefers_the_node_of_the_pod_that_a_starting_share_manager_will_follow() -> None:
    starting = share_manager(state="starting", owner="node-a")
    decision = decision_for(virt_launcher("new"), *CLAIM_AND_PV, starting, web("one"), node("node-a"), node("node-b"))
    assert (decision.outcome, decision.node) == (Outcome.PREFERRED, "node-b")
    assert [(each.reason, each.source) for each in decision.claims] == [(Reason.SHARE_MANAGER_STARTING, Source.POD)]


def test_a_pod_is_a_consumer_of_its_first_16_claims_and_by_the_classes_of_1000_claims() -> None:
    """Each entry of the index takes 0.4 KB, and 128 pods with 128 claims each took 14 ms."""
    others = [f"other-{number}" for number in range(127)]
    store = catalog(*CLAIM_AND_PV, web("one", claims=[*others[:15], "disk1"]), web("two", claims=[*others, "disk1"]))
    assert consumer_names(consumers_of("vol-disk1", store, settings())) == ["one"]
    classes = [claim(others[-1], storageClassName="longhorn-rwx"), storage_class()]
    pods = [web(f"web-{number:02}", claims=["disk1", *others], **PLAIN) for number in range(20)]
    store = catalog(*CLAIM_AND_PV, *classes, *pods)
    found = consumer_names(consumers_of("vol-disk1", store, settings(**BY_NAMESPACE)))
    assert found == [f"web-{number:02}" for number in range(MAX_CLASSES // 128)]


def test_the_consumers_of_both_pvs_of_a_volume_count() -> None:
    static = volume(name="static", handle="vol-disk1", claim="copy", namespace="other")
    vms = [vm("one", "node-a"), vm("two", "node-b", namespace="other", claims=["copy"])]
    store = catalog(*CLAIM_AND_PV, static, claim("copy", namespace="other", volume="static"), *vms)
    assert consumer_names(consumers_of("vol-disk1", store, settings())) == ["one", "two"]


@pytest.mark.parametrize(
    ("uid", "its_claim"),
    [("old-uid", "pvc-new"), ("new-uid", "pvc-disk1"), (None, "pvc-disk1"), ("old-uid", "pvc-disk1")],
    ids=["its claim is bound to another PV", "another claim of that name", "no claim", "its claim"],
)
def test_a_pv_has_the_consumers_of_the_claim_that_it_names_by_uid_if_that_is_bound_to_it(
    uid: str | None, its_claim: str
) -> None:
    released, recreated = volume(), claim(volume=its_claim)
    released["spec"]["claimRef"]["uid"] = "old-uid"
    recreated["metadata"]["uid"] = uid
    store = catalog(released, *([recreated] if uid else []), vm("one", "node-a"))
    expected = ["one"] if (uid, its_claim) == ("old-uid", "pvc-disk1") else []
    assert consumer_names(consumers_of("vol-disk1", store, settings())) == expected


CORDONED = node("node-a", unschedulable=True)
DRAINED = [vm("source", "node-a"), vm("target", "node-b", labels=MIGRATION_TARGET)]


@pytest.mark.parametrize(
    ("nodes", "guard", "outcome", "reason", "target"),
    [
        ([node("node-a"), node("node-b")], True, Outcome.PREFERRED, Reason.CO_SCHEDULED, "node-a"),
        ([CORDONED, node("node-b")], True, Outcome.PREFERRED, Reason.CO_SCHEDULED, "node-b"),
        ([CORDONED, node("node-b", ready="False")], True, Outcome.UNCHANGED, Reason.NODE_CORDONED, "node-a"),
        ([CORDONED, node("node-b")], False, Outcome.PREFERRED, Reason.CO_SCHEDULED, "node-a"),
    ],
    ids=["the source's node passes", "only that of the target passes", "neither passes: the first reason", "no guard"],
)
def test_steering_evaluates_the_next_candidate_if_the_guard_refuses_the_first(
    nodes: list[Object], guard: bool, outcome: Outcome, reason: Reason, target: str
) -> None:
    decision = decision_for(share_manager_pod(), *CLAIM_AND_PV, *DRAINED, *nodes, node_guard=guard)
    assert (decision.outcome, decision.reason, decision.node) == (outcome, reason, target)
    assert [finding.node for finding in decision.claims] == [target]


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
