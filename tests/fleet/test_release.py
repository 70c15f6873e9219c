"""Why a pinned pod that stays Pending can't be scheduled, and when the webhook may not delete it."""

from typing import Any

import pytest

from tests.support.builders import (
    Object,
    catalog,
    claim,
    node,
    node_terms,
    pinned_vm_pod,
    pod,
    pod_anti_affinity,
    pod_term,
    settings,
    share_manager_pod,
    storage,
    typed,
    virt_launcher,
    virtual_machine,
    vmi,
    volume,
)
from webhook.catalog.kinds import read_virtual_machine, read_vmi
from webhook.fleet.release import (
    MAX_RELEASES,
    PENDING_LIMIT,
    Loss,
    why_kept,
    why_not_scheduled,
    why_pin_fails,
)
from webhook.placement.guard.feasibility import MAX_START_FAILURES, FailedCheck
from webhook.placement.reasons import Reason
from webhook.placement.settings import Action

MINUTE = 60.0
FULL = {"cpu": "1", "memory": "1Gi", "pods": "110"}
LOAD = pod("load", node="node-a", requests={"cpu": "1"})


def obstacle(stuck: Object, *cluster: Object, seconds: float = MINUTE, **overrides: Any) -> FailedCheck | None:
    return why_pin_fails(typed(stuck), catalog(stuck, *cluster), settings(**overrides), seconds)


def reason(stuck: Object, *cluster: Object, **options: Any) -> Reason | None:
    found = obstacle(stuck, *cluster, **options)
    return found.reason if found else None


REPELLED = pinned_vm_pod()
REPELLED["spec"]["affinity"] |= pod_anti_affinity(pod_term({"app": "db"}))
UNJUDGED = pinned_vm_pod(resourceClaims=[{"name": "gpu"}])


def nominated(node: str) -> Object:
    """Build a pod for which the scheduler preempts others on a node."""
    stuck = pinned_vm_pod(requests={"cpu": "500m"})
    stuck["status"]["nominatedNodeName"] = node
    return stuck


BOUND = pinned_vm_pod(node="node-a")
BOUND["spec"]["nodeName"] = "node-a"
CORDONED = [*storage(), node(unschedulable=True)]
CROWDED = [*storage(), node(allocatable=FULL), LOAD]
MOVED = [*storage(node="node-b"), node(), node("node-b")]
THREE_DISKS = pinned_vm_pod(claims=["disk1", "disk2", "disk3"])
OTHER_DISKS = [*storage("disk2", "node-b"), *storage("disk3", "node-b")]
STARTING = [claim(), volume(), share_manager_pod(), virt_launcher("other", node="node-b"), node(), node("node-b")]
LATE = {"seconds": PENDING_LIMIT + 1}
AS_PREFERRED = pinned_vm_pod(annotations={"kubevirt-scheduler/co-schedule-mode": "preferred"})
SOFTENED = pinned_vm_pod(annotations={"kubevirt-scheduler/decision": "NodeFull: node-a is preferred"})
# A pod, the cluster, when it is evaluated, and why its pin fails.
PINS: dict[str, tuple[Object, list[Object], Any, Reason | None]] = {
    "no node": (pinned_vm_pod(), [*storage(), node("node-b")], {}, Reason.NODE_NOT_FOUND),
    "before the set time": (pinned_vm_pod(), CORDONED, {"seconds": 44.9, "release_after": 45}, None),
    "at the set time": (pinned_vm_pod(), CORDONED, {"seconds": 45, "release_after": 45}, Reason.NODE_CORDONED),
    "a full node": (pinned_vm_pod(requests={"cpu": "500m"}), CROWDED, {}, Reason.NODE_FULL),
    "preempting on its node": (nominated("node-a"), CROWDED, {"seconds": PENDING_LIMIT}, None),
    "preempting for more than five minutes": (nominated("node-a"), CROWDED, LATE, Reason.NODE_FULL),
    "preempting on another node": (nominated("node-b"), CROWDED, {}, Reason.NODE_FULL),
    "repelled": (REPELLED, [*storage(), node(), pod("db", labels={"app": "db"}, node="node-a")], {},
                 Reason.POD_AFFINITY),
    "not evaluated": (UNJUDGED, [*storage(), node()], {}, Reason.UNJUDGED),
    "another node of its share-manager": (pinned_vm_pod(), MOVED, {}, Reason.SHARE_MANAGER_MOVED),
    "more share-managers elsewhere": (THREE_DISKS, [*storage(), *OTHER_DISKS, node(), node("node-b")], {}, None),
    "all share-managers elsewhere": (THREE_DISKS, [*MOVED, *OTHER_DISKS], {}, Reason.SHARE_MANAGER_MOVED),
    "a share-manager that is starting": (pinned_vm_pod(), STARTING, {}, None),
    "bound": (BOUND, CORDONED, LATE, None),
    "not pinned by the webhook": (virt_launcher("vm1", affinity=node_terms({"matchFields": []})), CORDONED, LATE, None),
    "a node that the user requires": (AS_PREFERRED, CORDONED, LATE, None),
    "softened": (SOFTENED, CORDONED, LATE, None),
}  # fmt: skip


@pytest.mark.parametrize(("stuck", "cluster", "options", "expected"), PINS.values(), ids=PINS)
def test_a_pin_fails_when_its_node_refuses_the_pod_or_its_share_manager_has_moved(
    stuck: Object, cluster: list[Object], options: Any, expected: Reason | None
) -> None:
    assert reason(stuck, *cluster, **options) is expected


def test_a_pod_that_fits_its_node_may_stay_pending_for_five_minutes() -> None:
    cluster = [*storage(), node(allocatable=FULL)]
    stuck = pinned_vm_pod(requests={"cpu": "1"})  # its own request does not count twice
    assert reason(stuck, *cluster, seconds=PENDING_LIMIT) is None
    assert obstacle(stuck, *cluster, seconds=PENDING_LIMIT + 1) == FailedCheck(
        Reason.PENDING_TOO_LONG, "did not receive the pod from the scheduler within 5 minutes"
    )


def test_stale_caches_release_no_pin() -> None:
    stuck = pinned_vm_pod()
    store = catalog(stuck, *storage(node="node-b"), node(unschedulable=True))
    store.stale_resources = lambda: ("nodes",)
    assert why_pin_fails(typed(stuck), store, settings(), PENDING_LIMIT + 1) is None


BOUND["spec"]["nodeName"] = "node-a"


# Pods that no scheduler has evaluated


@pytest.mark.parametrize(
    ("pod", "seconds", "words"),
    [
        (virt_launcher(schedulerName="other"), 30.0, "no scheduler has evaluated the pod for 30 s; it names other"),
        (virt_launcher(), 99.9, "no scheduler has evaluated the pod for 99 s; it names default-scheduler"),
        (virt_launcher(), 29.9, ""),
        (virt_launcher(), None, ""),
        (virt_launcher(node="node-a"), 99.9, ""),
        (pinned_vm_pod(unschedulable=True), 99.9, ""),
    ],
    ids=["at the limit", "no scheduler named", "young", "of unknown age", "bound", "unschedulable"],
)
def test_a_pod_without_a_condition_of_a_scheduler_is_named_after_30_seconds(
    pod: Object, seconds: float | None, words: str
) -> None:
    assert why_not_scheduled(typed(pod), seconds) == words


# Why the webhook may not delete a pod

NO_GUARD = "the node guard is disabled, so the webhook would pin the VM's next pod again"


def kept(vm: Object | None, releases: int = 0, **overrides: Any) -> str:
    losses = [Loss("node-a", 1.0, 2.0)] * releases
    return why_kept(read_virtual_machine(vm) if vm else None, None, losses, 3.0, settings(**overrides))


@pytest.mark.parametrize(
    ("vm", "options", "why"),
    [
        (virtual_machine(strategy="Always"), {"releases": MAX_RELEASES - 1}, ""),
        (virtual_machine(strategy="RerunOnFailure"), {}, ""),
        (virtual_machine(strategy=None, running=True), {}, ""),
        (virtual_machine(failures=MAX_START_FAILURES - 1), {}, ""),
        (virtual_machine(), {"release": False}, "the release of pins is disabled"),
        (virtual_machine(), {"action": Action.OBSERVE}, "the release of pins is disabled"),
        (virtual_machine(), {"node_guard": False}, NO_GUARD),
        (None, {}, "the webhook found no VirtualMachine of this name"),
        (virtual_machine(strategy="Manual"), {}, "the VM's run strategy does not restart it"),
        (virtual_machine(strategy="Once"), {}, "the VM's run strategy does not restart it"),
        (virtual_machine(strategy="Halted"), {}, "the VM's run strategy does not restart it"),
        (virtual_machine(strategy=None, running=False), {}, "the VM's run strategy does not restart it"),
        (virtual_machine(failures=2), {}, "the VM failed to start 2 times in a row"),
        (virtual_machine(), {"releases": 2}, "the VM lost 2 pinned pods within an hour"),
    ],
)  # fmt: skip
def test_a_pod_is_kept_if_its_vm_might_not_start_again(vm: Object | None, options: Any, why: str) -> None:
    assert kept(vm, **options) == why


# When this replica saw each lost pod of a replica set first and last, and when it saw the stuck pod first.
WAITED, SUCCESSOR = (1.0, 10.0), (20.0, 30.0)
KEPT = "its replica set lost 2 pinned pods within an hour"
REPLICAS: dict[str, tuple[list[tuple[float, float]], float, str]] = {
    "the first": ([], 1.0, ""),
    "the third that waits": ([WAITED, (2.0, 11.0)], 3.0, ""),
    "one that waits, after two successors": ([WAITED, SUCCESSOR, SUCCESSOR], 3.0, ""),
    "the first successor": ([WAITED, WAITED, WAITED], 20.0, ""),
    "the second successor": ([WAITED, SUCCESSOR], 31.0, ""),
    "the third successor": ([WAITED, SUCCESSOR, SUCCESSOR], 31.0, KEPT),
    "a third successor that waits beside the two": ([WAITED, SUCCESSOR, SUCCESSOR], 20.0, KEPT),
}


@pytest.mark.parametrize("case", REPLICAS)
def test_of_a_replica_set_only_the_pods_count_that_came_after_its_first_loss(case: str) -> None:
    """Of three stuck pods, the third once stayed Pending for an hour."""
    losses, seen, why = REPLICAS[case]
    replica = read_vmi(vmi(owner_kind="VirtualMachineInstanceReplicaSet"))
    assert why_kept(None, replica, [Loss("node-a", *each) for each in losses], seen, settings()) == why
