"""What a drain does to the VMs on a node and to those whose disks the node serves, what it waits for, and its order."""

from typing import Any

import pytest

from tests.support.builders import (
    Object,
    claim,
    hotplug_pod,
    node,
    node_terms,
    pod,
    pod_anti_affinity,
    pod_term,
    settings,
    share_manager_pod,
    storage,
    volume,
)
from tests.support.fleet import inventory, longhorn_volume, replica, vm, vm_pod
from tests.support.migrations import migratable
from webhook.fleet.drain import Drain, check_drain
from webhook.fleet.relocation.rules import Surroundings
from webhook.fleet.simulation.events import words_of
from webhook.fleet.simulation.state import Site
from webhook.fleet.states import assess

NODES = [node("node-a"), node("node-b"), node("node-c")]
KEEPS = {"current-longhorn-version": "v1.11.3"}
DELETES = {
    "current-longhorn-version": "v1.12.0",
    "auto-delete-pod-when-volume-detached-unexpectedly": "true",
    "blacklist-for-auto-delete-pod-when-volume-detached-unexpectedly": "apps/StatefulSet",
}
DEVICE = {"type": "LiveMigratable", "status": "False", "message": "a GPU"}


def on(host: str, *claims: str, name: str = "vm1", strategy: str = "LiveMigrate", **status: Any) -> list[Object]:
    """Build a VM that runs on a node: its VM, VMI and pod."""
    run = {"runStrategy": status.pop("run", "Always")}
    opted_in = status.pop("opt_in", True)
    own = vm(name, opt_in=opted_in)
    own["spec"] |= run
    pod_fields = {"opt_in": "true" if opted_in else None} | status.pop("pod", {})
    created = vm_pod(name, host, claims=list(claims), **pod_fields)
    return [
        own,
        migratable(name, host, spec={"evictionStrategy": strategy, **status.pop("spec", {})}, **status),
        created,
    ]


def budget(name: str = "keep", allowed: int = 0, **labels: str) -> Object:
    metadata = {"name": name, "namespace": "default"}
    spec = {"selector": {"matchLabels": labels}}
    return {
        "kind": "PodDisruptionBudget",
        "metadata": metadata,
        "spec": spec,
        "status": {"disruptionsAllowed": allowed},
    }


def owned(built: Object, kind: str = "ReplicaSet") -> Object:
    """Give a pod a controller."""
    built["metadata"]["ownerReferences"] = [{"apiVersion": "apps/v1", "kind": kind, "name": "x", "controller": True}]
    return built


def site(*manifests: Object, longhorn: dict[str, str] | None = None, strategy: str = "", **overrides: Any) -> Site:
    found, chosen, kept = inventory(*manifests), settings(**overrides), KEEPS if longhorn is None else longhorn
    statuses = [assess(machine, found.store, chosen) for machine in found.machines(chosen)]
    return Site(
        statuses,
        found.store,
        Surroundings(chosen),
        lambda name: kept.get(name, ""),
        found.store.pods.values(),
        found.budgets.values(),
        found.volume_data(),
        strategy,
        found.pods,
    )


def drain(*manifests: Object, nodes: tuple[str, ...] = ("node-a",), most: int | None = None, **rest: Any) -> Drain:
    return check_drain(site(*manifests, **rest), nodes, most)


BACKUP = {"utilityVolumes": [{"name": "a", "claimName": "b"}]}
NOT_MIGRATABLE: dict[str, Any] = {"conditions": [DEVICE]}
FULL = node("node-b", allocatable={"memory": "1Gi", "pods": "9"})
BIG = {"requests": {"memory": "2Gi"}}
WHERE = "to node-b or 1 more"
SERVED = storage()
LOST_TYPE = {**vm(), "status": {"conditions": [{"type": "RestartRequired", "status": "True"}]},
             "spec": {"runStrategy": "Always", "instancetype": {"name": "gone"}, "template": {}}}  # fmt: skip
REPELS = {"labels": {"app": "db"}, "affinity": pod_anti_affinity(pod_term({"app": "db"}))}

# Objects, settings, and of the VM `vm1`: what happens, why, to which nodes, and where it is then.
VMS: list[tuple[str, list[Object], dict[str, Any], str, str, str, str]] = [
    ("with storage elsewhere", [*NODES, *storage(node="node-b"), *on("node-a", "disk1")], {},
     "Migrates",
     "to node-b or 1 more",
     "node-b node-c", "MayBeApart"),
    ("with storage elsewhere, on a node that can't run it",
     [NODES[0], FULL, NODES[2], *storage(node="node-b"), *on("node-a", "disk1", pod=BIG)], {},
     "Migrates",
     "to node-c",
     "node-c", "Apart"),
    ("with its storage", [*NODES, *SERVED, *on("node-a", "disk1")], {},
     "Migrates, then I/O pauses",
     "to node-b or 1 more; its share-manager follows it if it migrates first",
     "node-b node-c", "MayBeApart"),
    ("with its storage, not opted in", [*NODES, *SERVED, *on("node-a", "disk1", opt_in=False)], {},
     "Migrates, then I/O pauses",
     "to node-b or 1 more; its share-manager may start on any node",
     "node-b node-c", "MayBeApart"),
    ("with its storage, without steering", [*NODES, *SERVED, *on("node-a", "disk1")], {"steering": False},
     "Migrates, then I/O pauses",
     "to node-b or 1 more; its share-manager may start on any node",
     "node-b node-c", "MayBeApart"),
    ("with storage that another VM uses",
     [*NODES, *SERVED, *on("node-a", "disk1"), *on("node-c", "disk1", name="vm2")], {},
     "Migrates, then I/O pauses",
     "to node-b or 1 more; its share-manager may start on any node",
     "node-b node-c", "MayBeApart"),
    ("with its storage, of a Longhorn that deletes pods", [*NODES, *SERVED, *on("node-a", "disk1")],
     {"longhorn": DELETES}, "May migrate, then I/O pauses, then may restart",
     "to node-b or 1 more; its share-manager follows it if it migrates first; Longhorn may delete its pod once",
     "node-b node-c", "MayBeApart"),
    ("elsewhere, on a node that is drained, too", [*NODES, *SERVED, *on("node-b", "disk1")],
     {"nodes": ("node-a", "node-b", "node-b")},
     "Migrates, then I/O pauses",
     "to node-c; its share-manager follows it if it migrates first",
     "node-c", "MayBeApart"),
    ("elsewhere, of a Longhorn of an unknown version", [*NODES, *SERVED, *on("node-b", "disk1")], {"longhorn": {}},
     "I/O pauses, then may restart",
     "its share-manager follows it; Longhorn may delete its pod once the new share-manager runs",
     "", "Together"),
    ("elsewhere, run once, of a Longhorn that deletes pods", [*NODES, *SERVED, *on("node-b", "disk1", run="Once")],
     {"longhorn": DELETES}, "I/O pauses, then may stop until somebody acts",
     "its share-manager follows it; Longhorn may delete its pod once the new share-manager runs",
     "", "Together"),
    ("that can't migrate, of a Longhorn that deletes pods, where others may take its next node",
     [NODES[0], node("node-b", allocatable={"memory": "3Gi", "pods": "9"}), *SERVED,
      *on("node-a", "disk1", pod=BIG, **NOT_MIGRATABLE), *on("node-a", name="vm2", pod=BIG),
      *on("node-a", name="vm3", pod=BIG)], {"longhorn": DELETES},
     "May block until somebody acts, then I/O pauses, then may restart, or may stop until uncordon",
     "KubeVirt cannot migrate it: a GPU (evictionStrategy LiveMigrate); its share-manager may start on any node;",
     "node-b", "MayBeApart"),
    ("elsewhere, hotplugged, of a Longhorn that deletes pods",
     [*NODES, *SERVED, *(plugged := on("node-b")), hotplug_pod(plugged[2], node="node-b")], {"longhorn": DELETES},
     "I/O pauses, then I/O may pause",
     "its share-manager follows it; Longhorn may delete the pod that mounts its hotplugged disk, and KubeVirt creates",
     "", "Together"),
    ("elsewhere, of a Longhorn that keeps its pod by a setting", [*NODES, *SERVED, *on("node-b", "disk1")],
     {"longhorn": DELETES | {"auto-delete-pod-when-volume-detached-unexpectedly": "false"}},
     "I/O pauses",
     "its share-manager follows it",
     "", "Together"),
    ("elsewhere, of a Longhorn that keeps the pods of VMIs", [*NODES, *SERVED, *on("node-b", "disk1")],
     {"longhorn": DELETES | {"blacklist-for-auto-delete-pod-when-volume-detached-unexpectedly":
                             "apps/ReplicaSet;kubevirt.io/VirtualMachineInstance"}},
     "I/O pauses",
     "its share-manager follows it",
     "", "Together"),
    *((f"elsewhere, with {name}", [*NODES, *SERVED, *on("node-b", "disk1")], {"longhorn": KEEPS | {name: value}},
       "I/O pauses, then may restart",
       "its share-manager follows it; Longhorn may delete its pod once the new share-manager runs", "", "Together")
      for name, value in (("storage-network-for-rwx-volume-enabled", "true"),
                          ("endpoint-network-for-rwx-volume", "default/storage"))),
    ("elsewhere, with a share-manager for the drained node alone",
     [*NODES, *SERVED[:2], share_manager_pod(node="node-a", nodeSelector={"kubernetes.io/hostname": "node-a"}),
      *on("node-b", "disk1")], {}, "I/O hangs until uncordon",
     "no other node can run its share-manager",
     "", "Apart"),
    ("elsewhere, with a share-manager that its node can't run",
     [*NODES, *SERVED[:2], *on("node-b", "disk1"),
      share_manager_pod(node="node-a", affinity=node_terms({"matchExpressions": [
          {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["node-b"]}]}))], {},
     "I/O pauses",
     "its share-manager may start on any node",
     "", "Apart"),
    ("without an eviction strategy", [*NODES, *on("node-a", strategy="")], {},
     "Restarts",
     "the drain deletes its pod (evictionStrategy None)",
     "node-b node-c", ""),
    ("without an eviction strategy, but KubeVirt has one", [*NODES, *on("node-a", strategy="")],
     {"strategy": "LiveMigrate"}, "Migrates",
     "to node-b or 1 more",
     "node-b node-c", ""),
    ("without an eviction strategy, with its storage", [*NODES, *SERVED, *on("node-a", "disk1", strategy="None")], {},
     "I/O may pause, then restarts",
     "the drain deletes its pod (evictionStrategy None)",
     "node-b node-c", "MayBeApart"),
    # It starts beside its share-manager, or that has stopped by then and follows it.
    ("without an eviction strategy, with storage elsewhere",
     [*NODES, *storage(node="node-b"), *on("node-a", "disk1", strategy="None")], {},
     "Restarts",
     "the drain deletes its pod (evictionStrategy None)",
     "node-b node-c", "Together"),
    ("without an eviction strategy, run once", [*NODES, *on("node-a", strategy="None", run="Once")], {},
     "Stops until somebody acts",
     "the drain deletes its pod (evictionStrategy None)",
     "", ""),
    ("without an eviction strategy, run once, with its storage",
     [*NODES, *SERVED, *on("node-a", "disk1", strategy="None", run="Once")], {},
     "I/O may pause, then stops until somebody acts",
     "the drain deletes its pod (evictionStrategy None)", "", "Stopped"),
    ("that shuts down cleanly", [*NODES, *on("node-a", strategy="None", run="RerunOnFailure")], {},
     "Stops until somebody acts", "the drain deletes its pod (evictionStrategy None)", "", ""),
    ("with its storage, opted in since its start", [*NODES, *SERVED, *on("node-a", "disk1", pod={"opt_in": None})], {},
     "Migrates, then I/O pauses", f"{WHERE}; its share-manager may start on any node", "node-b node-c", "MayBeApart"),
    ("to restart where another VM may take the place, with a share-manager for the drained node alone",
     [NODES[0], node("node-b", allocatable={"memory": "3Gi", "pods": "9"}), *SERVED[:2],
      share_manager_pod(node="node-a", nodeSelector={"kubernetes.io/hostname": "node-a"}),
      *on("node-a", "disk1", pod=BIG, strategy="None"), *on("node-a", name="vm2", pod=BIG, strategy="None")], {},
     "May restart, or may stop until uncordon, then I/O may hang until uncordon",
     "the drain deletes its pod (evictionStrategy None); no other node can run its share-manager",
     "node-b", "MayBeApart"),
    ("to restart, without a place", [NODES[0], FULL, *on("node-a", strategy="None", pod=BIG)], {},
     "Stops until uncordon",
     "no other node can run it: node-b lacks memory (requested 2048Mi)",
     "", ""),
    ("that another controller moves", [*NODES, *on("node-a", strategy="External")], {},
     "Blocks until somebody acts",
     "another controller has to move it (evictionStrategy External)",
     "", ""),
    ("that can't migrate, with its storage", [*NODES, *SERVED, *on("node-a", "disk1", **NOT_MIGRATABLE)], {},
     "Blocks until somebody acts, then I/O pauses",
     "KubeVirt cannot migrate it: a GPU (evictionStrategy LiveMigrate); its share-manager may start on any node",
     "", "Apart"),
    ("elsewhere, that can't migrate, and not opted in",
     [*NODES, *SERVED, *on("node-b", "disk1", opt_in=False, **NOT_MIGRATABLE)], {},
     "I/O pauses",
     "its share-manager may start on any node",
     "", "MayBeApart"),
    ("elsewhere, during a backup, and not opted in",
     [*NODES, *SERVED, *on("node-b", "disk1", opt_in=False, spec=BACKUP)], {},
     "I/O pauses",
     "its share-manager may start on any node",
     "", "MayBeApart"),
    ("that migrates if possible", [*NODES, *on("node-a", strategy="LiveMigrateIfPossible")], {},
     "Migrates",
     "to node-b or 1 more",
     "node-b node-c", ""),
    ("that migrates if possible, and can't",
     [*NODES, *on("node-a", strategy="LiveMigrateIfPossible", **NOT_MIGRATABLE)], {},
     "Restarts",
     "the drain deletes its pod (evictionStrategy LiveMigrateIfPossible)",
     "node-b node-c", ""),
    ("of a backup", [*NODES, *on("node-a", strategy="LiveMigrateIfPossible", spec=BACKUP)], {},
     "Migrates",
     "after its backup, which KubeVirt 1.8 or newer aborts",
     "node-b node-c", ""),
    ("to migrate, without a place", [NODES[0], FULL, *on("node-a", pod=BIG)], {},
     "Blocks until somebody acts",
     "no other node can run it: node-b lacks memory (requested 2048Mi)",
     "", ""),
    ("to migrate, of the only node", [NODES[0], *on("node-a")], {}, "Blocks until somebody acts",
     "no other node can run it",
     "", ""),
    ("that another VM keeps from the other node",
     [*NODES[:2], *on("node-a", pod=REPELS), *on("node-b", name="vm2", pod=REPELS)], {},
     "Blocks until somebody acts",
     "no other node can run it: node-b conflicts",
     "", ""),
    ("that finds no place after another one",
     [NODES[0], node("node-b", allocatable={"memory": "3Gi", "pods": "9"}), *on("node-a", pod=BIG),
      *on("node-a", name="vm0", pod=BIG)], {},
     "May block until somebody acts, or may migrate",
     "no other node can run it; to node-b",
     "node-b", ""),
    ("that finds no place after one that moves to its storage",
     [NODES[0], node("node-b", allocatable={"memory": "3Gi", "pods": "9"}), *storage("disk2", "node-b"),
      *on("node-a", pod=BIG), *on("node-a", "disk2", name="vm9", pod=BIG)], {},
     "May block until somebody acts, or may migrate",
     "no other node can run it; to node-b",
     "node-b", ""),
    ("that a budget keeps",
     [*NODES, *on("node-a", strategy="None", pod={"labels": {"app": "db"}}), budget(app="db"),
      budget("other", app="web")],
     {}, "Blocks until somebody acts",
     "PodDisruptionBudget keep allows no eviction",
     "", ""),
    ("that a budget lets go",
     [*NODES, *on("node-a", strategy="None", pod={"labels": {"app": "db"}}), budget(allowed=1, app="db"),
      budget("other", app="web")], {}, "Restarts",
     "the drain deletes its pod (evictionStrategy None)",
     "node-b node-c", ""),
    ("that migrates whatever a budget says", [*NODES, *on("node-a", pod={"labels": {"app": "db"}}), budget(app="db")],
     {}, "Migrates",
     "to node-b or 1 more",
     "node-b node-c", ""),
    ("whose next pod is unknown", [*NODES, LOST_TYPE, *on("node-a", strategy="None", **NOT_MIGRATABLE)[1:]], {},
     "Restarts",
     "the drain deletes its pod (evictionStrategy None)",
     "", ""),
    ("whose next pod is unknown, but not the target of its migration", [*NODES, LOST_TYPE, *on("node-a")[1:]], {},
     "Migrates",
     "to node-b or 1 more",
     "node-b node-c", ""),
    ("of which few targets are asked for", [*NODES, *on("node-a")], {"most": 1}, "Migrates",
     "to node-b",
     "node-b", ""),
]  # fmt: skip


@pytest.mark.parametrize("row", VMS, ids=[row[0] for row in VMS])
def test_a_drain_affects_a_vm(row: tuple[str, list[Object], dict[str, Any], str, str, str, str]) -> None:
    _, manifests, options, words, why, targets, place = row
    (found,) = (each for each in drain(*manifests, **options).vms if each.status.machine.name == "vm1")
    assert (words_of(found.events), " ".join(found.targets), found.place) == (words, targets, place)
    assert found.why.startswith(why)
    sure = [part for part in words.lower().split(", ") if "may " not in part]
    assert found.surely_interrupted is any(word in part for word in WORSE for part in sure)
    assert found.interrupted is any(word in words.lower() for word in WORSE)


DATA = [*NODES, *SERVED, longhorn_volume(currentNodeID="node-a")]
WORSE = ("restart", "stop", "block", "hang")
LAST = "its last healthy replica is here: "
FAILED = replica("node-a", failedAt="2026-08-01T12:00:00Z")
ROW = longhorn_volume("vol-lone", currentNodeID="node-a")


@pytest.mark.parametrize(
    ("manifests", "longhorn", "expected", "safe"),
    [
        ([*DATA, replica("node-a"), replica("node-b")], {}, "", True),
        ([*DATA], {}, "", True),
        ([*DATA, replica("node-a")], {}, f"{LAST}Longhorn blocks the drain (block-if-contains-last-replica)", False),
        ([*DATA, replica("node-a"), replica("node-b", failedAt="2026-08-01T12:00:00Z")], {}, LAST, False),
        ([*DATA, replica("node-a"), replica("gone")], {}, LAST, False),
        ([*DATA, FAILED], {}, "only a failed replica is here: Longhorn blocks the drain", False),
        ([*DATA, FAILED], {"node-drain-policy": "block-for-eviction"}, "only a failed replica is here: ", False),
        ([*DATA, FAILED, replica("node-b")], {}, "", True),
        ([*DATA, replica("node-a", healthyAt="")], {}, "", True),
        ([node("node-b", unschedulable=True), *DATA[2:], replica("node-a"), replica("node-b")], {}, LAST, False),
        ([*DATA, replica("node-a")], {"node-drain-policy": "always-allow"}, "", True),
        ([*DATA, replica("node-a")], {"node-drain-policy": "block-for-eviction"}, f"{LAST}Longhorn copies", True),
        *(([*DATA, replica("node-a"), replica("node-b")], {"node-drain-policy": policy}, expected, True)
          for policy, expected in (("block-for-eviction", "a healthy replica is here: Longhorn copies it first"),
                                   ("block-for-eviction-if-contains-last-replica", ""))),
        ([*DATA, replica("node-a")], {"node-drain-policy": "allow-if-replica-is-stopped"}, LAST, False),
        ([*NODES, longhorn_volume(currentNodeID=""), replica("node-a")],
         {"node-drain-policy": "allow-if-replica-is-stopped"}, "", True),
        ([*NODES, ROW], {}, "attached only here, by no pod: detach it", False),
        ([*NODES, *SERVED[:2], longhorn_volume(currentNodeID="node-a"),
          owned(pod("backup", node="node-a", claims=["disk1"]))],
         {}, "attached only here, by pod default/backup", True),
        ([*NODES, owned(pod("web", node="node-a", labels={"app": "web"})), budget(app="web")], {},
         "PodDisruptionBudget keep allows no eviction", False),
        ([*NODES, pod("web", node="node-b", labels={"app": "web"}), budget(app="web")], {}, "", True),
        ([*NODES, owned(pod("web", "lab", node="node-a", labels={"app": "web"})), budget(app="web")], {}, "", True),
        ([*NODES, pod("im", node="node-a", labels={"longhorn.io/component": "instance-manager"}),
          budget(**{"longhorn.io/component": "instance-manager"})], {}, "", True),
    ],
)  # fmt: skip
def test_a_drain_waits_for_pods_and_volumes(
    manifests: list[Object], longhorn: dict[str, str], expected: str, safe: bool
) -> None:
    found = drain(*manifests, longhorn=KEEPS | longhorn)
    assert [each.detail[: len(expected)] for each in found.obstacles] == [expected] * bool(expected)
    if LAST in expected:
        assert [each.name for each in found.obstacles] == ["vol-disk1, claim default/disk1"]
    assert found.is_safe is safe
    assert found.site.longhorn("current-longhorn-version") == "v1.11.3"


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        (on("node-a", strategy="None"), "Restarts, then may restart"),
        (on("node-a"), "Migrates, then may migrate"),
        ([*SERVED, *on("node-c", "disk1", opt_in=False)], "I/O pauses, then I/O may pause"),
        (
            [*SERVED, *on("node-a", "disk1", strategy="None", run="Once")],
            "I/O may pause, then stops until somebody acts",
        ),
    ],
)
def test_a_rolling_drain_may_meet_what_the_drain_before_has_moved(objects: list[Object], expected: str) -> None:
    (found,) = check_drain(site(*NODES, *objects), ("node-a", "node-b"), rolling=True).vms
    assert words_of(found.events) == expected


def test_a_vm_that_may_have_stopped_may_be_affected_by_the_next_drain() -> None:
    fixed = on(
        "node-b", "disk1", run="RerunOnFailure", strategy="LiveMigrateIfPossible", opt_in=False, **NOT_MIGRATABLE
    )
    found = check_drain(site(*NODES[:2], *SERVED, *fixed, longhorn=DELETES), ("node-a", "node-b"), rolling=True)
    assert words_of(found.vms[0].events) == (
        "I/O pauses, then may stop until somebody acts, then I/O may pause, then may stop until somebody acts"
    )


def test_a_vm_that_waited_for_a_node_starts_cold_so_its_share_manager_follows_it() -> None:
    last = node("node-b", allocatable={"memory": "3Gi", "pods": "9"})
    vms = [*on("node-a", "disk1", pod=BIG), *on("node-b", name="vm2", pod=BIG)]
    (found,) = drain(NODES[0], last, *SERVED, *vms, longhorn=DELETES).vms
    words = "May block until somebody acts, then I/O pauses, then may stop until uncordon"
    assert (words_of(found.events), found.place) == (words, "MayBeApart")


def test_a_vm_that_longhorn_may_restart_is_pinned_to_any_node_that_may_serve_it() -> None:
    objects = [*SERVED, *on("node-b", "disk1", strategy="None", **NOT_MIGRATABLE)]
    objects[-1]["metadata"]["annotations"].pop("kubevirt-scheduler/co-schedule")
    (found,) = check_drain(site(*NODES, *objects, longhorn=DELETES), ("node-a", "node-b"), rolling=True).vms
    assert words_of(found.events) == "I/O pauses, then may restart, then I/O may pause, then may restart"


def test_one_disk_may_hang_while_another_one_pauses() -> None:
    only_here = share_manager_pod("vol-disk2", node="node-a", nodeSelector={"kubernetes.io/hostname": "node-a"})
    disks = [*SERVED, claim("disk2"), volume("disk2"), only_here]
    (found,) = drain(*NODES, *disks, *on("node-a", "disk2", "disk1", strategy="External")).vms
    words = "Blocks until somebody acts, then I/O hangs until uncordon, then I/O pauses"
    assert words_of(found.events) == words
