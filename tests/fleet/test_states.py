"""Each VM of the fleet has a state, a reason, and what a start would decide now."""

from typing import Any

import pytest

from tests.support.builders import (
    OPT_IN,
    Object,
    catalog,
    claim,
    hotplug_pod,
    labeled_namespace,
    node,
    node_terms,
    pinned_vm_pod,
    pod,
    pod_anti_affinity,
    pod_fact,
    pod_term,
    share_manager,
    share_manager_pod,
    storage,
    storage_class,
    typed,
    volume,
)
from tests.support.fleet import LATER, NOW, apart, inventory, status, statuses, vm, vm_pod, vmi
from webhook.catalog.inventory import facts_of, machines
from webhook.fleet.machine import Machine, State
from webhook.fleet.starts import MAX_USERS
from webhook.fleet.states import assess, assess_pod
from webhook.fleet.wording import advise, commands, if_started, next_step
from webhook.placement.reasons import Outcome, Reason
from webhook.placement.settings import Action, OptIn, Settings

NODES = [node("node-a"), node("node-b")]
SERVED = [*storage(), *NODES]  # disk1 is served by node-a
OTHER_USER = vm_pod("other", "node-a")
BACKUP = pod("backup", claims=["disk1"], node="node-b")


ABLE = {"labels": {"kubevirt.io/schedulable": "true"}}
DISK = {"volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "disk1"}}]}
THREE_DISKS = {"volumes": [{"name": n, "persistentVolumeClaim": {"claimName": n}} for n in ("disk1", "disk2", "disk3")]}
TWO_NODES = [*storage("disk1", "node-a"), *storage("disk2", "node-b"), *storage("disk3", "node-b"), *NODES]
DECIDING = {"kubevirt-scheduler/co-schedule-claim": "disk2"}
BLOCK = claim("block", volumeMode="Block")
MIGRATED = {"kubevirt.io/migrationJobUID": "job"}


# Sentence, objects, state, reason, claim, storage node, words about the start.
ROWS: list[tuple[str, list[Object], str, str | None, str | None, str | None, str]] = [
    ("together", [*SERVED, vm(), vm_pod(decided="CoScheduled", pinned="node-a")],
     "Together", "CoScheduled", "disk1", "node-a", "follows (cold start)"),
    ("apart, and the share-manager has moved",
     [*SERVED, vm(), vm_pod(node="node-b", decided="CoScheduled", pinned="node-b"), OTHER_USER],
     "Apart", "ShareManagerMoved", "disk1", "node-a", "pinned to node-a"),
    ("apart, and another node serves more disks by now",
     [*TWO_NODES, vm(), vm_pod(claims=["disk1", "disk2", "disk3"], decided="CoScheduled", pinned="node-a")],
     "Apart", "VotesChanged", "disk2", "node-b", "follows (cold start)"),
    ("apart, and the scheduler chose another node",
     [*SERVED, vm(), vm_pod(node="node-b", decided="CoScheduled"), OTHER_USER],
     "Apart", "ScheduledElsewhere", "disk1", "node-a", "pinned to node-a"),
    ("apart after a cold start", [*SERVED, vm(), vm_pod(node="node-b", decided="ColdStart"), OTHER_USER],
     "Apart", "ScheduledElsewhere", "disk1", "node-a", "pinned to node-a"),
    ("stopped, and a backup uses the volume", [*storage(), node("node-a", **ABLE), vm(**DISK), BACKUP],
     "Stopped", "CoScheduled", "disk1", "node-a", "pinned to node-a"),
    ("apart, and older than the webhook", [*SERVED, vm(), vm_pod(node="node-b"), OTHER_USER],
     "Apart", "NotReviewed", "disk1", "node-a", "pinned to node-a"),
    ("apart, and older than the opt-in", [*SERVED, vm(), vm_pod(node="node-b", opt_in=None), OTHER_USER],
     "Apart", "NotReviewed", "disk1", "node-a", "pinned to node-a"),
    ("not opted in", [*SERVED, vm(opt_in=False), vm_pod(node="node-b", opt_in=None), OTHER_USER],
     "Apart", "NotOptedIn", "disk1", "node-a", "anywhere; if opted in: pinned to node-a"),
    ("migrated", [*SERVED, vm(), vm_pod(node="node-b", labels=MIGRATED), OTHER_USER],
     "Apart", "MigrationTarget", "disk1", "node-a", "pinned to node-a"),
    ("migrating", [*SERVED, vm(), vm_pod(node="node-b", decided="NodeFull"), OTHER_USER,
                   vm_pod(suffix="fghij", labels=MIGRATED, created=LATER)],
     "Apart", "NodeFull", "disk1", "node-a", "pinned to node-a"),
    ("several disks", [*storage("disk1", "node-a"), *storage("disk2", "node-b"), *storage("disk3", "node-b"), *NODES,
                       vm(), vm_pod(claims=["disk1", "disk2", "disk3"], decided="NodeFull"),
                       vm_pod("other", "node-b", claims=["disk9", "disk2", "disk3"])],
     "Together", "CoScheduled", "disk1", "node-a", "follows (cold start)"),
    ("a first disk away from the others",
     [*TWO_NODES, vm(), vm_pod(claims=["disk1", "disk2", "disk3"], decided="NodeFull")],
     "Apart", "NodeFull", "disk2", "node-b", "follows (cold start)"),
    ("stopped, with a first disk away from the others", [*TWO_NODES, vm(**THREE_DISKS)],
     "Stopped", "NodeMismatch", "disk2", "node-b", "prefers node-b (NodeMismatch)"),
    ("a disk that the VM names", [*storage("disk1", "node-a"), *storage("disk2", "node-b"), *NODES,
                                  vm(annotations=DECIDING),
                                  vm_pod(claims=["disk1", "disk2"],
                                         annotations=DECIDING)],
     "Apart", "NotReviewed", "disk2", "node-b", "follows (cold start)"),
    ("a hotplugged disk", [*SERVED, vm(), (launcher := vm_pod(node="node-b", claims=[])), hotplug_pod(launcher)],
     "Apart", "NoClaims", "disk1", "node-a", "follows (if stopped first)"),
    ("a hotplugged ISO that others mount has no vote beside a Block disk",
     [*SERVED, BLOCK, vm(), (launcher := vm_pod(node="node-b", claims=["block"])), hotplug_pod(launcher), OTHER_USER],
     "NotConcerned", "NoShareManagerEver", "block", None, "anywhere (NoShareManager)"),
    ("a hotplugged disk decides beside a Block disk",
     [*SERVED, BLOCK, vm(), (launcher := vm_pod(node="node-b", claims=["block"])), hotplug_pod(launcher), BACKUP],
     "Apart", "NotReviewed", "disk1", "node-a", "anywhere (NoShareManager)"),
    ("a hotplugged disk has no vote beside a disk of the pod",
     [*SERVED, *storage("disk2", "node-b"), vm(), (launcher := vm_pod()), hotplug_pod(launcher, claims=["disk2"])],
     "Together", "CoScheduled", "disk1", "node-a", "follows (cold start)"),
    ("a VMI without a VM", [*SERVED, vmi(), vm_pod(node="node-b"), OTHER_USER],
     "Apart", "NotReviewed", "disk1", "node-a", "pinned to node-a"),
    ("a Block volume", [claim(volumeMode="Block"), volume(), *NODES, vm(), vm_pod()],
     "NotConcerned", "NoShareManagerEver", "disk1", None, "anywhere (NoShareManager)"),
    ("a ReadWriteOnce volume", [claim(modes=["ReadWriteOnce"]), volume(), *NODES, vm(), vm_pod()],
     "NotConcerned", "ClaimNotRWX", "disk1", None, "anywhere (NoShareManager)"),
    ("no claims", [*NODES, vm(), vm_pod(claims=[])],
     "NotConcerned", "NoClaims", None, None, "anywhere (NoClaims)"),
    ("unserved", [claim(), volume(), share_manager(state="stopped"), *NODES, vm(), vm_pod()],
     "Unserved", "NoShareManager", "disk1", None, "follows (cold start)"),
    ("unserved, and its share-manager is starting", [claim(), volume(), share_manager_pod(), *NODES, vm(), vm_pod()],
     "Unserved", "ShareManagerStarting", "disk1", None, "prefers node-a (ShareManagerStarting)"),
    ("waiting without a pin", [*SERVED, vm(), vm_pod(node="", decided="NodeFull", created=NOW), OTHER_USER],
     "Waiting", "NodeFull", "disk1", "node-a", "pinned to node-a"),
    ("waiting with a pin that can't hold",
     [*storage(), node("node-a", unschedulable=True), vm(), pinned_vm_pod(), OTHER_USER],
     "Waiting", "NodeCordoned", "disk1", "node-a", "prefers node-a (NodeCordoned)"),
    ("waiting, and its scheduler does not run",
     [*SERVED, vm(), pinned_vm_pod(unschedulable=False, schedulerName="kubevirt-scheduler"), OTHER_USER],
     "Waiting", "NotScheduled", "disk1", "node-a", "pinned to node-a"),
    ("stopped", [*SERVED, OTHER_USER, vm(**DISK)],
     "Stopped", "NodeMismatch", "disk1", "node-a", "prefers node-a (NodeMismatch)"),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_vm_has_a_state_a_reason_and_a_start_and_from_facts_alone_the_same_state(row: Any) -> None:
    """The webhook's caches hold neither manifests nor templates, and the metrics must agree with the report."""
    _, objects, *expected, start = row
    found = statuses(*objects)["vm1"]
    assert [found.state, found.reason, found.claim, found.storage_node] == expected
    assert found.start
    assert if_started(found.start) == start
    store = inventory(*objects).store
    (machine,) = (each for each in machines(facts_of(store)) if each.name == "vm1")
    counted = assess(machine, store, Settings())
    assert (counted.start, counted.state, counted.node) == (None, found.state, found.node)
    if machine.pod:
        assert (counted.claim, counted.storage_node) == (found.claim, found.storage_node)


def test_the_start_ignores_the_requests_and_the_anti_affinity_of_the_running_pod() -> None:
    full, spread = node("node-a", allocatable={"cpu": "4", "pods": "2"}), pod_anti_affinity(pod_term({"app": "db"}))
    for own, other, nodes, reason in [
        ({"requests": {"cpu": "3"}}, {"requests": {"cpu": "2"}}, [full], Reason.NODE_FULL),
        ({"labels": {"app": "db"}, "affinity": spread}, {"labels": {"app": "db"}}, NODES, Reason.POD_AFFINITY),
    ]:
        fleet = [*storage(), *nodes, vm(), vm_pod(**own), BACKUP]
        found, crowded = (statuses(*fleet, *more)["vm1"].start for more in ([], [vm_pod("other", claims=[], **other)]))
        assert found
        assert found.decision.outcome is Outcome.PINNED
        assert crowded
        assert crowded.decision.reason is reason


def test_a_start_is_cold_unless_another_vm_or_pod_uses_the_share_manager() -> None:
    own = [*SERVED, vm(), vm_pod(node="node-b"), (launcher := vm_pod("other", claims=[])), node("node-c")]
    static = {"handle": "vol-disk1", "namespace": "backup"}
    for others, users in [
        ([], []),
        ([vm_pod("vm2")], ["VM default/vm2"]),
        ([vm_pod("vm2", node="")], []),
        ([vm_pod("vm2", deleting=True)], []),
        ([vm_pod("vm2", claims=["disk2"])], []),
        ([vm_pod("vm2"), vm_pod("vm2", "node-c", suffix="fghij", labels=MIGRATED)], ["VM default/vm2"]),
        ([vm_pod(node="node-c", suffix="fghij", labels=MIGRATED)], []),
        ([hotplug_pod(launcher)], ["VM default/other"]),
        ([BACKUP], ["pod default/backup"]),
        ([pod("backup", claims=["disk1"])], []),
        ([pod("backup", claims=["disk1"], node="node-b", deleting=True)], []),
        ([pod("backup", claims=["disk1"], node="node-b", phase="Succeeded")], []),
        ([pod("backup", claims=["disk2"], node="node-b")], []),
        ([pod("backup", "elsewhere", claims=["disk1"], node="node-b")], []),
        ([vm_pod("vm2"), BACKUP], ["pod default/backup", "VM default/vm2"]),
        ([volume(name="static", **static), pod("nightly-0", "backup", claims=["disk1"], node="node-b")],
         ["pod backup/nightly-0"]),
    ]:  # fmt: skip
        found = statuses(*own, *others)["vm1"].start
        assert found
        assert (found.cold, [str(user) for user in found.users]) == (not users, users)


def test_a_start_is_decided_by_the_disks_whose_share_managers_others_keep_running() -> None:
    disks = [*storage("disk1"), *storage("disk2"), *storage("disk3", "node-b"), *NODES]
    own = [*disks, vm(), vm_pod(claims=["disk1", "disk2", "disk3"])]
    for disk, words in (("disk1", "pinned to node-a"), ("disk3", "pinned to node-b"), ("none", "follows (cold start)")):
        found = status(*own, pod("backup", claims=[disk], node="node-b")).start
        assert found
        assert (if_started(found), found.cold) == (words, disk == "none")


def test_a_webhook_that_changes_no_pod_places_a_vm_anywhere() -> None:
    for manifests, words in [
        ([vm()], "anywhere; with the webhook: pinned to node-a"),
        ([vm(opt_in=False)], "anywhere; if opted in and with the webhook: pinned to node-a"),
    ]:
        found = statuses(*SERVED, *manifests, vm_pod(node="node-b"), OTHER_USER, action=Action.OBSERVE)["vm1"]
        assert found.start
        assert (if_started(found.start), found.start.helps) == (words, False)


def test_the_disk_that_decides_at_the_next_start_has_users() -> None:
    fleet = [*storage("disk1"), *storage("disk2", "node-b"), *NODES, vm(annotations=DECIDING)]
    found = status(*fleet, vm_pod(claims=["disk1", "disk2"]), pod("backup", claims=["disk2"], node="node-a"))
    assert found.start
    assert (found.claim, found.start.decision.node) == ("disk1", "node-b")
    assert [user.name for user in found.start.users] == ["backup"]


def test_the_number_of_listed_users_is_limited() -> None:
    many = (pod(f"reader-{number}", claims=["disk1"], node="node-b") for number in range(2 * MAX_USERS))
    found = status(*SERVED, vm(), vm_pod(), *many).start
    assert found
    assert len(found.users) == MAX_USERS


def test_a_cold_start_only_helps_if_share_managers_are_steered() -> None:
    fleet = [*storage(), node("node-a", unschedulable=True), node("node-b"), vm(), vm_pod(node="node-b")]
    for steering in (True, False):
        start = status(*fleet, steering=steering).start
        assert start
        assert start.helps is steering
    found = status(claim(), volume(), *NODES, vm(**DISK), steering=False)
    assert (found.state, found.reason) == (State.STOPPED, Reason.COLD_START)
    assert found.start
    assert (if_started(found.start), found.start.helps) == ("anywhere", False)


SSD, HDD = {"labels": {"disk": "ssd"}}, {"labels": {"disk": "hdd"}}
GPU = {"key": "gpu", "effect": "NoSchedule"}
TOLERANT = {"tolerations": [{"key": "gpu", "operator": "Exists"}]}
ON_HDD = {"nodeSelector": {"disk": "hdd"}}
ON_SSD = {"affinity": node_terms({"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]})}
COLD = [claim(storageClassName="longhorn-rwx"), volume()]
SSD_CLASS = storage_class(parameters={"shareManagerNodeSelector": "disk:ssd"})
GPU_CLASS = storage_class(parameters={"shareManagerTolerations": "gpu:NoSchedule"})
TAINTED = node("node-b", taints=[GPU])
SSD_SETTING = {"kind": "Setting", "metadata": {"name": "system-managed-components-node-selector"}, "value": "disk:ssd"}


def taint_toleration(value: str) -> Object:
    return {"kind": "Setting", "metadata": {"name": "taint-toleration"}, "value": value}


@pytest.mark.parametrize(
    ("objects", "own", "where"),
    [
        # The share-manager pod that runs: Longhorn renders the next one like it.
        ([node("node-a", **SSD), node("node-b", **HDD), ON_SSD], ON_HDD, "node-b, where the VM may start"),
        ([node("node-a", **SSD), node("node-b", **HDD), ON_SSD], {}, "node-b, where the VM may start"),
        ([node("node-a", **SSD), node("node-b", **HDD), ON_SSD], {"nodeSelector": {"disk": "ssd"}}, ""),
        ([node("node-a"), node("node-b", taints=[GPU]), {}], TOLERANT, "node-b, where the VM may start"),
        ([node("node-a"), node("node-b", taints=[GPU]), {}], {}, ""),
        ([node("node-a"), node("node-b", taints=[GPU]), TOLERANT], TOLERANT, ""),
        ([node("node-a"), node("node-b", unschedulable=True), {}], {}, ""),
        # A StorageClass: the VM prefers the nodes that it allows.
        ([node("node-a", **SSD), node("node-b", **HDD), SSD_CLASS], {}, ""),
        ([node("node-a", **SSD), node("node-b", **HDD), SSD_CLASS], ON_HDD, "any node that can run the VM"),
        ([SSD_CLASS], ON_HDD, ""),
        # A setting of Longhorn, and unknown tolerations.
        ([node("node-a", **SSD), node("node-b", **HDD), SSD_SETTING], {}, "node-b, where the VM may start"),
        ([node("node-a", **SSD, taints=[GPU]), SSD_SETTING], TOLERANT, ""),
        # Tolerations of a setting, those of a StorageClass, and invalid ones.
        ([TAINTED, taint_toleration("")], TOLERANT, "node-b, where the VM may start"),
        ([TAINTED, taint_toleration("")], {"nodeSelector": {"disk": "ssd"}}, ""),
        ([TAINTED, taint_toleration("a=b:NoSchedule; gpu : NoSchedule")], TOLERANT, ""),
        ([TAINTED, taint_toleration("gpu=on:NoSchedule")], TOLERANT, "node-b, where the VM may start"),
        ([TAINTED, taint_toleration("gpu:NoSchedule;gpu")], TOLERANT, "node-b, where the VM may start"),
        ([TAINTED, taint_toleration("gpu:Never")], TOLERANT, "node-b, where the VM may start"),
        ([TAINTED, taint_toleration("a:NoExecute"), GPU_CLASS], TOLERANT, ""),
    ],
)
def test_a_restart_helps_only_where_the_share_manager_can_follow(
    objects: list[Object], own: Object, where: str
) -> None:
    *nodes, limits = objects
    if "kind" in limits:
        found = status(*COLD, *nodes, limits, vm(), vm_pod(node="", **own))
    else:
        running = share_manager_pod(node="node-a", **limits)
        found = status(*COLD, running, *nodes, vm(), vm_pod(node="node-b", **own))
    assert found.start
    assert found.start.decision.reason is Reason.COLD_START
    assert (found.start.helps, if_started(found.start)) == (not where, "anywhere" if where else "follows (cold start)")
    assert f"the next share-manager of claim disk1 cannot run on {where}" in found.start.apart or not where
    if found.state is State.APART:
        assert advise(*apart(*COLD, running, *nodes, vm(), vm_pod(node="node-b", **own))).text.startswith(
            f"The next share-manager of claim disk1 cannot run on {where}: " if where else "Restart the VM"
        )


BIG = {"requests": {"memory": "2Gi"}}
CORDONED = node("node-b", unschedulable=True)
SMALL = {"allocatable": {"memory": "1Gi", "pods": "9"}}
NOWHERE = "No node can run the VM's next pod: node-b does not"


@pytest.mark.parametrize(
    ("nodes", "advice"),
    [
        ([CORDONED, node("node-a", **SMALL)], NOWHERE),
        ([CORDONED, node("node-a", unschedulable=True)], NOWHERE),
        ([CORDONED, node("node-a")], "Restart the VM"),
        ([node("node-b", taints=[GPU]), node("node-a", **SMALL)], NOWHERE),
        # The next pod takes the place of the one that runs.
        ([node("node-b", **SMALL), node("node-a", **SMALL)], "Stop the VM, and start it once"),
    ],
)
def test_no_restart_is_advised_after_which_no_node_can_run_the_vm(nodes: list[Object], advice: str) -> None:
    found = apart(*COLD, share_manager_pod(node="node-a"), *nodes, vm(), vm_pod(node="node-b", **BIG))
    start = found[0].start
    assert start
    assert (start.decision.reason, start.helps) == (Reason.COLD_START, advice != NOWHERE)
    assert advise(*found).text.startswith(advice)


def test_a_vm_follows_a_share_manager_on_a_full_node_only_if_that_stops_first() -> None:
    full = [*COLD, share_manager_pod(node="node-a"), node("node-a", **SMALL), node("node-b")]
    stops = "virtctl stop vm1 -n default"
    wait = "kubectl wait --for=delete pod/share-manager-vol-disk1 -n longhorn-system --timeout=10m"
    once = """kubectl patch vm vm1 -n default --type merge -p '{"spec":{"runStrategy":"Once"}}'"""
    for strategy, expected in (("Always", "virtctl start vm1 -n default"), ("Once", once)):
        own = vm()
        own["spec"]["runStrategy"] = strategy
        found = apart(*full, own, vm_pod(node="node-b", **BIG))
        start = found[0].start
        assert start
        assert start.lingering
        assert (start.helps, start.lingering.reason, if_started(start)) == (
            True, Reason.NODE_FULL, "follows (if stopped first)",
        )  # fmt: skip
        assert [each.line for each in commands(*found)] == [stops, wait, expected]
        assert next_step(*found) == "stop, then start"
        assert advise(*found).text.endswith("After a restart, it would still run on node-a (NodeFull).")
    running = vmi() | {"status": {"phase": "Running"}}
    alone = apart(*full, running, vm_pod(node="node-b", opt_in="true", **BIG))
    assert advise(*alone).text.startswith("Delete the VMI, and create it again once its share-manager has stopped: ")
    assert [each.line for each in commands(*alone)] == ["kubectl delete vmi vm1 -n default", wait]
    assert next_step(*alone) == "recreate the VMI"


def test_a_full_node_that_alone_may_run_the_share_manager_is_no_place_for_both() -> None:
    allowed = node("node-a", **SSD | SMALL)
    for size, helps in ((BIG, False), ({}, True)):
        found = status(*COLD, allowed, node("node-b", **HDD), SSD_CLASS, vm(), vm_pod(node="", **size))
        assert found.start
        assert found.start.helps is helps


def test_a_vm_that_its_share_manager_cannot_follow_reads_so_before_its_start() -> None:
    able = {"kubernetes.io/arch": "amd64", "kubevirt.io/schedulable": "true", "disk": "hdd"}
    found = apart(*COLD, SSD_CLASS, node("node-a", labels=able), vm(**DISK))
    assert advise(*found).text.startswith(
        "The next share-manager of claim disk1 cannot run on any node that can run the VM"
    )


def test_the_selector_of_a_storage_class_replaces_the_same_key_of_longhorns_setting() -> None:
    able = {"kubernetes.io/arch": "amd64", "kubevirt.io/schedulable": "true", "disk": "ssd"}
    found = apart(*COLD, SSD_CLASS, SSD_SETTING | {"value": "disk:hdd"}, node("node-a", labels=able), vm(**DISK))
    assert advise(*found).text.startswith("No action needed. The VM prefers nodes that match disk in (ssd)")


def test_a_vm_of_a_pool_is_not_concerned_with_the_claim_that_the_pool_shares() -> None:
    for opted_in in (True, False):
        pool = [vm(opt_in=opted_in), vm_pod(node="node-b", opt_in="true" if opted_in else None), OTHER_USER]
        found = statuses(*SERVED, *pool, labeled_namespace(), opt_in=OptIn.NAMESPACE)["vm1"]
        expected = (State.APART, Reason.NOT_REVIEWED) if opted_in else (State.NOT_CONCERNED, Reason.SHARED_CLAIM_ONLY)
        assert (found.state, found.reason, found.claim) == (*expected, "disk1")


def test_a_start_that_fails_has_a_reason() -> None:
    template = vm_pod(node="", overhead={"cpu": "a lot"})
    machine = Machine("default", "vm1", typed(template), template=typed(template))
    found = assess(machine, catalog(*SERVED), Settings())
    assert found.start
    assert found.start.decision.reason is Reason.UNJUDGED
    assert "the pod is malformed (spec.overhead.cpu: expected a quantity" in found.start.decision.message


def test_without_manifests_the_reasons_of_decisions_are_unknown() -> None:
    for launcher in (vm_pod(node="node-b", decided="NodeFull"), vm_pod(node="")):
        found = inventory(*SERVED, vm(), launcher)
        (machine,) = machines(facts_of(found.store))
        assert assess(machine, found.store, Settings()).reason is None


FRESH = [claim("cold"), volume("cold")]


def opted_in(*claims: str, node: str = "node-b", **rest: Any) -> Object:
    return pod("web", claims=claims, node=node, annotations={OPT_IN: "true"}, **rest)


# A pod, and its state, claim and storage node.
WORKLOADS: dict[str, tuple[Object, tuple[str, str, str | None] | None]] = {
    "together": (opted_in("disk1", node="node-a"), ("Together", "disk1", "node-a")),
    "apart": (opted_in("disk1"), ("Apart", "disk1", "node-a")),
    "the node of most of its claims": (opted_in("disk1", "disk2", "disk3"), ("Together", "disk2", "node-b")),
    "no share-manager yet": (opted_in("block", "cold"), ("Unserved", "cold", None)),
    "one of two share-managers": (opted_in("cold", "disk1"), ("Apart", "disk1", "node-a")),
    "no share-manager ever": (opted_in("block", "unknown"), None),
    "no claim": (opted_in(), None),
    "unbound": (opted_in("disk1", node=""), None),
    "terminating": (opted_in("disk1", deleting=True), None),
    "not opted in": (pod("web", claims=["disk1"], node="node-b"), None),
    "of a VM": (vm_pod(node="node-b"), None),
}


@pytest.mark.parametrize("case", WORKLOADS)
def test_an_opted_in_pod_that_runs_no_vm_has_a_state(case: str) -> None:
    workload, expected = WORKLOADS[case]
    found = assess_pod(pod_fact(workload), catalog(*TWO_NODES, BLOCK, *FRESH), Settings())
    assert (found and (found.state, found.claim, found.storage_node)) == expected
