"""Each VM of the fleet has a state, a reason, and what a start would decide now."""

from typing import Any

import pytest

from tests.support.builders import (
    Object,
    claim,
    hotplug_pod,
    node,
    pinned_vm_pod,
    share_manager,
    share_manager_pod,
    storage,
    volume,
)
from tests.support.fleet import LATER, statuses, vm, vm_pod, vmi
from webhook.placement.fleet_wording import if_started

NODES = [node("node-a"), node("node-b")]
SERVED = [*storage(), *NODES]  # disk1 is served by node-a
OTHER_USER = vm_pod("other", "node-a")
MIGRATED = {"kubevirt.io/migrationJobUID": "job"}
HOSTNAME = "kubernetes.io/hostname"

# Sentence, objects, state, reason, claim, storage node, words about the start.
ROWS: list[tuple[str, list[Object], str, str | None, str | None, str | None, str]] = [
    ("together", [*SERVED, vm(), vm_pod(decided="CoScheduled", pinned="node-a")],
     "Together", "CoScheduled", "disk1", "node-a", "cold start, the share-manager follows the VM"),
    ("apart, and the share-manager has moved",
     [*SERVED, vm(), vm_pod(node="node-b", decided="CoScheduled", pinned="node-b"), OTHER_USER],
     "Apart", "ShareManagerMoved", "disk1", "node-a", "pinned to node-a"),
    ("apart, and the scheduler chose another node",
     [*SERVED, vm(), vm_pod(node="node-b", decided="CoScheduled"), OTHER_USER],
     "Apart", "ScheduledElsewhere", "disk1", "node-a", "pinned to node-a"),
    ("apart, because the node was full",
     [*SERVED, vm(), vm_pod(node="node-b", decided="NodeFull"), OTHER_USER],
     "Apart", "NodeFull", "disk1", "node-a", "pinned to node-a"),
    ("apart, and older than the webhook", [*SERVED, vm(), vm_pod(node="node-b"), OTHER_USER],
     "Apart", "NotReviewed", "disk1", "node-a", "pinned to node-a"),
    ("apart, and older than the opt-in", [*SERVED, vm(), vm_pod(node="node-b", opt_in=None), OTHER_USER],
     "Apart", "NotReviewed", "disk1", "node-a", "pinned to node-a"),
    ("not opted in", [*SERVED, vm(opt_in=False), vm_pod(node="node-b", opt_in=None), OTHER_USER],
     "Apart", "NotOptedIn", "disk1", "node-a", "not opted in; if it were: pinned to node-a"),
    ("migrated", [*SERVED, vm(), vm_pod(node="node-b", labels=MIGRATED), OTHER_USER],
     "Apart", "MigrationTarget", "disk1", "node-a", "pinned to node-a"),
    ("migrating", [*SERVED, vm(), vm_pod(node="node-b", decided="NodeFull"), OTHER_USER,
                   vm_pod(suffix="fghij", labels=MIGRATED, created=LATER)],
     "Apart", "NodeFull", "disk1", "node-a", "pinned to node-a"),
    ("several disks", [*storage("disk1", "node-a"), *storage("disk2", "node-b"), *storage("disk3", "node-b"), *NODES,
                       vm(), vm_pod(claims=["disk1", "disk2", "disk3"], decided="NodeFull"),
                       vm_pod("other", "node-b", claims=["disk9", "disk2", "disk3"])],
     "Together", "CoScheduled", "disk1", "node-a", ""),
    ("a disk that the VM names", [*storage("disk1", "node-a"), *storage("disk2", "node-b"), *NODES,
                                  vm(annotations={"kubevirt-scheduler/co-schedule-claim": "disk2"}),
                                  vm_pod(claims=["disk1", "disk2"],
                                         annotations={"kubevirt-scheduler/co-schedule-claim": "disk2"})],
     "Apart", "NotReviewed", "disk2", "node-b", "cold start, the share-manager follows the VM"),
    ("a hotplugged disk", [*SERVED, vm(), (launcher := vm_pod(node="node-b", claims=[])), hotplug_pod(launcher)],
     "Apart", "NotReviewed", "disk1", "node-a", "cold start, the share-manager follows the VM"),
    ("a hotplugged disk has no vote beside a disk of the pod",
     [*SERVED, *storage("disk2", "node-b"), vm(), (launcher := vm_pod()), hotplug_pod(launcher, claims=["disk2"])],
     "Together", "CoScheduled", "disk1", "node-a", "cold start, the share-manager follows the VM"),
    ("a VMI without a VM", [*SERVED, vmi(), vm_pod(node="node-b"), OTHER_USER],
     "Apart", "NotReviewed", "disk1", "node-a", "pinned to node-a"),
    ("paused", [*SERVED, vm(), vmi(paused=True), vm_pod()],
     "Together", "CoScheduled", "disk1", "node-a", "cold start, the share-manager follows the VM"),
    ("a Block volume", [claim(volumeMode="Block"), volume(), *NODES, vm(), vm_pod()],
     "NotConcerned", "NoShareManagerEver", "disk1", None, "unchanged (NoShareManager)"),
    ("a ReadWriteOnce volume", [claim(modes=["ReadWriteOnce"]), volume(), *NODES, vm(), vm_pod()],
     "NotConcerned", "ClaimNotRWX", "disk1", None, "unchanged (NoShareManager)"),
    ("no volume of Longhorn", [claim(), volume(driver="nfs.csi.k8s.io"), *NODES, vm(), vm_pod()],
     "NotConcerned", "NotLonghorn", "disk1", None, "unchanged (NoShareManager)"),
    ("no claims", [*NODES, vm(), vm_pod(claims=[])],
     "NotConcerned", "NoClaims", None, None, "unchanged (NoClaims)"),
    ("unserved", [claim(), volume(), share_manager(state="stopped"), *NODES, vm(), vm_pod()],
     "Unserved", "ShareManagerStopped", "disk1", None, "unchanged (NoShareManager)"),
    ("unserved, and its share-manager is starting", [claim(), volume(), share_manager_pod(), *NODES, vm(), vm_pod()],
     "Unserved", "ShareManagerStarting", "disk1", None, "prefers node-a (ShareManagerStarting)"),
    ("waiting without a pin", [*SERVED, vm(), vm_pod(node="", decided="NodeFull"), OTHER_USER],
     "Waiting", "NodeFull", "disk1", "node-a", "pinned to node-a"),
    ("waiting with a pin that can't hold",
     [*storage(), node("node-a", unschedulable=True), vm(), pinned_vm_pod(), OTHER_USER],
     "Waiting", "NodeCordoned", "disk1", "node-a", "prefers node-a (NodeCordoned)"),
    ("stopped", [*SERVED, OTHER_USER, vm(volumes=[{"name": "a", "persistentVolumeClaim": {"claimName": "disk1"}}])],
     "Stopped", "NodeMismatch", "disk1", "node-a", "prefers node-a (NodeMismatch)"),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_vm_has_a_state_a_reason_and_a_start(row: Any) -> None:
    _, objects, *expected = row
    found = statuses(*objects)["vm1"]
    state = [found.state, found.reason, found.claim, found.storage_node]
    print(state, if_started(found.start))
    assert state == expected[:4]
    assert found.start
    if expected[4]:
        assert if_started(found.start) == expected[4]
