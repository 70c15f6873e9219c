"""The report says for each VM what a start would do, and what the operator can do."""

import pytest

from tests.support.builders import (
    Object,
    claim,
    hotplug_pod,
    node,
    pinned_vm_pod,
    pod,
    share_manager,
    share_manager_pod,
    storage,
    volume,
)
from tests.support.fleet import NOW, inventory, statuses, vm, vm_pod, vmi
from webhook.cluster.inventory import Facts, machines
from webhook.fleet.states import State, assess
from webhook.fleet.wording import NO_ACTION, advice, next_step
from webhook.placement.settings import Settings
from webhook.placement.wording import ADVICE, restart_advice

SERVED = [*storage(), node("node-a"), node("node-b")]
CORDONED = [*storage(), node("node-a", unschedulable=True), node("node-b")]
OTHER = vm_pod("other", "node-a")
OPT_IN = 'Annotate the VM\'s spec.template with kubevirt-scheduler/co-schedule: "true"'
BACKUP = pod("backup", claims=["disk1"], node="node-b")
NAMED = {"kubevirt-scheduler/co-schedule-claim": "disk2"}
PREFERRED_MODE = {"kubevirt-scheduler/co-schedule-mode": "preferred"}
PINNED = "its pod is then pinned to node-a, where"
BACKUP_KEEPS = "pod default/backup keeps the share-manager running"
KEEPS = "VM default/other keeps the share-manager running"
RESTART = f"estart the VM: {PINNED} {KEEPS}."
COLD = "its share-manager has no other user, so it stops with the VM and restarts on the VM's node."
ABLE = {"labels": {"kubevirt.io/schedulable": "true"}}
DISK = {"volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "disk1"}}]}
SCRIPTED: list[tuple[str, list[Object], str]] = [
    ("together", [*SERVED, vm(), vm_pod()], NO_ACTION),
    ("apart", [*SERVED, vm(), vm_pod(node="node-b"), OTHER], f"R{RESTART}"),
    ("apart, not opted in", [*SERVED, vm(opt_in=False), vm_pod(node="node-b"), OTHER], f"{OPT_IN}, then r{RESTART}"),
    ("apart, alone", [*SERVED, vm(), vm_pod(node="node-b")], f"Restart the VM: {COLD}"),
    ("apart, without a VM", [*SERVED, vmi(), vm_pod(node="node-b")], f"Delete and recreate the VMI: {COLD}"),
    ("apart, cordoned", [*CORDONED, vm(), vm_pod(node="node-b"), OTHER],
     f"{ADVICE['NodeCordoned']} {KEEPS} on node-a."),
    ("apart, cordoned, not opted in", [*CORDONED, vm(opt_in=False), vm_pod(node="node-b"), OTHER],
     f"{OPT_IN}. {ADVICE['NodeCordoned']} {KEEPS} on node-a."),
    ("apart, a backup", [*SERVED, vm(), vm_pod(node="node-b"), BACKUP],
     f"Restart the VM: {PINNED} {BACKUP_KEEPS}."),
    ("apart, a backup and a VM", [*SERVED, vm(), vm_pod(node="node-b"), BACKUP, OTHER],
     f"Restart the VM: {PINNED} pod default/backup and VM default/other keep the share-manager running."),
    ("apart, many users", [*SERVED, vm(), vm_pod(node="node-b"), BACKUP, OTHER, vm_pod("third", "node-a")],
     f"Restart the VM: {PINNED} pod default/backup, VM default/other and others keep the share-manager running."),
    ("apart, cordoned, a backup", [*CORDONED, vm(), vm_pod(node="node-b"), BACKUP],
     f"{ADVICE['NodeCordoned']} P{BACKUP_KEEPS[1:]} on node-a."),
    ("apart, a backup, and the VM only prefers a node",
     [*SERVED, vm(annotations=PREFERRED_MODE), vm_pod(node="node-b"), BACKUP],
     f"{ADVICE['ScheduledElsewhere']} P{BACKUP_KEEPS[1:]} on node-a."),
    ("apart, a hotplugged disk", [*SERVED, vm(), (plain := vm_pod(node="node-b", claims=[])), hotplug_pod(plain)],
     "Live-migrate the VM to node-a: a hotplugged disk does not decide where a VM starts."),
    ("migrating", [*SERVED, vm(), vm_pod(node="node-b"), vm_pod(suffix="x", created="2026-09-01T12:00:00Z")],
     "Wait for the live migration to end."),
    ("waiting, stuck", [*CORDONED, vm(), pinned_vm_pod()],
     f"Pinned to node-a, but node-a is cordoned; {restart_advice('default', 'vm1', 'Always')}."),
    ("waiting, stuck, a VMI without a VM", [*CORDONED, vmi(), pinned_vm_pod()],
     f"Pinned to node-a, but node-a is cordoned; {restart_advice('default', 'vm1', None)}."),
    ("waiting", [*SERVED, vm(), vm_pod(node="", created=NOW)],
     "Check why the scheduler finds no node: kubectl describe pod virt-launcher-vm1-abcde -n default."),
    ("waiting, not scheduled", [*SERVED, vm(), vm_pod(node="", schedulerName="kubevirt-scheduler")],
     "No scheduler has evaluated the pod for 45 s; it names kubevirt-scheduler. " + ADVICE["NotScheduled"]),
    ("unserved", [claim(), volume(), share_manager(state="stopped"), vm(), vm_pod()],
     "The VM runs, but no share-manager serves its claim: check the volume in Longhorn and the pod's Events."),
    ("starting", [claim(), volume(), share_manager_pod(), vm(), vm_pod()], ADVICE["ShareManagerStarting"]),
    ("no claim object", [vm(), vm_pod()], ADVICE["ClaimNotFound"]),
    ("Block", [claim(volumeMode="Block"), vm(), vm_pod()],
     f"{NO_ACTION} Block and migratable volumes have no share-manager."),
    ("no claims", [vm(), vm_pod(claims=[])], f"{NO_ACTION} The VM mounts no claim."),
    ("stopped", [*storage(), node("node-a", **ABLE), vm(**DISK)], f"{NO_ACTION} The next start is pinned to node-a."),
    ("stopped, cordoned, a backup", [*storage(), node("node-a", unschedulable=True, **ABLE), vm(**DISK), BACKUP],
     f"{ADVICE['NodeCordoned']} P{BACKUP_KEEPS[1:]} on node-a."),
    ("stopped, not opted in", [*SERVED, vm(opt_in=False, **DISK)], f"{OPT_IN} before the next start."),
    ("stopped, cold", [claim(), volume(), vm(**DISK)],
     f"{NO_ACTION} The VM starts on any node, and the share-manager of claim disk1 follows it."),
    ("apart, and its next disk is cold",
     [*SERVED, claim("disk2"), vm(annotations=NAMED), vm_pod(node="node-b", claims=["disk1", "disk2"]), BACKUP],
     "Restart the VM: the share-manager of its disk then follows it."),
    ("stopped, Block", [claim(volumeMode="Block"), vm(opt_in=False, **DISK)],
     f"{NO_ACTION} Block and migratable volumes have no share-manager."),
    ("stopped, no claims", [vm()], f"{NO_ACTION} The VM mounts no claim."),
]  # fmt: skip


@pytest.mark.parametrize("row", SCRIPTED, ids=lambda row: row[0])
def test_a_vm_comes_with_advice(row: tuple[str, list[Object], str]) -> None:
    assert advice(statuses(*row[1])["vm1"]) == row[2]


NEXT_STEPS = {
    "together": "",
    "apart": "restart",
    "apart, not opted in": "opt in, then restart",
    "apart, a backup": "restart",
    "apart, without a VM": "recreate the VMI",
    "apart, cordoned": f"{ADVICE['NodeCordoned']} {KEEPS} on node-a.",
    "migrating": "wait for the migration",
    "Block": "",
}


@pytest.mark.parametrize("row", [row for row in SCRIPTED if row[0] in NEXT_STEPS], ids=lambda row: row[0])
def test_the_next_step_is_short_for_the_most_frequent_cases(row: tuple[str, list[Object], str]) -> None:
    assert next_step(statuses(*row[1])["vm1"]) == NEXT_STEPS[row[0]]


@pytest.mark.parametrize("row", SCRIPTED, ids=lambda row: row[0])
def test_advice_without_a_start_is_still_advice(row: tuple[str, list[Object], str]) -> None:
    found = inventory(*row[1])
    (machine,) = (each for each in machines(Facts.of(found.store)) if each.name == "vm1")
    status = assess(machine, found.store, Settings())
    assert advice(status).endswith(".")
    assert status.state is not State.APART or NO_ACTION not in advice(status)


def test_a_vm_that_is_apart_or_stuck_never_needs_no_action() -> None:
    for name, objects, words in SCRIPTED:
        if name.startswith(("apart", "waiting")):
            assert NO_ACTION not in words
            assert "Nothing to do" not in advice(statuses(*objects)["vm1"])
