"""The node guard: an infeasible node is preferred instead of required, and the first failed check is the reason."""

from typing import Any

import pytest

from tests.support.builders import (
    IN_TREE_DRIVERS,
    PREFERRED,
    REQUIRED,
    ZONE,
    Object,
    apply_injection,
    catalog,
    claim,
    csi_node,
    decide_request,
    decision_for,
    injection_for,
    name_requirement,
    node,
    node_terms,
    pinned_fields,
    pod,
    pod_anti_affinity,
    pod_term,
    request,
    settings,
    share_manager,
    share_manager_pod,
    storage,
    typed,
    virt_launcher,
    virtual_machine,
    volume,
)
from webhook.catalog.store import Store
from webhook.placement.affinity import MAX_TERMS
from webhook.placement.guard.candidate import Candidate
from webhook.placement.guard.feasibility import ARCHITECTURE, GUARD_REASONS, first_failed_check
from webhook.placement.reasons import Mode, Outcome, Reason

NO_SCHEDULE = {"key": "dedicated", "value": "db", "effect": "NoSchedule"}
SSD = [{"key": "disk", "operator": "In", "values": ["ssd"]}]
CORDON_TOLERATION = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}


def reason(vm: Object, *nodes: Object) -> Reason:
    return decision_for(vm, *storage(), *nodes).reason


DB_TOLERATION = {"key": "dedicated", "value": "db"}
# Each row: the VM's fields, the node, and why the node is rejected.
NODES = {
    "a healthy node": ({}, node(), None),
    "Ready False": ({}, node(ready="False"), Reason.NODE_NOT_READY),
    "without conditions": ({}, node(ready=None), None),
    "a tolerated cordon": ({"tolerations": [CORDON_TOLERATION]}, node(unschedulable=True), None),
    "PreferNoSchedule": ({}, node(taints=[NO_SCHEDULE | {"effect": "PreferNoSchedule"}]), None),
    "one tolerated taint of two": (
        {"tolerations": [DB_TOLERATION]},
        node(taints=[NO_SCHEDULE, {"key": "other", "effect": "NoExecute"}]),
        Reason.NODE_TAINTED,
    ),
    "an absent label": ({"nodeSelector": {"disk": ""}}, node(), Reason.NODE_MISMATCH),
    "another name": (
        {"affinity": node_terms({"matchFields": [name_requirement("node-b")]})},
        node(),
        Reason.NODE_MISMATCH,
    ),
    **{
        f"affinity {affinity}": ({"affinity": affinity}, node(), None)
        for affinity in (None, {}, {"nodeAffinity": None}, {"nodeAffinity": {}}, {"nodeAffinity": {REQUIRED: None}})
    },
}


@pytest.mark.parametrize(("vm", "target_node", "expected"), NODES.values(), ids=NODES)
def test_the_guard_checks_the_node_and_the_pod(vm: Object, target_node: Object, expected: Reason | None) -> None:
    assert reason(virt_launcher(**vm), target_node) is (expected or Reason.CO_SCHEDULED)


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"key": "dedicated", "value": "db"}, True),
        ({"key": "dedicated", "value": "web"}, False),
        ({"key": "other", "value": "db"}, False),
        ({"key": "dedicated", "value": "db", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"operator": "Exists"}, True),
        ({"key": "dedicated", "operator": "Gt", "value": "1"}, False),
        (None, False),
    ],
)
def test_a_toleration_matches_a_taint_as_in_the_scheduler(toleration: Object, tolerated: bool) -> None:
    vm = virt_launcher(tolerations=[{"key": "unrelated", "operator": "Exists"}, toleration])
    assert reason(vm, node(taints=[NO_SCHEDULE])) is (Reason.CO_SCHEDULED if tolerated else Reason.NODE_TAINTED)


SSD_ONLY = {"nodeSelectorTerms": [{"matchExpressions": SSD}]}
LOCAL_SSD_ONLY = {"required": SSD_ONLY, "driver": "local.csi"}
BETA_REGION = "failure-domain.beta.kubernetes.io/region"
EAST_SSD = volume(labels={ZONE: "east"}, required=SSD_ONLY)
IN_EAST, IN_EAST_BETA = (volume(labels={key: "east"}) for key in (ZONE, "failure-domain.beta.kubernetes.io/zone"))
NAMING_NODE_B = {"nodeSelectorTerms": [{"matchFields": [name_requirement("node-b")]}]}
VOLUMES = {
    "a PV of another driver": ([volume(), volume("disk2", **LOCAL_SSD_ONLY)], node(), Reason.VOLUME_MISMATCH),
    "a PV's matchFields, which the scheduler ignores": ([volume(required=NAMING_NODE_B)], node(), None),
    "another zone": ([IN_EAST], node(labels={ZONE: "west"}), Reason.VOLUME_MISMATCH),
    "the node's zone": ([IN_EAST], node(labels={ZONE: "east"}), None),
    "a node without zone and region": ([IN_EAST], node(), None),
    "a node with only a region": ([IN_EAST], node(labels={BETA_REGION: "r"}), Reason.VOLUME_MISMATCH),
    "the old label of a zone": ([IN_EAST_BETA], node(labels={ZONE: "west"}), Reason.VOLUME_MISMATCH),
    "another zone, beside a node affinity that matches": (
        [EAST_SSD],
        node(labels={ZONE: "west", "disk": "ssd"}),
        Reason.VOLUME_MISMATCH,
    ),
    "one of two zones": ([volume(labels={ZONE: "west__ east"})], node(labels={ZONE: "east"}), None),
    "an invalid label": ([volume(labels={ZONE: "a__"})], node(labels={ZONE: "east"}), None),
}


@pytest.mark.parametrize(("pvs", "target_node", "expected"), VOLUMES.values(), ids=VOLUMES)
def test_every_pv_of_the_pod_must_reach_the_node(
    pvs: list[Object], target_node: Object, expected: Reason | None
) -> None:
    claims = [claim(), claim("disk2", modes=["ReadWriteOnce"])]
    decision = decision_for(virt_launcher(claims=["disk1", "disk2"]), *claims, *pvs, *storage()[2:], target_node)
    assert decision.reason is (expected or Reason.CO_SCHEDULED)


LONGHORN: dict[str, int | None] = {"driver.longhorn.io": None}


def test_a_csi_driver_that_limits_its_volumes_on_the_node_or_is_missing_there_is_unjudged() -> None:
    vm, disks = virt_launcher(claims=["disk1", "data"]), [*storage(), claim("data", modes=["ReadWriteOnce"])]
    for driver, drivers, expected in (
        ("ebs", LONGHORN | {"ebs": 25}, Reason.UNJUDGED),
        ("ebs", LONGHORN, Reason.UNJUDGED),
        ("ebs", LONGHORN | {"ebs": None, "other": 1}, Reason.CO_SCHEDULED),
        ("driver.longhorn.io", {"other": None}, Reason.UNJUDGED),  # its plugin fails on the node
        ("driver.longhorn.io", LONGHORN, Reason.CO_SCHEDULED),
        ("", LONGHORN | {"other": 1}, Reason.CO_SCHEDULED),
    ):
        cluster = [*disks, volume("data", driver=driver), node()]
        assert decision_for(vm, *cluster, csi_node(**drivers)).reason is expected
        # The kubelet of the node has not created its CSINode yet, so it has no driver.
        assert decision_for(vm, *cluster, csi_node("node-b", **drivers)).reason is Reason.UNJUDGED
        assert decision_for(vm, *cluster).reason is Reason.CO_SCHEDULED  # CSINodes are unknown


@pytest.mark.parametrize(("kind", "driver"), IN_TREE_DRIVERS.items(), ids=IN_TREE_DRIVERS)
def test_a_pv_of_an_in_tree_type_counts_like_one_of_its_csi_driver(kind: str, driver: str) -> None:
    vm, disks = virt_launcher(claims=["disk1", "data"]), [*storage(), claim("data", modes=["ReadWriteOnce"]), node()]
    in_tree = volume("data")
    del in_tree["spec"]["csi"]
    in_tree["spec"][kind] = {"volumeID": "any"}
    for limit, expected in ((25, Reason.UNJUDGED), (None, Reason.CO_SCHEDULED)):
        assert decision_for(vm, *disks, in_tree, csi_node(**LONGHORN | {driver: limit})).reason is expected


CONTAINER_WITH_HOST_PORT = [{"name": "c", "ports": [{"containerPort": 1}, {"containerPort": 2, "hostPort": 22}]}]
RESTARTED_TOGETHER = [{"name": "c", "restartPolicyRules": [{"action": "Restart"}, {"action": "RestartAllContainers"}]}]
BIND_MOUNTED = [{"name": "c", "volumeMounts": [{"name": "v"}, {"name": "w", "bindMountOptions": ["noexec"]}]}]


ARCH_TERM = {"matchExpressions": [{"key": "arch", "operator": "DoesNotExist"}]}
ANY_NAMESPACE_TERM = pod_term({"app": "web"}, namespaceSelector={})


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"resourceClaims": [{"name": "gpu"}]}, "spec.resourceClaims"),
        ({"containers": CONTAINER_WITH_HOST_PORT}, "spec.containers[].ports[].hostPort"),
        ({"initContainers": CONTAINER_WITH_HOST_PORT}, "spec.initContainers[].ports[].hostPort"),
        # Features that only some nodes declare: NodeDeclaredFeatures.
        ({"hostNetwork": True, "hostUsers": False}, "spec.hostUsers"),
        ({"containers": RESTARTED_TOGETHER}, "spec.containers[].restartPolicyRules[].action"),
        ({"initContainers": BIND_MOUNTED}, "spec.initContainers[].volumeMounts[].bindMountOptions"),
        # These can't leave the pod Pending.
        ({"hostNetwork": True}, ""),
        ({"hostUsers": False}, ""),
        ({"containers": [{"name": "c", "restartPolicyRules": [{"action": "Restart"}]}]}, ""),
        ({"containers": [{"name": "c", "volumeMounts": [{"name": "v", "bindMountOptions": []}]}]}, ""),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]}, ""),
        ({"topologySpreadConstraints": None, "resourceClaims": None}, ""),
        ({"resourceClaims": []}, ""),
        ({"containers": [{"name": "c", "ports": [{"containerPort": 1, "hostPort": 0}, None]}]}, ""),
        ({"affinity": pod_anti_affinity(pod_term({"app": "web"}, namespaceSelector=None))}, ""),
        ({"affinity": {"podAntiAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": ANY_NAMESPACE_TERM}]}}}, ""),
    ],
)
def test_a_constraint_that_the_guard_cannot_evaluate_downgrades_the_pin(spec: Object, field: str) -> None:
    decision = decision_for(virt_launcher(**spec), *storage(), node())
    unjudged = Outcome.PREFERRED, Reason.UNJUDGED
    assert (decision.outcome, decision.reason) == (unjudged if field else (Outcome.PINNED, Reason.CO_SCHEDULED))
    assert field in decision.message


def test_a_claim_that_only_names_a_pv_is_unjudged() -> None:
    """Its user wrote the name. The scheduler's VolumeBinding may need another node for it."""
    vm, names = virt_launcher(claims=["disk1", "data"]), claim("data", modes=["ReadWriteOnce"])
    pending = names | {"status": {"phase": "Pending"}}
    others = volume("data", namespace="other", driver="local")
    for disk, pv, expected in (
        (pending, [], Reason.UNJUDGED),
        (names, [others], Reason.UNJUDGED),
        (names, [], Reason.CO_SCHEDULED),
        (pending, [volume("data", driver="local")], Reason.CO_SCHEDULED),
    ):
        assert decision_for(vm, *storage(), disk, *pv, node()).reason is expected


def test_checks_run_in_the_order_of_the_reasons() -> None:
    assert list(GUARD_REASONS) == [each for each in Reason if each in GUARD_REASONS]


@pytest.mark.parametrize("mode", ["required", "preferred"])
@pytest.mark.parametrize(("failures", "expected"), [(None, "CoScheduled"), (1, "CoScheduled"), (2, "StartFailed")])
def test_a_vm_whose_last_two_starts_failed_prefers_other_nodes(failures: int | None, expected: str, mode: str) -> None:
    """A preference of weight 100 for the node drew it back there 6 times of 6."""
    vm = virt_launcher(annotations={"kubevirt.io/domain": "vm1", "kubevirt-scheduler/co-schedule-mode": mode})
    failed = [virtual_machine(failures=failures), virtual_machine("vm2", failures=5)]
    decision = decision_for(vm, *storage(), node(), *failed)
    assert (decision.reason, decision.avoids) == (expected, expected == "StartFailed")
    assert (decision.outcome is Outcome.UNCHANGED) is decision.avoids
    assert decision_for(vm, *storage(), node(), *failed, node_guard=False).reason == "CoScheduled"
    starting = [claim(), volume(), share_manager(state="starting"), virt_launcher("vm0", node="node-a")]
    starting[-1]["metadata"]["labels"]["kubevirt.io/created-by"] = "another"
    assert decision_for(vm, *starting, node(), *failed).avoids is decision.avoids
    # No VM's failures count for a pod that runs none.
    follower = share_manager_pod(annotations={"kubevirt.io/domain": "vm1"})
    assert decision_for(follower, volume(), virt_launcher("vm", node="node-a"), node(), *failed).reason == "CoScheduled"


def preferring(weight: int, *architectures: str) -> Object:
    expression = {"key": ARCHITECTURE, "operator": "In", "values": list(architectures)}
    term = {"weight": weight, "preference": {"matchExpressions": [expression]}}
    return {"nodeAffinity": {PREFERRED: [{"weight": 100, "preference": {"matchExpressions": SSD}}, term]}}


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("state", ["running", "starting"])
@pytest.mark.parametrize("mode", ["required", "preferred"])
def test_no_term_names_a_node_where_kubevirt_would_emulate_the_vm(mode: str, state: str, full: bool) -> None:
    starting = [share_manager(state="starting"), virt_launcher("vm0", node="node-a")]
    cluster = [claim(), volume(), *(starting if state == "starting" else [share_manager_pod(node="node-a")])]
    foreign = node(labels={ARCHITECTURE: "arm64"}, allocatable={"cpu": "0" if full else "9", "pods": "9"})
    annotations = {"kubevirt-scheduler/co-schedule-mode": mode}
    vm = virt_launcher(annotations=annotations, affinity=preferring(100, "amd64"), requests={"cpu": "1"})
    injection = injection_for(vm, *cluster, foreign)
    decision = injection.decision
    assert (decision.outcome, decision.reason, decision.avoids) == (Outcome.UNCHANGED, Reason.NODE_MISMATCH, False)
    assert (
        "has architecture arm64, and the pod prefers its native one, so no node affinity is added" in decision.message
    )
    assert "nodeAffinity" not in str(injection.patch)
    for native in (node(labels={ARCHITECTURE: "amd64"}), node()):
        assert decision_for(vm, *cluster, native).outcome is not Outcome.UNCHANGED
    for other in (preferring(99, "amd64"), preferring(100, "amd64", "arm64")):
        decision = decision_for(virt_launcher(annotations=annotations, affinity=other), *cluster, foreign)
        assert decision.outcome is not Outcome.UNCHANGED
    assert decision_for(vm, *cluster, foreign, node_guard=False).outcome is not Outcome.UNCHANGED


HOTPLUGGABLE = [
    {"name": "a", "persistentVolumeClaim": {"claimName": "data", "hotpluggable": True}},
    {"name": "a", "dataVolume": {"name": "data", "hotpluggable": True}},
]


@pytest.mark.parametrize("disk", HOTPLUGGABLE, ids=["claim", "DataVolume"])
@pytest.mark.parametrize("mode", ["required", "preferred"])
def test_a_vm_prefers_other_nodes_if_its_hotpluggable_claim_is_not_reached(disk: Object, mode: str) -> None:
    """Its virt-launcher pod doesn't mount the claim. Pinned or drawn to the node, the VM never gets the disk."""
    vm = virt_launcher(annotations={"kubevirt.io/domain": "vm1", "kubevirt-scheduler/co-schedule-mode": mode})
    owner, data = virtual_machine(), claim("data", modes=["ReadWriteOnce"])
    owner["spec"]["template"]["spec"] = {"volumes": [disk]}
    for required, expected in ((SSD_ONLY, Reason.VOLUME_MISMATCH), (None, Reason.CO_SCHEDULED)):
        decision = decision_for(vm, *storage(), owner, data, volume("data", required=required, driver="local"), node())
        assert (decision.reason, decision.avoids) == (expected, required is not None)
    assert decision_for(vm, *storage(), owner, data, node()).reason is Reason.CO_SCHEDULED  # its PV is unknown


@pytest.mark.parametrize("guard", [True, False])
@pytest.mark.parametrize(
    ("terms", "named"),
    [
        ([{"matchFields": [name_requirement("node-a")]}], "(matchFields, which name a node)"),
        ([ARCH_TERM, {"matchFields": [name_requirement("node-a")]}], "(matchFields, which name a node)"),
        ([{"matchFields": [name_requirement("node-b", "NotIn")]}], ""),
        ([ARCH_TERM] * MAX_TERMS, ""),
        ([ARCH_TERM] * (MAX_TERMS + 1), f"(more than {MAX_TERMS} terms)"),
    ],
)
def test_only_terms_that_a_later_call_can_tell_from_the_pin_are_pinned(
    terms: list[Object], named: str, guard: bool
) -> None:
    decision = decision_for(virt_launcher(affinity=node_terms(*terms)), *storage(), node(), node_guard=guard)
    assert decision.outcome is (Outcome.PREFERRED if named else Outcome.PINNED)
    assert decision.reason is (Reason.UNJUDGED if named else Reason.CO_SCHEDULED)
    assert named in decision.message


def released_store(*items: Object) -> Store:
    store = catalog(*items)
    store.releases.record(("default", "vm1", ""), "node-a", "uid-of-a-pod-that-is-gone")
    return store


def test_a_vm_that_lost_a_pinned_pod_is_not_pinned_to_that_node_again_but_to_another_one() -> None:
    vm = virt_launcher(annotations={"kubevirt.io/domain": "vm1"})
    decision = decide_request(request(vm), released_store(*storage(), node()), settings())
    assert (decision.outcome, decision.reason, decision.node) == (Outcome.PREFERRED, Reason.RELEASED, "node-a")
    assert "may leave the VM Pending, because an earlier pod of the VM was unschedulable there" in decision.message
    decision = decide_request(request(vm), released_store(*storage(node="node-b"), node(), node("node-b")), settings())
    assert (decision.outcome, decision.node) == (Outcome.PINNED, "node-b")


@pytest.mark.parametrize(
    ("received", "namespace"),
    [
        (virt_launcher(annotations={"kubevirt.io/domain": "vm2"}), "default"),
        (virt_launcher(annotations={"kubevirt.io/domain": "vm1"}), "other"),
        (virt_launcher(), "default"),
        (share_manager_pod(), "default"),
        (pod(annotations={"kubevirt.io/domain": "vm1"}), "default"),
    ],
    ids=["another VM", "another namespace", "a pod without a VM", "a share-manager pod", "no virt-launcher pod"],
)
def test_a_released_vm_softens_no_other_pod(received: Object, namespace: str) -> None:
    assert first_failed_check(Candidate(typed(received, namespace), "node-a", released_store(node()))) is None


# Requests and free resources, and a rejected pin that becomes a preference


KVM = "devices.kubevirt.io/kvm"
# A ShareManager object instead of its pod, because a pod would use resources of the node.
SHARED_DISK = [claim(), volume(), share_manager()]


# Each row: the requests, what the node has, and the words about the resource that it lacks.
AMOUNTS = {
    "an exact fit": ({"cpu": "2"}, {"cpu": "2"}, ""),
    "one millicore too much": ({"cpu": "2001m"}, {"cpu": "2"}, "cpu (requested 2001m)"),
    "a device of another node": ({KVM: "1"}, {"cpu": "1"}, f"{KVM} (requested 1)"),
    "an empty allocatable": ({"cpu": "1"}, {}, "cpu (requested 1)"),
    "an absent allocatable": ({"cpu": "1"}, None, ""),
}


@pytest.mark.parametrize(("requests", "allocatable", "detail"), AMOUNTS.values(), ids=AMOUNTS)
def test_the_requests_of_a_vm_must_fit_an_empty_node(requests: Object, allocatable: Object | None, detail: str) -> None:
    nodes = node(allocatable=allocatable), node("node-b", allocatable={KVM: "1k"})
    decision = decision_for(virt_launcher(requests=requests), *SHARED_DISK, *nodes)
    assert decision.reason is (Reason.NODE_FULL if detail else Reason.CO_SCHEDULED)
    assert detail in decision.message


ONE_CPU = {"requests": {"cpu": "1"}}


OTHERS = {
    "terminating": ([pod("x", node="node-a", requests={"cpu": "2"}, deleting=True)], True),
    "unscheduled, pinned": ([virt_launcher("x", requests={"cpu": "2"}, **pinned_fields("node-a"))], True),
    "the pod itself": ([pod("vm", node="node-a", requests={"cpu": "2"})], False),
    "one pod too many": ([pod(f"x{i}", node="node-a") for i in range(4)], True),
    "memory that the VM does not request": ([pod("x", node="node-a", requests={"memory": "9Gi", "cpu": "1"})], False),
}


@pytest.mark.parametrize(("others", "is_full"), OTHERS.values(), ids=OTHERS)
def test_the_pods_on_a_node_reduce_its_free_resources(others: list[Object], is_full: bool) -> None:
    small_node = node(allocatable={"cpu": "2", "memory": "1Gi", "pods": "4"})
    decision = decision_for(virt_launcher("vm", **ONE_CPU), *SHARED_DISK, small_node, *others)
    assert decision.reason is (Reason.NODE_FULL if is_full else Reason.CO_SCHEDULED)


def test_a_decision_tells_no_free_amount_and_no_taint() -> None:
    taint = {"key": "tenant-b", "value": "secret", "effect": "NoSchedule"}
    small = node(allocatable={"cpu": "12345m", "pods": "9"})
    vm = virt_launcher(requests={"cpu": "2"})
    full = injection_for(vm, *SHARED_DISK, small, pod("x", node="node-a", requests={"cpu": "12"}))
    tainted = injection_for(vm, *SHARED_DISK, node(taints=[taint]))
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


REPELS_WEB: Object = {"requests": {}, "affinity": pod_anti_affinity(pod_term({"app": "web"}))}
REPELS_WEB_IN_ZONE = {"affinity": pod_anti_affinity(pod_term({"app": "web"}, ZONE))}


@pytest.mark.parametrize(
    ("priority", "node_name", "spec", "expected"),
    [
        (1000, "node-a", {}, Reason.NODE_FULL),
        (999, "node-a", {}, Reason.CO_SCHEDULED),
        (1000, "node-b", {}, Reason.CO_SCHEDULED),
        (1000, "node-a", REPELS_WEB, Reason.POD_AFFINITY),
        (999, "node-a", REPELS_WEB, Reason.CO_SCHEDULED),
        (1000, "node-b", REPELS_WEB_IN_ZONE, Reason.CO_SCHEDULED),
    ],
)
def test_a_nominated_pod_counts_on_its_node_if_its_priority_is_at_least_that_of_the_vm(
    priority: int, node_name: str, spec: Object, expected: Reason
) -> None:
    nodes = [node(name, labels={ZONE: "east"}, allocatable={"cpu": "1"}) for name in ("node-a", "node-b")]
    nominated = pod("preemptor", **{"requests": {"cpu": "1"}} | spec, priority=priority)
    nominated["status"]["nominatedNodeName"] = node_name
    vm = virt_launcher(requests={"cpu": "1"}, labels={"app": "web"}, priority=1000)
    assert decision_for(vm, *SHARED_DISK, *nodes, nominated).reason is expected


# A VM that is not pinned never competes with a pinned one


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


PREFERRING = {"kubevirt-scheduler/co-schedule-mode": "preferred"}
WITH_DEVICE = {"resourceClaims": [{"name": "gpu"}]}
# Each row: the VM, another pod, the reason, and whether pinned pods need the room that the VM would take.
CONTESTED = {
    "a full node": (vm("2"), pinned("3"), Reason.NODE_FULL, True),
    "a pinned pod repels": (
        vm(affinity=REPELLING, labels=LABELS),
        pinned("1", labels=LABELS),
        Reason.POD_AFFINITY,
        True,
    ),
    "a VM that only prefers": (vm("2", annotations=PREFERRING, **WITH_DEVICE), pinned("3"), Reason.NODE_FULL, True),
    "a bound pod": (vm("2"), pod("o", requests={"cpu": "3"}, node="node-a"), Reason.NODE_FULL, False),
    "capacity for both": (vm(**WITH_DEVICE), pinned("3"), Reason.UNJUDGED, False),
    "a bound pinned pod": (vm("1"), pinned("4", node="node-a"), Reason.NODE_FULL, False),
}


@pytest.mark.parametrize(("created", "other", "reason", "contested"), CONTESTED.values(), ids=CONTESTED)
def test_a_vm_does_not_even_prefer_a_node_whose_room_pinned_pods_need(
    created: Object, other: Object, reason: Reason, contested: bool
) -> None:
    decision = decision_for(created, *storage(), FOUR_CPUS, other)
    outcome = Outcome.UNCHANGED if contested else Outcome.PREFERRED
    assert (decision.outcome, decision.reason, decision.node) == (outcome, reason, "node-a")
    words = ", so other nodes are preferred while pinned VMs wait to start there"
    assert decision.message.endswith(words) is contested


def test_a_contested_node_is_not_preferred_while_the_share_manager_starts() -> None:
    starting = [*storage()[:2], share_manager(state="starting")]
    other_vm = virt_launcher("vm2", node="node-a", labels={"kubevirt.io/created-by": "vmi-2"})
    decision = decision_for(vm("2"), *starting, other_vm, pinned("3"), FOUR_CPUS)
    assert (decision.outcome, decision.reason) == (Outcome.UNCHANGED, Reason.SHARE_MANAGER_STARTING)


def test_a_stale_cache_softens_the_pin_and_is_the_first_reason() -> None:
    store = catalog(*storage(), node(ready="False"))
    store.stale_resources = lambda: ("nodes", "pods")
    decision = decide_request(request(vm(affinity=node_terms())), store, settings())
    assert (decision.outcome, decision.reason) == (Outcome.PREFERRED, Reason.CACHE_STALE)
    assert "the webhook received no update of nodes and pods for 5 minutes" in decision.message
