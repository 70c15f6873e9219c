"""The node guard: an infeasible node is preferred instead of required, and the first failed check is the reason."""

import pytest

from tests.support.builders import (
    PREFERRED,
    REQUIRED,
    ZONE,
    Object,
    catalog,
    claim,
    csi_node,
    decision_for,
    name_requirement,
    node,
    node_terms,
    pod,
    pod_anti_affinity,
    pod_term,
    request,
    settings,
    share_manager,
    share_manager_pod,
    storage,
    virt_launcher,
    virtual_machine,
    volume,
)
from webhook.catalog.store import Store
from webhook.placement.affinity import MAX_TERMS
from webhook.placement.guard.candidate import Candidate
from webhook.placement.guard.feasibility import CHECKS, first_failed_check
from webhook.placement.injector import decide
from webhook.placement.objects.pod import Manifest
from webhook.placement.reasons import GUARD_REASONS, Outcome, Reason

NO_SCHEDULE = {"key": "dedicated", "value": "db", "effect": "NoSchedule"}
SSD = [{"key": "disk", "operator": "In", "values": ["ssd"]}]
CORDON_TOLERATION = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}


def reason(vm: Object, *nodes: Object) -> Reason:
    return decision_for(vm, *storage(), *nodes).reason


@pytest.mark.parametrize(
    ("vm", "target_node", "expected"),
    [
        pytest.param({}, node("node-b"), Reason.NODE_NOT_FOUND, id="a missing node is rejected while another exists"),
        pytest.param({}, node(), None, id="a healthy node passes"),
        pytest.param({}, node(ready="False"), Reason.NODE_NOT_READY, id="Ready False is rejected"),
        pytest.param({}, node(ready=None), None, id="a node without conditions passes"),
        pytest.param({}, node(unschedulable=True), Reason.NODE_CORDONED, id="a cordoned node is rejected"),
        pytest.param(
            {"tolerations": [CORDON_TOLERATION]}, node(unschedulable=True), None, id="a toleration of the cordon passes"
        ),
        pytest.param({}, node(taints=[NO_SCHEDULE]), Reason.NODE_TAINTED, id="a NoSchedule taint is rejected"),
        pytest.param(
            {}, node(taints=[NO_SCHEDULE | {"effect": "PreferNoSchedule"}]), None, id="a PreferNoSchedule taint passes"
        ),
        pytest.param(
            {"tolerations": [{"key": "dedicated", "value": "db"}]},
            node(taints=[NO_SCHEDULE, {"key": "other", "effect": "NoExecute"}]),
            Reason.NODE_TAINTED,
            id="one tolerated taint of two is rejected",
        ),
        pytest.param(
            {"nodeSelector": {"disk": ""}},
            node(),
            Reason.NODE_MISMATCH,
            id="a nodeSelector for an empty absent label is rejected",
        ),
        pytest.param(
            {"affinity": node_terms({"matchFields": [name_requirement("node-b")]})},
            node(),
            Reason.NODE_MISMATCH,
            id="a required term for another node name is rejected",
        ),
        pytest.param({"affinity": node_terms()}, node(), Reason.NODE_MISMATCH, id="an empty list of terms is rejected"),
        *(
            pytest.param({"affinity": affinity}, node(), None, id=f"no required affinity passes: {affinity}")
            for affinity in (None, {}, {"nodeAffinity": None}, {"nodeAffinity": {}}, {"nodeAffinity": {REQUIRED: None}})
        ),
    ],
)
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
IN_EAST, IN_EAST_BETA = (volume(labels={key: "east"}) for key in (ZONE, "failure-domain.beta.kubernetes.io/zone"))


@pytest.mark.parametrize(
    ("pvs", "target_node", "expected"),
    [
        pytest.param(
            [volume(), volume("disk2", **LOCAL_SSD_ONLY)],
            node(),
            Reason.VOLUME_MISMATCH,
            id="another driver's PV that does not reach the node is rejected",
        ),
        pytest.param(
            [volume(required={"nodeSelectorTerms": [{"matchFields": [name_requirement("node-b")]}]})],
            node(),
            None,
            id="a PV's matchFields are ignored, as in the scheduler",
        ),
        pytest.param([IN_EAST], node(labels={ZONE: "west"}), Reason.VOLUME_MISMATCH, id="a PV of another zone"),
        pytest.param([IN_EAST], node(labels={ZONE: "east"}), None, id="a PV of the node's zone passes"),
        pytest.param([IN_EAST], node(), None, id="a PV of a zone passes on a node without zone and region"),
        pytest.param(
            [IN_EAST], node(labels={BETA_REGION: "r"}), Reason.VOLUME_MISMATCH, id="a node with only a region"
        ),
        pytest.param([IN_EAST_BETA], node(labels={ZONE: "west"}), Reason.VOLUME_MISMATCH, id="the old label of a zone"),
        pytest.param([volume(labels={ZONE: "west__ east"})], node(labels={ZONE: "east"}), None, id="one of two zones"),
        pytest.param([volume(labels={ZONE: "a__"})], node(labels={ZONE: "east"}), None, id="an invalid label passes"),
    ],
)
def test_every_pv_of_the_pod_must_reach_the_node(
    pvs: list[Object], target_node: Object, expected: Reason | None
) -> None:
    claims = [claim(), claim("disk2", modes=["ReadWriteOnce"])]
    decision = decision_for(virt_launcher(claims=["disk1", "disk2"]), *claims, *pvs, *storage()[2:], target_node)
    assert decision.reason is (expected or Reason.CO_SCHEDULED)


def test_a_csi_driver_that_limits_its_volumes_on_the_node_or_is_missing_there_is_unjudged() -> None:
    vm, disks = virt_launcher(claims=["disk1", "data"]), [*storage(), claim("data", modes=["ReadWriteOnce"])]
    for driver, drivers, expected in (
        ("ebs", {"ebs": 25}, Reason.UNJUDGED),
        ("ebs", {"other": None}, Reason.UNJUDGED),
        ("ebs", {"ebs": None, "other": 1}, Reason.CO_SCHEDULED),
        ("driver.longhorn.io", {"other": None}, Reason.CO_SCHEDULED),
        ("", {"other": 1}, Reason.CO_SCHEDULED),
    ):
        cluster = [*disks, volume("data", driver=driver), node()]
        assert decision_for(vm, *cluster, csi_node(**drivers)).reason is expected
        assert decision_for(vm, *cluster, csi_node("node-b", **drivers)).reason is Reason.CO_SCHEDULED


CONTAINER_WITH_HOST_PORT = [{"name": "c", "ports": [{"containerPort": 1}, {"containerPort": 2, "hostPort": 22}]}]


ARCH_TERM = {"matchExpressions": [{"key": "arch", "operator": "DoesNotExist"}]}
ANY_NAMESPACE_TERM = pod_term({"app": "web"}, namespaceSelector={})


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"resourceClaims": [{"name": "gpu"}]}, "spec.resourceClaims"),
        ({"containers": CONTAINER_WITH_HOST_PORT}, "spec.containers[].ports[].hostPort"),
        ({"initContainers": CONTAINER_WITH_HOST_PORT}, "spec.initContainers[].ports[].hostPort"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_constraint_that_the_guard_cannot_evaluate_downgrades_the_pin(spec: Object, field: str) -> None:
    decision = decision_for(virt_launcher(**spec), *storage(), node())
    assert (decision.outcome, decision.reason) == (Outcome.PREFERRED, Reason.UNJUDGED)
    assert field in decision.message


@pytest.mark.parametrize(
    "spec",
    [
        {"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]},
        {"topologySpreadConstraints": None, "resourceClaims": None},
        {"resourceClaims": []},
        {"containers": [{"name": "c", "ports": [{"containerPort": 1, "hostPort": 0}, None]}]},
        {"affinity": pod_anti_affinity(pod_term({"app": "web"}, namespaceSelector=None))},
        {"affinity": {"podAntiAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": ANY_NAMESPACE_TERM}]}}},
    ],
)
def test_a_constraint_that_cannot_leave_the_pod_pending_passes(spec: Object) -> None:
    assert reason(virt_launcher(**spec), node()) is Reason.CO_SCHEDULED


def test_checks_run_in_design_order() -> None:
    assert tuple(check.reason for check in CHECKS) == GUARD_REASONS


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


def test_a_released_vm_is_pinned_if_its_share_manager_is_on_another_node_by_now() -> None:
    vm = virt_launcher(annotations={"kubevirt.io/domain": "vm1"})
    decision = decide(request(vm), released_store(*storage(node="node-b"), node(), node("node-b")), settings())
    assert (decision.outcome, decision.node) == (Outcome.PINNED, "node-b")


def test_a_vm_that_lost_a_pinned_pod_is_not_pinned_to_that_node_again() -> None:
    vm = virt_launcher(annotations={"kubevirt.io/domain": "vm1"})
    decision = decide(request(vm), released_store(*storage(), node()), settings())
    assert (decision.outcome, decision.reason, decision.node) == (Outcome.PREFERRED, Reason.RELEASED, "node-a")
    assert "may leave the VM Pending, because an earlier pod of the VM was unschedulable there" in decision.message


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
    assert first_failed_check(Candidate(Manifest(received, namespace), "node-a", released_store(node()))) is None
