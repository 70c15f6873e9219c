"""Each advice about a reason has one row: the situation, and what is true after somebody has followed the advice.

`FOLLOWED` does what the advice says, and the reason is gone. `LOOK` has the advice that only a person can follow: it
names where to look. All others need no action. tests/fleet/test_advice.py has the advice about a VM of the fleet.
"""

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
from webhook.placement.wording import ADVICE, NO_ACTION

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

# Where the advice that only a person can follow says to look.
LOOK: dict[Reason, str] = {
    Reason.CLAIM_NOT_BOUND: "kubectl describe pvc",
    Reason.SHARE_MANAGER_STARTING: "kubectl describe pod share-manager-VOLUME",
    Reason.CACHE_STALE: "/readyz and the log",
    Reason.NODE_NOT_FOUND: "status.ownerID",
    Reason.NODE_NOT_READY: "the node",
    Reason.VOLUME_MISMATCH: "the node affinity of the PVs",
    Reason.START_FAILED: "the Events of the VM's earlier pods",
    Reason.PENDING_TOO_LONG: "the pod's Events",
    Reason.NOT_SCHEDULED: "the scheduler that the pod names",
    Reason.SCHEDULED_ELSEWHERE: "report",
    Reason.NOT_FROM_LONGHORN: "settings.longhornNamespace",
    Reason.NODE_AVOIDED: "its log and the node",
    Reason.CACHE_NOT_SYNCED: "/readyz and the log",
    Reason.DEADLINE_EXCEEDED: "more CPU",
    Reason.INTERNAL_ERROR: "the webhook's log",
}
# Their advice is a restart, which tests/live/test_scenarios.py and the random fleets follow, or none is needed.
AT_THE_NEXT_START = {Reason.SHARE_MANAGER_MOVED, Reason.NOT_REVIEWED, Reason.VOTES_CHANGED}


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


def test_each_advice_has_one_row() -> None:
    nothing = {reason for reason in Reason if ADVICE[reason].startswith(NO_ACTION.rstrip("."))}
    rows = [nothing, {*FOLLOWED}, {*LOOK}, AT_THE_NEXT_START]
    assert set.union(*rows) == {*Reason} == {*ADVICE}
    assert sum(map(len, rows)) == len(Reason)
    assert {reason: ADVICE[reason] for reason, where in LOOK.items() if where not in ADVICE[reason]} == {}
    assert all("start" in ADVICE[reason] for reason in AT_THE_NEXT_START)
    assert not any("create the claim" in advice.lower() for advice in ADVICE.values())
