"""The advice that no start may be made worse by: a claim that CDI makes, a refused share-manager, a refusing node."""

from typing import Any

import pytest

from tests.support.builders import (
    OPT_IN,
    Object,
    claim,
    node,
    settings,
    share_manager_pod,
    storage,
    storage_class,
)
from tests.support.fleet import apart, inventory, status, vm, vm_pod
from tests.support.migrations import migratable
from webhook.fleet.machine import Future, State, Status
from webhook.fleet.relocation.rules import Move, Surroundings, restart_helps
from webhook.fleet.simulation.plan import make_plan, plan_move
from webhook.fleet.states import assess
from webhook.fleet.wording import advise, commands, if_started, next_step
from webhook.placement.settings import read_settings

NODES = [node("node-a"), node("node-b")]
MESSAGE = "0/2 nodes are available: 1 node(s) were unschedulable."
REFUSED: Object = {
    "status": {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": MESSAGE}],
    }
}
AVOIDS: Object = {
    "nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 100,
                "preference": {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["node-a"]}]},
            }
        ]
    }
}


def said(found: Status, *manifests: Object) -> str:
    return advise(found, plan_move(found, Surroundings(settings()), inventory(*manifests).store)).text


def test_a_running_vm_whose_share_manager_the_scheduler_refuses_has_no_disk() -> None:
    running = [vm(), migratable("vm1", "node-b"), vm_pod("vm1", "node-b")]
    cluster = [*NODES, *storage()[:2], share_manager_pod() | REFUSED, *running]
    found = status(*cluster)
    assert found.state is State.UNSERVED
    assert found.outage
    assert said(found, *cluster) == (
        f"Its I/O hangs: the scheduler finds no node for its share-manager: {MESSAGE} "
        "Let a node run it: kubectl describe pod share-manager-vol-disk1 -n longhorn-system."
    )
    starting = [*cluster[:4], share_manager_pod(), *cluster[5:]]
    assert status(*starting).outage is None
    assert "find out why" in said(status(*starting), *starting)
    waiting = status(*cluster[:-1], vm_pod("vm1", ""))
    assert waiting.outage is None


def test_a_vm_is_not_sent_back_to_a_node_that_refused_it_twice() -> None:
    refused = vm_pod("vm1", "node-b", decided="StartFailed", affinity=AVOIDS)
    cluster = [*NODES, *storage(), vm(), migratable("vm1", "node-b"), refused]
    found, move = apart(*cluster)
    assert not isinstance(move, Move)
    assert (move.word, move.detail) == ("StartFailed", "node-a failed to start the VM twice in a row before")
    assert not restart_helps(found, move)
    assert found.start
    assert (found.start.helps, if_started(found.start)) == (False, "may fail on node-a, as before")
    assert commands(found, move) == ()
    assert advise(found, move).text == (
        "A restart may end on node-a again, which failed to start the VM twice in a row before. "
        "Check the Events of the VM's earlier pods. Once the VM has run, it is pinned again."
    )
    (proposal,) = make_plan([found], inventory(*cluster).store, Surroundings(settings()))
    assert proposal.action == "none"
    elsewhere, _ = apart(*NODES, node("node-c"), *storage(node="node-c"), vm(), migratable("vm1", "node-b"), refused)
    assert elsewhere.start
    assert elsewhere.start.helps


DISK = {"name": "root", "dataVolume": {"name": "vm1-root"}}
LONGHORN = storage_class("longhorn", provisioner="driver.longhorn.io", volumeBindingMode="Immediate")


@pytest.mark.parametrize(
    ("volumes", "claims", "expected", "future"),
    [
        ([DISK], [], "Claim vm1-root does not exist yet: kubectl describe datavolume vm1-root -n default.", None),
        ([{"name": "a", "persistentVolumeClaim": {"claimName": "gone"}}], [],
         "The VM cannot start, because claim gone does not exist. Correct the claim's name in the VM", None),
        ([DISK], [claim("vm1-root", volume="", storageClassName="longhorn")],
         "No action needed. The VM starts on any node, and the share-manager of claim vm1-root, which starts with",
         Future.FOLLOWS),
        ([DISK], [claim("vm1-root", volume="", storageClassName="other")],
         "Check why the claim is not bound: kubectl describe pvc.", Future.ANYWHERE),
    ],
)  # fmt: skip
def test_no_advice_creates_a_claim(
    volumes: list[Any], claims: list[Object], expected: str, future: Future | None
) -> None:
    found = status(*NODES, LONGHORN, *claims, vm(volumes=volumes))
    words = said(found, *NODES)
    assert words.startswith(expected)
    assert next_step(found, plan_move(found, Surroundings(settings()), inventory().store)) in {words, ""}
    assert found.start
    assert future in {None, found.start.future}


BY_NAME = '{"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["default"]}]}'
BY_LABEL = '{"matchLabels": {"team": "db"}}'


@pytest.mark.parametrize(
    ("selector", "setting"),
    [(BY_NAME, "webhook.excludedNamespaces"), (BY_LABEL, "webhook.namespaceSelector")],
)
def test_a_namespace_that_is_excluded_is_named_with_its_setting(selector: str, setting: str) -> None:
    labels = {"kubernetes.io/metadata.name": "default"}
    built = {"kind": "Namespace", "metadata": {"name": "default", "labels": labels}}
    cluster = [*NODES, *storage(), built, vm(), migratable("vm1", "node-b"), vm_pod("vm1", "node-b")]
    found = inventory(*cluster)
    chosen = read_settings({"CO_SCHEDULE_NAMESPACE_SELECTOR": selector})
    (machine,) = found.machines(chosen)
    excluded = assess(machine, found.store, chosen)
    assert (excluded.excluded_by, excluded.opted_out) == (setting, True)
    move = plan_move(excluded, Surroundings(chosen), found.store)
    assert advise(excluded, move).text == f"{setting} excludes the VM's namespace, so it stays where it is."
    mounting = vm()
    disk = {"name": "disk", "persistentVolumeClaim": {"claimName": "disk1"}}
    mounting["spec"]["template"]["spec"] = {"volumes": [disk]}
    stopped = inventory(*NODES, *storage(), built, mounting)
    (machine,) = stopped.machines(chosen)
    assert (
        f"No action needed. {setting} excludes the VM's namespace."
        == advise(assess(machine, stopped.store, chosen), move).text
    )
    assert OPT_IN in vm()["spec"]["template"]["metadata"]["annotations"]


def test_a_vm_that_somebody_is_stopping_is_started_again_beside_its_storage() -> None:
    stopping = vm()
    stopping["spec"]["runStrategy"] = "Halted"
    (command,) = commands(*apart(*NODES, *storage(), stopping, vm_pod("vm1", "node-b")))
    assert (command.line, command.verb) == ("virtctl start vm1 -n default", "start")
