"""The printed order of a drain: what each of its steps does, and that no VM is left behind."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.fleet.test_drain import (
    BACKUP,
    BIG,
    DELETES,
    FULL,
    KEEPS,
    NODES,
    NOT_MIGRATABLE,
    SERVED,
    WHERE,
    budget,
    drain,
    on,
    owned,
    site,
)
from tests.support.builders import Object, hotplug_pod, node, pod, share_manager_pod, storage
from webhook.fleet.drain import Drain, check_drain, commands, order_drain
from webhook.fleet.simulation.events import Effect, words_of

CORDON, UNCORDON = "kubectl cordon node-a", "kubectl uncordon node-a"
ONCE = """--type merge -p '{"spec":{"runStrategy":"Once"}}'"""
DRAIN = "kubectl drain node-a --ignore-daemonsets --delete-emptydir-data"
ONLY_HERE = {"nodeSelector": {"kubernetes.io/hostname": "node-a"}}
LIMITED = [*SERVED[:2], share_manager_pod(node="node-a", **ONLY_HERE)]


def ordered(*manifests: Object, nodes: tuple[str, ...] = ("node-a",), rolling: bool = False, **rest: Any) -> Drain:
    return order_drain(site(*manifests, **rest), nodes, rolling=rolling)


def without_vm(objects: list[Object]) -> list[Object]:
    """Return a VMI without a VM, from the objects of a VM."""
    _, vmi, created = objects
    vmi["metadata"].pop("ownerReferences", None)
    return [vmi, created]


def replacing_volumes(objects: list[Object]) -> list[Object]:
    """Let KubeVirt replace the volumes of the VM, which a restart would break."""
    objects[0]["status"] = {"conditions": [{"type": "VolumesChange", "status": "True"}]}
    return objects


def with_unknown_vm(objects: list[Object]) -> list[Object]:
    """Return a VMI whose VM is unknown, and its pod, from the objects of a VM."""
    _, vmi, created = objects
    return [owned(vmi, "VirtualMachine"), created]


def lines(found: Drain) -> list[str]:
    return [command for command, _ in commands(found)]


def what_happens(found: Drain, name: str = "vm1") -> tuple[str, str]:
    (vm,) = (each for each in found.vms if each.status.machine.name == name)
    return words_of(vm.events), vm.place


def test_the_order_migrates_first_and_ends_with_the_vms_that_may_be_apart() -> None:
    hostile = on("node-a", name="x;reboot")
    found = ordered(
        *NODES, *SERVED, *storage("disk2", "node-b"), *hostile, *on("node-a", "disk2"),
        *on("node-a", "disk2", name="vm2"), *on("node-a", name="vm3"), *on("node-a", name="vm4", **NOT_MIGRATABLE),
        *on("node-c", "disk1", name="vm5", opt_in=False), *on("node-a", name="vm6", spec=BACKUP),
        nodes=("node-a", "bad;name"),
    )  # fmt: skip
    assert list(commands(found)) == [
        ("kubevirt-scheduler recolocate vm1 vm2 -n default --yes", "to their storage"),
        (CORDON, ""),
        ("virtctl migrate vm3 -n default", WHERE),
        ("virtctl restart vm4 -n default", "it cannot migrate"),
        (DRAIN, "when the VMs have migrated"),
        (UNCORDON, "after the maintenance"),
        ("kubevirt-scheduler recolocate vm5 -n default --yes", "once they run, those that are apart"),
    ]


def test_a_drain_that_concerns_nothing_is_safe() -> None:
    found = ordered(*NODES, *on("node-b"))
    assert (found.vms, found.pods, found.obstacles, found.is_safe) == ((), (), (), True)
    assert lines(found) == [CORDON, DRAIN, UNCORDON]


# Objects, settings, the commands besides cordon, drain and uncordon, and what then happens to the VM.
ORDERS: list[tuple[str, list[Object], dict[str, Any], list[str], str, str]] = [
    ("with a share-manager that may only run here", [*NODES, *LIMITED, *on("node-a", "disk1", strategy="None")], {},
     ["virtctl stop vm1 -n default", "virtctl start vm1 -n default",
      "kubevirt-scheduler recolocate vm1 -n default --yes"],
     "Stops until it is started, then may migrate", "Together"),
    ("elsewhere, with a share-manager that may only run here", [*NODES, *LIMITED, *on("node-b", "disk1")], {},
     ["virtctl stop vm1 -n default", "virtctl start vm1 -n default",
      "kubevirt-scheduler recolocate vm1 -n default --yes"],
     "Stops until it is started, then may migrate", "Together"),
    ("without an eviction strategy", [*NODES, *SERVED, *on("node-a", "disk1", strategy="None")], {},
     ["virtctl migrate vm1 -n default"], "Migrates, then I/O pauses", "Together"),
    ("that only its template opts in", [*NODES, *SERVED, *on("node-a", "disk1", pod={"opt_in": None})], {},
     ["virtctl migrate vm1 -n default", "kubevirt-scheduler recolocate vm1 -n default --yes"],
     "Migrates, then I/O pauses, then may migrate", "Together"),
    ("that blocks without a place", [NODES[0], FULL, *on("node-a", pod=BIG)], {},
     ["virtctl stop vm1 -n default", "virtctl start vm1 -n default"], "Stops until it is started", ""),
    ("that another controller moves and that can't migrate",
     [*NODES, *on("node-a", strategy="External", **NOT_MIGRATABLE)], {}, ["virtctl restart vm1 -n default"],
     "Restarts", ""),
    ("that is restarted and would part from its share-manager",
     [*NODES, *SERVED, *on("node-a", "disk1", strategy="None", **NOT_MIGRATABLE)], {},
     ["virtctl restart vm1 -n default"], "Restarts, then I/O may pause", "Together"),
    ("that is restarted and not opted in",
     [*NODES, *SERVED, *on("node-a", "disk1", strategy="None", opt_in=False, **NOT_MIGRATABLE)], {}, [],
     "I/O may pause, then restarts", "MayBeApart"),
    ("whose volumes KubeVirt replaces",
     [*NODES, *SERVED, *replacing_volumes(on("node-a", "disk1", strategy="None", **NOT_MIGRATABLE))], {}, [],
     "I/O may pause, then restarts", "MayBeApart"),
    ("that would be restarted twice", [*NODES, *SERVED, *on("node-a", "disk1", strategy="None", **NOT_MIGRATABLE)],
     {"longhorn": DELETES}, [], "I/O may pause, then restarts", "MayBeApart"),
    ("that shuts down cleanly",
     [*NODES, *on("node-a", strategy="None", run="RerunOnFailure", **NOT_MIGRATABLE)], {},
     ["virtctl start vm1 -n default"], "Stops until it is started", ""),
    ("that migrates, and whose pod Longhorn may delete",
     [*NODES, *SERVED, *on("node-a", "disk1", run="RerunOnFailure")], {"longhorn": DELETES},
     ["virtctl migrate vm1 -n default", "virtctl start vm1 -n default"],
     "Migrates, then I/O pauses, then may stop until it is started", "Together"),
    ("run once, that can't migrate", [*NODES, *on("node-a", strategy="None", run="Once", **NOT_MIGRATABLE)], {},
     ["kubectl delete vmi vm1 -n default"], "Stops until it is started", ""),
    ("run once, that blocks without a place", [NODES[0], FULL, *on("node-a", run="Once", pod=BIG)], {},
     ["virtctl stop vm1 -n default", f"kubectl patch vm vm1 -n default {ONCE}"], "Stops until it is started", ""),
    ("that somebody has stopped", [*NODES, *on("node-a", strategy="External", run="Halted")], {}, [],
     "Stops until somebody acts", ""),
    ("without a VM, that blocks", [*NODES, *without_vm(on("node-a", **NOT_MIGRATABLE))], {},
     ["kubectl delete vmi vm1 -n default"], "Stops until somebody acts", ""),
]  # fmt: skip


@pytest.mark.parametrize("row", ORDERS, ids=[row[0] for row in ORDERS])
def test_the_order_has_a_step_for_a_vm(row: tuple[str, list[Object], dict[str, Any], list[str], str, str]) -> None:
    _, manifests, options, expected, words, place = row
    found = ordered(*manifests, **options)
    assert [line for line in lines(found) if line not in (CORDON, DRAIN, UNCORDON)] == expected
    assert what_happens(found) == (words, place)
    assert not any("block" in words_of(vm.events).lower() for vm in found.vms)


def test_a_vmi_without_a_vm_has_to_be_created_again() -> None:
    found = ordered(*NODES, *without_vm(on("node-a", **NOT_MIGRATABLE)))
    (comment,) = (comment for command, comment in commands(found) if command.startswith("kubectl delete"))
    assert comment.endswith("create it again from its manifest afterwards")


def test_a_stopped_share_manager_leaves_its_vms_without_a_disk_until_uncordon() -> None:
    found = drain(*NODES, *LIMITED, *on("node-a", "disk1", strategy="None"))
    assert what_happens(found) == ("Restarts, then I/O hangs until uncordon", "Apart")
    assert [vm.why for vm in found.vms] == [
        "the drain deletes its pod (evictionStrategy None); no other node can run its share-manager"
    ]
    assert not found.is_safe


def test_a_budget_for_two_pods_on_the_only_node_lets_one_of_them_go() -> None:
    labels = {"labels": {"app": "db"}}
    vms = [*on("node-a", strategy="None", pod=labels), *on("node-a", strategy="None", name="vm2", pod=labels)]
    others = on("node-a", strategy="None", name="vm3")
    found = drain(NODES[0], *vms, *others, budget(allowed=1, app="db"))
    assert what_happens(found, "vm3")[0] == "Stops until uncordon"
    words = "May block until somebody acts, or may stop until uncordon"
    assert {what_happens(found, name)[0] for name in ("vm1", "vm2")} == {words}
    first = [*storage(), *on("node-a", "disk1", strategy="None", pod=labels)]
    second = [*storage("disk2"), *on("node-a", "disk2", strategy="None", name="vm2", pod=labels)]
    found = drain(NODES[0], *first, *second, budget(allowed=1, app="db"))
    # Whichever stays has no disk.
    words = "May block until somebody acts, or may stop until uncordon, then I/O may hang until uncordon"
    assert {what_happens(found, name)[0] for name in ("vm1", "vm2")} == {words}
    pods = [owned(pod(name, node="node-a", labels={"app": "db"})) for name in ("a", "b")]
    assert [each.name for each in drain(NODES[0], *pods, budget(allowed=1, app="db")).obstacles] == ["default/b"]
    assert drain(*NODES, *pods, budget(allowed=1, app="db")).is_safe


def test_a_budget_is_contested_only_by_more_pods_than_it_allows_to_evict() -> None:
    labels = {"labels": {"app": "db"}}
    vm = on("node-a", strategy="None", pod=labels)
    limit = budget(allowed=1, app="db")
    assert what_happens(drain(NODES[0], *vm, limit))[0] == "Stops until uncordon"
    for strategy in ("External", "LiveMigrate"):  # no drain deletes these
        other = on("node-a", strategy=strategy, name="vm2", pod=labels)
        found = drain(NODES[0], *vm, *other, limit)
        words = [what_happens(found, name)[0] for name in ("vm1", "vm2")]
        assert words == ["Stops until uncordon", "Blocks until somebody acts"]
    bare = owned(pod("a", node="node-a", labels={"app": "db"}))
    found = drain(NODES[0], *vm, bare, limit)
    assert what_happens(found)[0] == "May block until somebody acts, or may stop until uncordon"
    found = drain(NODES[0], *vm, bare, budget(allowed=2, app="db"))
    assert (what_happens(found)[0], found.obstacles) == ("Stops until uncordon", ())


def test_a_budget_without_a_status_allows_no_eviction() -> None:
    vm = on("node-a", strategy="None", pod={"labels": {"app": "db"}})
    unseen = {key: value for key, value in budget(allowed=1, app="db").items() if key != "status"}
    (found,) = drain(*NODES, *vm, unseen).vms
    assert (words_of(found.events), found.why) == (
        "Blocks until somebody acts",
        "PodDisruptionBudget keep allows no eviction",
    )


def test_a_pod_that_no_other_node_can_run_uses_up_its_budget() -> None:
    large = [owned(pod(name, node="node-a", labels={"app": "db"}, requests={"memory": "9Ti"})) for name in ("a", "b")]
    limit = budget(allowed=1, app="db")
    nodes = [node(name, allocatable={"memory": "1Ti", "pods": "10"}) for name in ("node-a", "node-b")]
    assert [each.name for each in drain(*nodes, *large, limit).obstacles] == ["default/b"]
    assert check_drain(
        replace(site(*nodes, *large, limit), manifests={}), ["node-a"], None
    ).is_safe  # may fit elsewhere
    small = [owned(pod(name, node="node-a", labels={"app": "db"})) for name in ("a", "b")]
    assert drain(*nodes, *small, limit).is_safe


def test_two_budgets_for_one_pod_keep_it_for_ever() -> None:
    bare = owned(pod("a", node="node-a", labels={"app": "db"}))
    (found,) = drain(*NODES, bare, budget(allowed=1, app="db"), budget("more", allowed=1, app="db")).obstacles
    assert found.detail == "PodDisruptionBudgets keep and more both select its pod, which Kubernetes never evicts"


def test_kubectl_refuses_a_pod_without_a_controller_and_ignores_those_of_daemon_sets() -> None:
    (found,) = drain(*NODES, pod("a", node="node-a"), owned(pod("b", node="node-a"), "DaemonSet")).obstacles
    assert (found.name, found.detail) == (
        "default/a",
        "it has no controller, so kubectl drain evicts nothing: delete it, or add --force",
    )


def test_longhorn_may_delete_an_ordinary_pod_whatever_its_budget_says() -> None:
    web = owned(pod("web", node="node-b", claims=["disk1"], labels={"app": "web"}))
    words = {}
    for name, longhorn in (("keeps", KEEPS), ("deletes", DELETES)):
        (found,) = drain(*NODES, *SERVED, web, *on("node-a", "disk1"), budget(app="web"), longhorn=longhorn).pods
        words[name] = words_of(found.events)
    assert words == {"keeps": "I/O pauses", "deletes": "I/O pauses, then may restart"}
    (hangs,) = drain(*NODES, *LIMITED, web, *on("node-a", "disk1"), longhorn=DELETES).pods
    assert words_of(hangs.events) == "I/O hangs until uncordon, then may restart"


def test_several_nodes_one_after_the_other_are_each_brought_back_first() -> None:
    vms = [*on("node-a", "disk1"), *on("node-b", name="vm2")]
    found = ordered(*NODES[:2], *SERVED, *vms, nodes=("node-a", "node-b"), rolling=True)
    assert list(commands(found)) == [
        ("kubectl cordon node-a", ""),
        ("virtctl migrate vm1 -n default", "to node-b"),
        (DRAIN, "when the VMs have migrated"),
        ("kubectl uncordon node-a", "after the maintenance"),
        ("kubectl cordon node-b", ""),
        ("virtctl migrate vm1 -n default", "to node-a"),
        ("virtctl migrate vm2 -n default", "to node-a"),
        (DRAIN.replace("node-a", "node-b"), "when the VMs have migrated"),
        ("kubectl uncordon node-b", "after the maintenance"),
    ]
    assert what_happens(found) == ("Migrates, then I/O pauses, then migrates, then I/O pauses", "Together")
    assert found.is_safe
    at_once = ordered(*NODES[:2], *SERVED, *vms, nodes=("node-a", "node-b"))
    assert what_happens(at_once)[0] == "Stops until it is started"


def test_a_vm_that_may_be_on_a_node_by_then_is_named_with_a_condition() -> None:
    found = ordered(*NODES, *on("node-a"), nodes=("node-a", "node-b"), rolling=True)
    comments = [comment for command, comment in commands(found) if command.startswith("virtctl")]
    assert comments == [WHERE, "if it runs on node-b: to node-a or 1 more"]


def test_two_vms_that_race_for_the_last_place_may_both_stay() -> None:
    last = node("node-b", allocatable={"memory": "3Gi", "pods": "9"})
    vms = [*on("node-a", pod=BIG), *on("node-a", name="vm2", pod=BIG)]
    found = drain(NODES[0], last, *vms)
    words = "May block until somebody acts, or may migrate"
    assert [what_happens(found, name)[0] for name in ("vm1", "vm2")] == [words, words]
    none = [*on("node-a", strategy="None", pod=BIG), *on("node-a", strategy="None", name="vm2", pod=BIG)]
    found = drain(NODES[0], last, *none)
    assert what_happens(found)[0] == "May restart, or may stop until uncordon"
    # In the order, the first one takes it.
    assert [line.split()[1] for line in lines(ordered(NODES[0], last, *vms)) if "virtctl" in line] == [
        "migrate", "stop", "start",
    ]  # fmt: skip


def test_a_vm_whose_pod_is_deleted_waits_for_a_node_that_can_run_it() -> None:
    full = node("node-c", allocatable={"memory": "1Gi", "pods": "9"})
    nodes = [NODES[0], node("node-b", unschedulable=True), full]
    found = drain(*nodes, *SERVED, *on("node-b", "disk1", pod=BIG), longhorn=DELETES)
    assert what_happens(found) == ("I/O pauses, then may stop until uncordon", "MayBeApart")


@pytest.mark.parametrize(("run", "starts"), [("Always", []), ("RerunOnFailure", ["virtctl start vm1 -n default"])])
def test_no_command_starts_a_vm_that_kubevirt_starts_itself(run: str, starts: list[str]) -> None:
    small = {"memory": "1Gi", "pods": "9"}
    nodes = [node("node-a", allocatable=small), node("node-b", unschedulable=True), node("node-c", allocatable=small)]
    vms = on("node-b", "disk1", pod=BIG, run=run, **NOT_MIGRATABLE)
    found = ordered(*nodes, *SERVED, *vms, longhorn=DELETES)
    assert what_happens(found)[0] == "I/O pauses, then may stop until somebody acts"
    assert [line for line in lines(found) if " vm1 " in line] == starts


def test_a_vm_that_migrated_would_only_lose_its_disk_is_stopped_instead() -> None:
    vms = on("node-a", "disk1", strategy="None", run="RerunOnFailure")
    found = ordered(*NODES, *LIMITED, *vms)
    assert [line.split()[1] for line in lines(found) if "virtctl" in line] == ["stop", "start"]
    assert what_happens(found)[0] == "Stops until it is started, then may migrate"


def test_few_targets_leave_open_where_a_share_manager_starts() -> None:
    found = drain(*NODES, *SERVED, *on("node-b", "disk1", opt_in=False), most=1)
    assert what_happens(found) == ("I/O pauses", "MayBeApart")


@pytest.mark.parametrize("most", [1, None])
def test_few_targets_contain_the_node_that_a_vm_is_pinned_to(most: int | None) -> None:
    vms = on("node-a", "disk1", strategy="None", **NOT_MIGRATABLE)
    found = drain(*NODES, *storage(node="node-c"), *vms, most=most)
    assert what_happens(found) == ("Restarts", "Together")
    assert "node-c" in found.vms[0].targets


@pytest.mark.parametrize(
    ("objects", "steps", "expected"),
    [
        (on("node-a"), ["virtctl migrate vm1 -n default"] * 2, "Migrates, then may migrate"),
        (on("node-a", **NOT_MIGRATABLE), ["virtctl restart vm1 -n default"] * 2, "Restarts, then may restart"),
        (with_unknown_vm(on("node-a", strategy="External", **NOT_MIGRATABLE)),
         ["virtctl stop vm1 -n default", "virtctl start vm1 -n default",
          "virtctl stop vm1 -n default", "virtctl start vm1 -n default"],
         "Stops until it is started, then may stop until it is started"),
    ],
)  # fmt: skip
def test_a_step_for_a_vm_that_may_be_elsewhere_has_a_condition(
    objects: list[Object], steps: list[str], expected: str
) -> None:
    found = ordered(*NODES, *objects, nodes=("node-a", "node-b"), rolling=True)
    named = [(command, why) for command, why in commands(found) if command.startswith("virtctl")]
    assert [command for command, _ in named] == steps
    conditions = [why for _, why in named if why.startswith("if it ")]
    assert [why.partition(":")[0] for why in conditions[:1]] == ["if it runs on node-b"]
    assert what_happens(found)[0] == expected


def test_the_next_node_is_cordoned_once_the_vms_run() -> None:
    fixed = on("node-a", strategy="None", run="Once", **NOT_MIGRATABLE)
    found = ordered(*NODES, *fixed, nodes=("node-a", "node-b"), rolling=True)
    cordons = [(command, why) for command, why in commands(found) if command.startswith("kubectl cordon")]
    assert cordons == [("kubectl cordon node-a", ""), ("kubectl cordon node-b", "once the VMs run")]


def test_a_vm_that_is_started_again_may_be_on_any_node_with_its_share_manager() -> None:
    vms = on("node-a", "disk1", run="Once", pod={"opt_in": None})
    found = ordered(*NODES[:2], *SERVED, *vms, longhorn=DELETES, nodes=("node-a", "node-b"), rolling=True)
    cycle = "I/O pauses, then may stop until it is started"
    assert what_happens(found) == (
        f"Migrates, then {cycle}, then may migrate, then {cycle.replace('pauses', 'may pause')}, then may migrate",
        "Together",
    )
    steps = [(command, why) for command, why in commands(found) if " vm1 " in command]
    assert steps == [
        ("virtctl migrate vm1 -n default", "to node-b"),
        ("kubectl delete vmi vm1 -n default", "if it is stopped"),
        ("virtctl migrate vm1 -n default", "if it runs on node-b: to node-a"),
        ("kubectl delete vmi vm1 -n default", "if it is stopped"),
        ("kubevirt-scheduler recolocate vm1 -n default --yes", "once they run, those that are apart"),
    ]


def test_a_share_manager_whose_only_user_may_have_stopped_may_follow_the_vm_that_starts() -> None:
    last = node("node-b", allocatable={"memory": "3Gi", "pods": "9"})
    user = on("node-b", "disk1", name="vm2", run="RerunOnFailure", opt_in=False, pod=BIG)
    found = ordered(NODES[0], last, *SERVED, *on("node-a", "disk1", pod=BIG), *user, longhorn=DELETES)
    assert what_happens(found) == ("Stops until it is started, then may migrate", "MayBeApart")


def test_a_vm_that_the_order_stops_uses_up_the_budget_of_another_one() -> None:
    db = {"labels": {"app": "db"}}
    drained = on("node-a", strategy="LiveMigrateIfPossible", pod=db, **NOT_MIGRATABLE)
    served = on("node-c", "disk1", name="vm2", run="RerunOnFailure", pod=db, **NOT_MIGRATABLE)
    found = ordered(*NODES, *LIMITED, *drained, *served, budget(allowed=1, app="db"))
    assert lines(found)[1:3] == ["virtctl stop vm2 -n default", "virtctl restart vm1 -n default"]


def test_the_share_manager_of_a_second_disk_may_move_while_its_vm_is_started_again() -> None:
    vms = on("node-a", "disk1")
    plugged = [*storage("disk2", "node-b"), hotplug_pod(vms[2], claims=["disk2"])]
    settings = {"longhorn": DELETES, "nodes": ("node-a", "node-b"), "rolling": True}
    found = ordered(*NODES, *SERVED, *vms, *plugged, **settings)
    pauses = [event.may for event in found.vms[0].events if event.effect is Effect.IO_PAUSES]
    assert pauses == [False, True, True]


def test_a_share_manager_that_follows_no_vm_may_move_while_its_vm_is_started_again() -> None:
    vms = on("node-a", "disk1", strategy="External", opt_in=False, **NOT_MIGRATABLE)
    found = ordered(*NODES, *storage(node="node-b"), *vms, nodes=("node-a", "node-c"), rolling=True)
    assert words_of(found.vms[0].events) == "Restarts, then may restart, then I/O may pause"


def test_the_share_manager_of_vms_that_are_evicted_at_once_may_follow_one_of_them() -> None:
    vms = [
        *on("node-a", "disk1", strategy="None", **NOT_MIGRATABLE),
        *on("node-a", "disk1", name="vm2", strategy="None", **NOT_MIGRATABLE),
    ]
    found = drain(*NODES, *storage(node="node-b"), *vms)
    assert [each.place for each in found.vms] == ["MayBeApart"] * 2
    assert {each.targets for each in found.vms} == {("node-b", "node-c")}
