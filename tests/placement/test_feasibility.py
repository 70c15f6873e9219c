"""The node guard: a node that could not take the pod is not required, and the first check that fails says why."""

import pytest

from tests.support.builders import (
    PREFERRED,
    REQUIRED,
    Object,
    apart,
    catalog,
    claim,
    decided,
    node,
    node_named,
    node_terms,
    pod_term,
    storage,
    together,
    virt_launcher,
    volume,
)
from webhook.placement.decision import GUARD_REASONS, Outcome, Reason
from webhook.placement.feasibility import CHECKS, CORDON, TERMS, Candidate, run_checks

NO_SCHEDULE = {"key": "dedicated", "value": "db", "effect": "NoSchedule"}
SSD = [{"key": "disk", "operator": "In", "values": ["ssd"]}]
CORDONED = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}


def reason(vm: Object, *nodes: Object) -> Reason:
    return decided(vm, *storage(), *nodes).reason


@pytest.mark.parametrize(
    ("vm", "where", "expected"),
    [
        pytest.param({}, node("node-b"), Reason.NODE_NOT_FOUND, id="another node is known"),
        pytest.param({}, node(), None, id="healthy"),
        pytest.param({}, node(ready="False"), Reason.NODE_NOT_READY, id="not Ready"),
        pytest.param({}, node(ready="Unknown"), Reason.NODE_NOT_READY, id="not heard of"),
        pytest.param({}, node(ready=None), None, id="without conditions"),
        pytest.param({}, node(unschedulable=True), Reason.NODE_CORDONED, id="cordoned"),
        pytest.param({"tolerations": [CORDONED]}, node(unschedulable=True), None, id="cordoned and tolerated"),
        pytest.param(
            {"tolerations": [{"operator": "Exists"}]}, node(unschedulable=True), None, id="cordoned, all tolerated"
        ),
        pytest.param(
            {"tolerations": [CORDONED | {"effect": "NoExecute"}]},
            node(unschedulable=True),
            Reason.NODE_CORDONED,
            id="cordoned and another effect tolerated",
        ),
        pytest.param(
            {"tolerations": [CORDONED]}, node(unschedulable=True, taints=[CORDON]), None, id="the cordon's own taint"
        ),
        pytest.param({}, node(taints=[NO_SCHEDULE]), Reason.NODE_TAINTED, id="NoSchedule"),
        pytest.param({}, node(taints=[NO_SCHEDULE | {"effect": "NoExecute"}]), Reason.NODE_TAINTED, id="NoExecute"),
        pytest.param({}, node(taints=[NO_SCHEDULE | {"effect": "PreferNoSchedule"}]), None, id="PreferNoSchedule"),
        pytest.param(
            {"tolerations": [{"key": "dedicated", "value": "db"}]},
            node(taints=[NO_SCHEDULE, {"key": "other", "effect": "NoExecute"}]),
            Reason.NODE_TAINTED,
            id="one of two taints tolerated",
        ),
        pytest.param({"nodeSelector": {"disk": "ssd"}}, node(), Reason.NODE_MISMATCH, id="a label it has not"),
        pytest.param({"nodeSelector": {"disk": ""}}, node(), Reason.NODE_MISMATCH, id="an empty label it has not"),
        pytest.param(
            {"nodeSelector": {"disk": "ssd"}}, node(labels={"disk": "hdd"}), Reason.NODE_MISMATCH, id="another value"
        ),
        pytest.param({"nodeSelector": {"disk": "ssd"}}, node(labels={"disk": "ssd"}), None, id="the label"),
        pytest.param({"nodeSelector": None}, node(), None, id="a null nodeSelector"),
        pytest.param({"affinity": node_terms({"matchExpressions": SSD})}, node(), Reason.NODE_MISMATCH, id="a term"),
        pytest.param(
            {"affinity": node_terms({"matchExpressions": SSD})}, node(labels={"disk": "ssd"}), None, id="the term"
        ),
        pytest.param(
            {"affinity": node_terms({"matchFields": [node_named("node-b")]})},
            node(),
            Reason.NODE_MISMATCH,
            id="another name",
        ),
        pytest.param({"affinity": node_terms()}, node(), Reason.NODE_MISMATCH, id="no terms"),
        pytest.param({"affinity": node_terms(None, {})}, node(), Reason.NODE_MISMATCH, id="a null and an empty term"),
        pytest.param(
            {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": None}}}},
            node(),
            Reason.NODE_MISMATCH,
            id="null terms",
        ),
        pytest.param({"affinity": {"nodeAffinity": {REQUIRED: {}}}}, node(), Reason.NODE_MISMATCH, id="terms left out"),
        *(
            pytest.param({"affinity": affinity}, node(), None, id=f"no required affinity: {affinity}")
            for affinity in (None, {}, {"nodeAffinity": None}, {"nodeAffinity": {}}, {"nodeAffinity": {REQUIRED: None}})
        ),
        pytest.param(
            {
                "affinity": {
                    "nodeAffinity": {PREFERRED: [{"weight": 1, "preference": {"matchFields": [node_named("node-b")]}}]}
                }
            },
            node(),
            None,
            id="a wish for another node",
        ),
    ],
)
def test_the_guard_asks_about_node_and_pod(vm: Object, where: Object, expected: Reason | None) -> None:
    assert reason(virt_launcher(**vm), where) is (expected or Reason.CO_SCHEDULED)


TIED = {"nodeSelectorTerms": [{"matchExpressions": SSD}]}
LOCAL = {"required": TIED, "driver": "local.csi"}


@pytest.mark.parametrize(
    ("pvs", "where", "expected"),
    [
        pytest.param([volume(required=TIED)], node(), Reason.VOLUME_MISMATCH, id="its own PV"),
        pytest.param([volume(required=TIED)], node(labels={"disk": "ssd"}), None, id="its own PV, reached"),
        pytest.param([volume(), volume("disk2", **LOCAL)], node(), Reason.VOLUME_MISMATCH, id="another driver's PV"),
        pytest.param(
            [volume(), volume("disk2", **LOCAL)], node(labels={"disk": "ssd"}), None, id="another driver's, reached"
        ),
        pytest.param([volume(required={"nodeSelectorTerms": []})], node(), Reason.VOLUME_MISMATCH, id="no terms"),
        pytest.param(
            [volume(required={"nodeSelectorTerms": [None, {}]})], node(), Reason.VOLUME_MISMATCH, id="empty terms"
        ),
        pytest.param([volume(required={})], node(), Reason.VOLUME_MISMATCH, id="terms left out"),
        pytest.param([volume(), volume("disk9", required=TIED)], node(), None, id="a PV of nobody's"),
        pytest.param([volume()], node(), None, id="a PV that is not known"),
        pytest.param(
            [volume(required={"nodeSelectorTerms": [{"matchFields": [node_named("node-b")]}]})],
            node(),
            None,
            id="a name, which the scheduler does not look at in a PV",
        ),
    ],
)
def test_every_pv_of_the_pod_must_be_reachable(pvs: list[Object], where: Object, expected: Reason | None) -> None:
    claims = [claim(), claim("disk2", modes=["ReadWriteOnce"])]
    decision = decided(virt_launcher(claims=["disk1", "disk2"]), *claims, *pvs, *storage()[2:], where)
    assert decision.reason is (expected or Reason.CO_SCHEDULED)


def field(spec: Object) -> str:
    return decided(virt_launcher(**spec), *storage(), node()).message


PORT = [{"name": "c", "ports": [{"containerPort": 1}, {"containerPort": 2, "hostPort": 22}]}]
BY_ARCH = {"matchExpressions": [{"key": "arch", "operator": "DoesNotExist"}]}
BY_NAMESPACE = pod_term({"app": "web"}, namespaceSelector={})


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}, "spec.topologySpreadConstraints"),
        ({"resourceClaims": [{"name": "gpu"}]}, "spec.resourceClaims"),
        ({"containers": PORT}, "spec.containers[].ports[].hostPort"),
        ({"initContainers": PORT}, "spec.initContainers[].ports[].hostPort"),
        ({"affinity": apart(BY_NAMESPACE)}, "spec.affinity.podAntiAffinity's namespaceSelector"),
        (
            {"labels": {"app": "web"}, "affinity": together(BY_NAMESPACE | {"namespaces": ["default"]})},
            "spec.affinity.podAffinity's",
        ),
        (
            {"affinity": node_terms(*[BY_ARCH] * (TERMS + 1))},
            f"spec.affinity.nodeAffinity, of more than {TERMS} terms,",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_judged_is_not_risked(spec: Object, named: str) -> None:
    decision = decided(virt_launcher(**spec), *storage(), node())
    assert (decision.outcome, decision.reason) == (Outcome.PREFERRED, Reason.UNJUDGED)
    assert named in decision.message


def test_affinity_to_pods_of_selected_namespaces_is_not_judged() -> None:
    assert reason(virt_launcher(affinity=together(BY_NAMESPACE)), node()) is Reason.UNJUDGED


@pytest.mark.parametrize(
    "spec",
    [
        {"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]},
        {"topologySpreadConstraints": None, "resourceClaims": None},
        {"resourceClaims": []},
        {"containers": [{"name": "c", "ports": [{"containerPort": 1, "hostPort": 0}, None]}]},
        {"affinity": apart(pod_term({"app": "web"}, namespaceSelector=None))},
        {"affinity": {"podAntiAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": BY_NAMESPACE}]}}},
    ],
    ids=["a soft spread", "nulls", "no resource claims", "no host port", "a null namespace selector", "a wish"],
)
def test_what_can_not_strand_a_pod_is_passed(spec: Object) -> None:
    assert reason(virt_launcher(**spec), node()) is Reason.CO_SCHEDULED


# Each fails one check, and leaves the others as they are.
FAILS: dict[Reason, tuple[Object, Object]] = {
    Reason.NODE_NOT_READY: ({}, {"ready": "False"}),
    Reason.NODE_CORDONED: ({}, {"unschedulable": True}),
    Reason.NODE_TAINTED: ({}, {"taints": [NO_SCHEDULE]}),
    Reason.NODE_MISMATCH: ({"nodeSelector": {"a": "b"}}, {}),
    Reason.VOLUME_MISMATCH: ({}, {}),
    Reason.NODE_FULL: ({"requests": {"cpu": "2"}}, {"allocatable": {"cpu": "1"}}),
    Reason.POD_AFFINITY: ({"affinity": together(pod_term({"app": "web"}))}, {}),
    Reason.UNJUDGED: ({"resourceClaims": [{"name": "gpu"}]}, {}),
}


@pytest.mark.parametrize("first", range(len(FAILS)), ids=list(FAILS))
def test_the_first_check_that_fails_is_the_reason(first: int) -> None:
    failing = list(FAILS)[first:]
    vm: Object = {key: value for failed in failing for key, value in FAILS[failed][0].items()}
    where: Object = {key: value for failed in failing for key, value in FAILS[failed][1].items()}
    pv = volume(required=TIED if Reason.VOLUME_MISMATCH in failing else None)
    candidate = Candidate(virt_launcher(**vm), "default", "node-a", (), catalog(node(**where)))
    decision = decided(virt_launcher(**vm), *storage(), pv, node(**where))
    assert (decision.outcome, decision.reason, decision.node) == (Outcome.PREFERRED, failing[0], "node-a")
    assert len([answer for _, answer in run_checks(candidate) if answer]) == len(
        set(failing) - {Reason.VOLUME_MISMATCH}
    )


def test_the_checks_are_asked_in_the_order_of_the_design() -> None:
    assert tuple(check.reason for check in CHECKS) == GUARD_REASONS == (Reason.NODE_NOT_FOUND, *FAILS)
