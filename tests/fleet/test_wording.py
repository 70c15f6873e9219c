"""The report says for each VM what a start would do, and what the operator can do."""

from typing import Any

import pytest
from msgspec.structs import replace

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
from tests.support.fleet import NOW, apart, inventory, vm, vm_pod, vmi
from tests.support.migrations import migratable
from webhook.catalog.inventory import facts_of, machines
from webhook.fleet.machine import State
from webhook.fleet.relocation.rules import Surroundings
from webhook.fleet.simulation.plan import plan_move
from webhook.fleet.states import assess
from webhook.fleet.wording import advise, commands, next_step
from webhook.placement import wording
from webhook.placement.settings import Action, Settings
from webhook.placement.wording import restart_advice

SERVED = [*storage(), node("node-a"), node("node-b")]
CORDONED = [*storage(), node("node-a", unschedulable=True), node("node-b")]
OTHER = vm_pod("other", "node-a")
OPT_IN = "pt the VM in: kubevirt-scheduler opt-in vm1 -n default --yes"
ANNOTATE = 'kubevirt-scheduler/co-schedule: "true"'
RECOLOCATE = "Live-migrate it to node-a: kubevirt-scheduler recolocate vm1 -n default --yes."
OPTED_OUT = {"kubevirt-scheduler/co-schedule": "false"}
BY_HELM = "Helm (annotation meta.helm.sh/release-name) manages it"
AT_ITS_SOURCE = f"Annotate the VM's spec.template with {ANNOTATE} at its source, because {BY_HELM}"
ONLY_PREFERS = "A restart only prefers node-a. To have the VM pinned, remove the mode preferred."
CHANGES = ", which changes its run strategy from Once to Always"
ADVICE = {reason: each.text for reason, each in wording.ADVICE.items()}
NO_ACTION = wording.NO_ACTION.text
RECREATE = restart_advice("default", "vm1", None)[1:]
FIXED = migratable(conditions=[])
REBOOTS = FIXED | {"spec": FIXED.get("spec", {}) | {"domain": {"rebootPolicy": "Terminate"}}}
UNSCHEDULABLE = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
HELM = {"meta.helm.sh/release-name": "shop"}
STOP_AND_START = restart_advice("default", "vm1", "Always")
BACKUP = pod("backup", claims=["disk1"], node="node-b")
NAMED = {"kubevirt-scheduler/co-schedule-claim": "disk2"}
PREFERRED_MODE = {"kubevirt-scheduler/co-schedule-mode": "preferred"}
PINNED = "Its pod is then pinned to node-a."
KEEPS_RUNNING = "The share-manager on node-a keeps running for"
HOTPLUGGED = (
    "A restart does not help: a hotplugged disk does not decide where a VM starts. "
    "What hinders live migration: no VMI with the condition LiveMigratable."
)
BACKUP_KEEPS = f"{KEEPS_RUNNING} pod default/backup."
KEEPS = f"{KEEPS_RUNNING} VM default/other."
RESTART = "estart the VM: virtctl restart vm1 -n default."
OPT_IN_AND_RESTART = f"O{OPT_IN}, then r{RESTART} {PINNED} {KEEPS}"
COLD = "Its share-manager has no other user then, so it follows the VM."


def strategy(name: str, **rest: Any) -> Object:
    built = vm(**rest)
    built["spec"]["runStrategy"] = name
    return built


def annotated(manifest: Object, annotations: Object) -> Object:
    return manifest | {"metadata": manifest["metadata"] | {"annotations": annotations}}


ABLE = {"labels": {"kubevirt.io/schedulable": "true"}}
DISK = {"volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "disk1"}}]}
NEVER_CREATED = "share-manager of claim disk1, which was never created"
SCRIPTED: list[tuple[str, list[Object], str]] = [
    ("together", [*SERVED, vm(), vm_pod()], NO_ACTION),
    ("apart", [*SERVED, vm(), vm_pod(node="node-b"), OTHER], f"R{RESTART} {PINNED} {KEEPS}"),
    ("apart, not opted in", [*SERVED, vm(opt_in=False), vm_pod(node="node-b"), OTHER], OPT_IN_AND_RESTART),
    ("apart, alone", [*SERVED, vm(), vm_pod(node="node-b")], f"R{RESTART} {COLD}"),
    ("apart, without a VM", [*SERVED, FIXED, vm_pod(node="node-b")], f"D{RECREATE}. {COLD}"),
    ("apart, cordoned", [*CORDONED, vm(), vm_pod(node="node-b"), OTHER],
     f"{ADVICE['NodeCordoned']} {KEEPS}"),
    ("apart, cordoned, not opted in", [*CORDONED, vm(opt_in=False), vm_pod(node="node-b"), OTHER],
     f"O{OPT_IN}. {ADVICE['NodeCordoned']} {KEEPS}"),
    ("apart, a backup", [*SERVED, vm(), vm_pod(node="node-b"), BACKUP],
     f"R{RESTART} {PINNED} {BACKUP_KEEPS}"),
    ("apart, a backup and a VM", [*SERVED, vm(), vm_pod(node="node-b"), BACKUP, OTHER],
     f"R{RESTART} {PINNED} {KEEPS_RUNNING} pod default/backup, VM default/other."),
    ("apart, a backup, and the VM only prefers a node",
     [*SERVED, vm(annotations=PREFERRED_MODE), vm_pod(node="node-b"), BACKUP],
     f"{ONLY_PREFERS} {BACKUP_KEEPS}"),
    ("apart, a hotplugged disk, a backup",
     [*SERVED, vm(), (plain := vm_pod(node="node-b", claims=[])), hotplug_pod(plain), BACKUP],
     HOTPLUGGED),
    ("apart, and a reboot of the guest makes a new pod", [*SERVED, vm(), REBOOTS, vm_pod(node="node-b"), OTHER],
     f"R{RESTART.replace(':', ', or reboot its guest:', 1)} {PINNED} {KEEPS}"),
    ("apart, live-migratable", [*SERVED, vm(), migratable(), vm_pod(node="node-b"), OTHER], RECOLOCATE),
    ("apart, live-migratable, not opted in", [*SERVED, vm(opt_in=False), migratable(), vm_pod(node="node-b"), OTHER],
     f"{RECOLOCATE} To keep it there at its next start, o{OPT_IN}."),
    ("apart, and KubeVirt evacuates it",
     [*SERVED, vm(), migratable(evacuationNodeName="node-b"), vm_pod(node="node-b")],
     "Wait, and look again: KubeVirt evacuates the VM from node-b."),
    ("apart, opted out", [*SERVED, vm(annotations=OPTED_OUT, opt_in=False), vm_pod(node="node-b"), OTHER],
     "The VM is opted out, so it stays where it is."),
    ("apart, managed by Helm",
     [*SERVED, annotated(vm(opt_in=False), HELM), vm_pod(node="node-b"), OTHER],
     f"{AT_ITS_SOURCE}, then r{RESTART} {PINNED} {KEEPS}"),
    ("apart, a VMI that is not opted in", [*SERVED, FIXED, vm_pod(node="node-b", opt_in=None), OTHER],
     f"Annotate the VMI in its manifest with {ANNOTATE}, then d{RECREATE}. {PINNED} {KEEPS}"),
    ("apart, Once", [*SERVED, strategy("Once"), vm_pod(node="node-b"), OTHER],
     f"Restart the VM: kubectl delete vmi vm1 -n default. {PINNED} {KEEPS}"),
    ("waiting, stuck, Once", [*CORDONED, strategy("Once"), pinned_vm_pod()],
     f"Pinned to node-a, but node-a is cordoned; {STOP_AND_START}{CHANGES}."),
    ("waiting, stuck, a VMI", [*CORDONED, vmi(), pinned_vm_pod()],
     f"Pinned to node-a, but node-a is cordoned; d{RECREATE}."),
    ("waiting, and its claim is missing", [node("node-a"), vm(), vm_pod(node="")],
     f"The VM cannot start, because claim disk1 does not exist. {ADVICE['ClaimNotFound']}"),
    ("stopped, and its claim is missing",
     [*SERVED, vm(volumes=[{"name": "a", "persistentVolumeClaim": {"claimName": "x"}}])],
     f"The VM cannot start, because claim x does not exist. {ADVICE['ClaimNotFound']}"),
    ("stopped, opted out", [*SERVED, vm(annotations=OPTED_OUT, opt_in=False, **DISK)],
     f"{NO_ACTION} The VM is opted out."),
    ("migrating", [*SERVED, vm(), vm_pod(node="node-b"), vm_pod(suffix="x", created="2026-09-01T12:00:00Z")],
     "Wait, and look again: another live migration of the VM is unfinished."),
    ("waiting, stuck", [*CORDONED, vm(), pinned_vm_pod()],
     f"Pinned to node-a, but node-a is cordoned; {STOP_AND_START}."),
    ("waiting, too young to be evaluated", [*SERVED, vm(), vm_pod(node="", created=NOW)],
     f"Wait: no scheduler has evaluated the pod yet; it names default-scheduler. {ADVICE['NotScheduled']}"),
    ("waiting", [*SERVED, vm(), vm_pod(node="", created=NOW) | {"status": UNSCHEDULABLE}],
     "Check why the scheduler finds no node: kubectl describe pod virt-launcher-vm1-abcde -n default."),
    ("waiting, not scheduled", [*SERVED, vm(), vm_pod(node="", schedulerName="kubevirt-scheduler")],
     "No scheduler has evaluated the pod for 45 s; it names kubevirt-scheduler. " + ADVICE["NotScheduled"]),
    ("unserved", [claim(), volume(), share_manager(state="stopped"), vm(), vm_pod()],
     "The VM runs, but no share-manager serves its claim: check the volume in Longhorn and the pod's Events."),
    ("attaching",
     [claim(), volume(), share_manager(state="stopped"), vm(), vm_pod() | {"status": {"phase": "Pending"}}],
     f"{NO_ACTION} The VM is starting, and Longhorn starts its share-manager."),
    ("starting", [claim(), volume(), share_manager_pod(), vm(), vm_pod()], ADVICE["ShareManagerStarting"]),
    ("replaced", [claim(), volume(), share_manager(state="error"), vm(), vm_pod()],
     f"{NO_ACTION} Its share-manager is being replaced."),
    ("no claim object", [vm(), vm_pod()], ADVICE["ClaimNotFound"]),
    ("Block", [claim(volumeMode="Block"), vm(), vm_pod()], ADVICE["NoShareManagerEver"]),
    ("no claims", [vm(), vm_pod(claims=[])], f"{NO_ACTION} The VM mounts no claim."),
    ("stopped", [*storage(), node("node-a", **ABLE), vm(**DISK)], f"{NO_ACTION} The next start is pinned to node-a."),
    ("stopped, cordoned, a backup", [*storage(), node("node-a", unschedulable=True, **ABLE), vm(**DISK), BACKUP],
     f"{ADVICE['NodeCordoned']} {BACKUP_KEEPS}"),
    ("stopped, not opted in", [*SERVED, vm(opt_in=False, **DISK)], f"Before the next start, o{OPT_IN}."),
    ("stopped, cold", [claim(), volume(), vm(**DISK)],
     f"{NO_ACTION} The VM starts on any node, and the {NEVER_CREATED}, follows it if it can run there."),
    ("apart, and its next disk is cold",
     [*SERVED, claim("disk2"), vm(annotations=NAMED), vm_pod(node="node-b", claims=["disk1", "disk2"]), BACKUP],
     f"R{RESTART} {COLD}"),
    ("stopped, no claims", [vm()], f"{NO_ACTION} The VM mounts no claim."),
]  # fmt: skip


@pytest.mark.parametrize("row", SCRIPTED, ids=lambda row: row[0])
def test_a_vm_comes_with_advice(row: tuple[str, list[Object], str]) -> None:
    assert advise(*apart(*row[1])).text == row[2]


# The commands, and the next step; the advice if it is no text.
STEPS: dict[str, tuple[tuple[str, ...], str | None]] = {
    "together": ((), ""),
    "Block": ((), ""),
    "apart": (("virtctl restart vm1 -n default",), "restart"),
    "apart, live-migratable": (("kubevirt-scheduler recolocate vm1 -n default --yes",), "recolocate"),
    "apart, not opted in": (
        ("kubevirt-scheduler opt-in vm1 -n default --yes", "virtctl restart vm1 -n default"),
        "opt in, then restart",
    ),
    "apart, Once": (("kubectl delete vmi vm1 -n default",), "recreate the VMI"),
    "apart, a VMI that is not opted in": ((), None),
    "apart, managed by Helm": ((), None),
    "apart, opted out": ((), None),
    "apart, cordoned": ((), None),
    "apart, and KubeVirt evacuates it": ((), None),
    "migrating": ((), None),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_vm_that_is_apart_comes_with_commands_and_a_short_step(name: str) -> None:
    ((objects, words),) = (row[1:] for row in SCRIPTED if row[0] == name)
    found, move = apart(*objects)
    expected, step = STEPS[name]
    assert tuple(each.line for each in commands(found, move)) == expected
    assert next_step(found, move) == (words if step is None else step)
    hostile = replace(found, machine=replace(found.machine, name="vm1; reboot"))
    assert commands(hostile, move) == ()
    assert bool(next_step(hostile, move)) is (step != "")


@pytest.mark.parametrize("row", SCRIPTED, ids=lambda row: row[0])
def test_advice_without_a_start_is_still_advice(row: tuple[str, list[Object], str]) -> None:
    found = inventory(*row[1])
    (machine,) = (each for each in machines(facts_of(found.store)) if each.name == "vm1")
    status = assess(machine, found.store, Settings())
    words = advise(status, plan_move(status, Surroundings(Settings()), found.store)).text
    assert words.endswith(".")
    assert status.state is not State.APART or NO_ACTION not in words


def test_the_advice_names_the_annotation_that_the_settings_name() -> None:
    renamed, of_helm = {"opt_in_annotations": ("example.org/beside",)}, annotated(vm(opt_in=False), HELM)
    words = advise(*apart(*SERVED, of_helm, vm_pod(node="node-b", opt_in=None), OTHER, **renamed)).text
    assert 'with example.org/beside: "true" at its source' in words


def test_without_the_node_guard_no_restart_is_advised_that_pins_the_vm_to_the_same_node() -> None:
    words = advise(*apart(*CORDONED, vm(), pinned_vm_pod(), OTHER, node_guard=False)).text
    assert words == (
        f"Pinned to node-a, but node-a is cordoned; a restart would pin it there again. {ADVICE['NodeCordoned']}"
    )


def test_without_steering_the_advice_says_that_a_restart_may_not_help() -> None:
    words = advise(*apart(*SERVED, vm(), vm_pod(node="node-b"), steering=False)).text
    assert words == "After a restart, the share-manager may run on any node, because steering is off."


def test_while_the_webhook_is_not_active_no_restart_is_advised() -> None:
    inactive = "estart places the VM anywhere, because the webhook is not active; to check: kubevirt-scheduler doctor."
    for objects in ([vm(), vm_pod(node="node-b"), OTHER], [vm(**DISK), OTHER]):
        status, move = apart(*SERVED, *objects, action=Action.OBSERVE)
        assert advise(status, move).text == f"A r{inactive}"
        assert commands(status, move) == ()
