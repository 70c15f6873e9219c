"""A reason is gone after somebody has followed its advice. tests/advice.txt has a row for each advice."""

from typing import Any

import pytest

from tests.support.builders import (
    Object,
    claim,
    decision_for,
    node,
    node_terms,
    pod,
    pod_anti_affinity,
    pod_term,
    share_manager_pod,
    storage,
    virt_launcher,
    volume,
)
from tests.support.fleet import vm_pod
from webhook.placement.reasons import Decision, Reason

CLUSTER = [*storage(), node("node-a"), node("node-b")]
TAINT = {"key": "team", "value": "db", "effect": "NoSchedule"}
FULL = node("node-a", allocatable={"cpu": "1", "pods": "9"})
DB = {"app": "db"}
OTHER = virt_launcher("other", labels=DB, node="node-a")
REPELLED = pod_anti_affinity(pod_term(DB))
PREFERS = {
    "podAntiAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": pod_term(DB)}]
    }
}
SHARED = [*storage("iso"), vm_pod("other", "node-b", claims=["iso"])]
SERVER, USER = share_manager_pod(), virt_launcher("vm1", node="node-a")
BOUND = {"nodeName": "node-b"}
OF_THIS = {"kubernetes.io/hostname": "node-b"}

Situation = tuple[Object, list[Object], dict[str, Any]]


def of(vm: Object, *cluster: Object, **overrides: Any) -> Situation:
    return vm, list(cluster or CLUSTER), overrides


# By reason: the situation, and the same after the advice was followed.
FOLLOWED: dict[Reason, tuple[Situation, Situation]] = {
    Reason.NOT_FROM_KUBEVIRT: (
        of(virt_launcher(), kubevirt_accounts=("system:serviceaccount:cnv:kubevirt-controller",)),
        of(virt_launcher()),
    ),
    Reason.NOT_OPTED_IN: (of(virt_launcher(opt_in=None)), of(virt_launcher())),
    Reason.ALREADY_BOUND: (of(virt_launcher(**BOUND)), of(virt_launcher())),
    Reason.NO_CLAIMS: (of(virt_launcher(claims=[])), of(virt_launcher())),
    Reason.CLAIM_NOT_FOUND: (of(virt_launcher(claims=["dsik1"])), of(virt_launcher())),
    Reason.SHARED_CLAIM_ONLY: (
        of(virt_launcher(claims=["iso", "rwo"]), claim("rwo", modes=["ReadWriteOnce"]), volume("rwo"), *SHARED),
        of(
            virt_launcher(claims=["iso", "rwo"], annotations={"kubevirt-scheduler/co-schedule-claim": "iso"}),
            claim("rwo", modes=["ReadWriteOnce"]), volume("rwo"), *SHARED,
        ),
    ),
    Reason.NODE_CORDONED: (of(virt_launcher(), *storage(), node("node-a", unschedulable=True)), of(virt_launcher())),
    Reason.NODE_TAINTED: (
        of(virt_launcher(), *storage(), node("node-a", taints=[TAINT])),
        of(virt_launcher(tolerations=[{"operator": "Exists"}]), *storage(), node("node-a", taints=[TAINT])),
    ),
    Reason.NODE_MISMATCH: (of(virt_launcher(nodeSelector=OF_THIS)), of(virt_launcher())),
    Reason.NODE_FULL: (
        of(virt_launcher(requests={"cpu": "1"}), *storage(), FULL, pod("a", node="node-a", requests={"cpu": "1"})),
        of(virt_launcher(requests={"cpu": "1"}), *storage(), FULL),
    ),
    Reason.POD_AFFINITY: (
        of(virt_launcher(affinity=REPELLED), *CLUSTER, OTHER),
        of(virt_launcher(affinity=PREFERS), *CLUSTER, OTHER),
    ),
    Reason.UNJUDGED: (
        of(virt_launcher(affinity=node_terms({"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": ["node-a"]}]}))),
        of(virt_launcher()),
    ),
    Reason.STEERING_OFF: (
        of(SERVER, *storage()[:2], node("node-a"), USER, steering=False),
        of(SERVER, *storage()[:2], node("node-a"), USER),
    ),
}  # fmt: skip


def decided(situation: Situation) -> Decision:
    vm, cluster, overrides = situation
    return decision_for(vm, *cluster, **overrides)


def reasons_of(decision: Decision) -> set[Reason]:
    return {decision.reason, *(each.reason for each in decision.claims if each.reason and each.decides)}


@pytest.mark.parametrize("reason", FOLLOWED)
def test_a_reason_is_gone_after_its_advice_was_followed(reason: Reason) -> None:
    before, after = (reasons_of(decided(each)) for each in FOLLOWED[reason])
    assert reason in before
    assert after in ({Reason.CO_SCHEDULED}, {Reason.CO_SCHEDULED, Reason.CLAIM_NOT_RWX})
