"""Live migration moves a VM to its storage only if every rule permits it."""

import pytest
from msgspec.structs import replace

from tests.support.builders import (
    OPT_IN,
    Object,
    hotplug_pod,
    node,
    pod_anti_affinity,
    pod_term,
    settings,
    storage,
)
from tests.support.fleet import apart, inventory, vm, vm_pod, without_manifests
from tests.support.migrations import migratable
from webhook.catalog.inventory import Inventory
from webhook.fleet.machine import Status
from webhook.fleet.relocation.rules import NO_EVICTION, Move, Refusal, Surroundings
from webhook.fleet.simulation.plan import make_plan, plan_move
from webhook.fleet.simulation.recolocation import describe_gain
from webhook.fleet.states import assess

ZONE, HOSTNAME = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
NODES = [node("node-a"), node("node-b")]
SERVED = storage()  # disk1 is served by node-a


def result(*manifests: Object) -> Move | Refusal:
    return apart(*manifests)[1]


def gains(found: Inventory) -> set[int]:
    """Return the gain of the VM `vm1`: of its move, or of a restart if it can't migrate."""
    return {each.gain for each in make_plan([status_of(found)], found.store, Surroundings(settings()))}


def status_of(found: Inventory) -> Status:
    (machine,) = [each for each in found.machines(settings()) if each.name == "vm1"]
    return assess(machine, found.store, settings())


def test_a_vm_that_is_apart_moves_to_the_hostname_label_of_its_storage_node() -> None:
    nodes = [node("node-a", labels={HOSTNAME: "a.example"}), node("node-b")]
    repels_web = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}
    own = vm_pod(node="node-b", affinity=pod_anti_affinity(pod_term(None, labelSelector=repels_web)))
    found = result(*SERVED, *nodes, vm(), migratable(), own, vm_pod("other", claims=[]))
    assert isinstance(found, Move)
    assert replace(found, pod=None) == Move("default", "vm1", "node-b", "node-a", "a.example", ready=True)


def test_a_migration_ignores_changes_that_only_a_restart_applies() -> None:
    """A VM that requires a restart stayed apart, because its next pod would not fit the node of its storage."""
    changed = vm(nodeSelector={"disk": "ssd"}, domain={"memory": {"guest": "1Ti"}})
    changed["status"] = {"conditions": [{"type": "RestartRequired", "status": "True"}]}
    found = result(*SERVED, *NODES, changed, vm_pod(node="node-b"), migratable())
    assert isinstance(found, Move)
    assert found.target == "node-a"


def terminating(item: Object) -> Object:
    return item | {"metadata": item["metadata"] | {"deletionTimestamp": "2026-08-01T12:00:00Z"}}


APART = [*SERVED, *NODES, vm(), vm_pod(node="node-b")]


MPX = "cpu-feature.node.kubevirt.io/mpx"
FORBIDS_MPX = {"domain": {"cpu": {"features": [{"name": "mpx", "policy": "forbid"}]}}}
NOT_MIGRATABLE = {"type": "LiveMigratable", "status": "False", "reason": "DisksNotLiveMigratable"}
ROWS: list[tuple[str, list[Object], str, str]] = [
    ("together", [*SERVED, *NODES, vm(), vm_pod(), migratable()], "NotApart", "the VM is Together"),
    ("opted out", [*SERVED, *NODES, vm(annotations={OPT_IN: "false"}), vm_pod(node="node-b"), migratable()],
     "OptedOut", "an annotation of the VM or the label of its namespace opts it out"),
    ("without a VMI", APART, "NotLiveMigratable", "no VMI with the condition LiveMigratable"),
    ("not running", [*APART, migratable(phase="Scheduled")], "NotRunning", "the VMI is Scheduled"),
    ("being deleted", [*APART, terminating(migratable())], "NotRunning", "the VMI is being deleted"),
    ("not live-migratable", [*APART, migratable(conditions=[NOT_MIGRATABLE | {"message": "it has a host device"}])],
     "NotLiveMigratable", "it has a host device"),
    ("not live-migratable, without a message", [*APART, migratable(conditions=[NOT_MIGRATABLE])],
     "NotLiveMigratable", "DisksNotLiveMigratable"),
    ("a hostname of its own", [*APART[:-1], vm_pod(node="node-b", nodeSelector={HOSTNAME: "node-b"}), migratable()],
     "NodeMismatch", f"node-a does not match the pod's nodeSelector {HOSTNAME}=node-b"),
    ("the VMI prefers no eviction", [*APART, migratable(annotations={NO_EVICTION: ""})],
     "PrefersNoEviction", f"the annotation {NO_EVICTION} is set"),
    ("the pod prefers no eviction",
     [*SERVED, *NODES, vm(), vm_pod(node="node-b", annotations={NO_EVICTION: "true"}), migratable()],
     "PrefersNoEviction", f"the annotation {NO_EVICTION} is set"),
    ("to be evacuated", [*APART, migratable(evacuationNodeName="node-b")],
     "Evacuating", "KubeVirt evacuates the VM from node-b"),
    ("on a node that is lost", [*SERVED, NODES[0], node("node-b", ready="False"), *APART[-2:], migratable()],
     "SourceNotReady", "node-b is not Ready, so the VM can't leave it by migration"),
    ("paused", [*APART, migratable("vm1", "node-b", {"type": "Paused", "status": "True"})],
     "Paused", "the VM is paused"),
    *((f"KubeVirt migrates it: {kind}", [*APART, migratable("vm1", "node-b", {"type": kind, "status": status})],
       "KubeVirtMigrates", f"KubeVirt migrates the VM itself ({kind})")
      for kind, status in (("VolumesChange", "True"), ("HotMemoryChange", "True"), ("HotVCPUChange", "False"),
                           ("MigrationRequired", "True"))),
    ("a backup is running", [*APART, migratable(spec={"utilityVolumes": [{"name": "a", "claimName": "b"}]})],
     "UtilityVolumes", "KubeVirt does not migrate a VM while utility volumes are attached"),
    ("a target pod that runs already",
     [*APART, vm_pod(suffix="fghij", labels={"kubevirt.io/migrationJobUID": "job"}, created="2026-08-01T13:00:00Z"),
      migratable()],
     "Migrating", "another live migration of the VM is unfinished"),
    ("a target without the label",
     [*SERVED, node("node-a", labels={HOSTNAME: None}), node("node-b"), vm(), vm_pod(node="node-b"), migratable()],
     "NodeMismatch", f"node-a does not match the pod's nodeSelector {HOSTNAME}=node-a"),
    ("a target that is full",
     [*SERVED, node("node-a", allocatable={"memory": "1Gi", "pods": "9"}), vm(),
      vm_pod(node="node-b", requests={"memory": "2Gi"}), migratable()],
     "NodeFull", "node-a lacks memory (requested 2048Mi)"),
    ("a target that shares its hostname label with another node",
     [*SERVED, node("node-a", labels={HOSTNAME: "localhost"}), node("node-b"),
      node("node-c", labels={HOSTNAME: "localhost"}), vm(), vm_pod(node="node-b"), migratable()],
     "Unjudged", f"node-a shares its label {HOSTNAME} with another node"),
    ("a target with CPUs of another vendor",
     [*SERVED, node("node-a", labels={"cpu-vendor.node.kubevirt.io/AMD": "true"}),
      node("node-b", labels={"cpu-vendor.node.kubevirt.io/Intel": "true"}), vm(), vm_pod(node="node-b"), migratable()],
     "NodeMismatch",
     "node-a does not match the pod's nodeSelector cpu-vendor.node.kubevirt.io/Intel=true"),
    ("a target with a CPU feature that a VM forbids which has migrated before",
     [*SERVED, node("node-a", labels={MPX: "true", "kubevirt.io/schedulable": "true"}), node("node-b"), vm(),
      vm_pod(node="node-b", labels={"kubevirt.io/migrationJobUID": "job"}), migratable(spec=FORBIDS_MPX)],
     "NodeMismatch", "node-a does not match the pod's required node affinity"),
    ("anti-affinity that its own pod breaks, as both run during the migration",
     [*SERVED, *(node(name, labels={ZONE: "east"}) for name in ("node-a", "node-b")), vm(), migratable(),
      vm_pod(node="node-b", labels={"app": "db"}, affinity=pod_anti_affinity(pod_term({"app": "db"}, ZONE)))],
     "PodAffinity", "node-a "),
]  # fmt: skip


@pytest.mark.parametrize(
    ("hard", "used", "spec", "rejected"),
    [
        ({"requests.memory": "4Gi"}, {"requests.memory": "2Gi"}, {}, ""),
        ({"memory": "3Gi"}, {"memory": "2Gi"}, {}, "memory (requested 2048Mi, used"),
        ({"requests.memory": "3Gi"}, {"requests.memory": "2Gi"}, {}, "requests.memory (requested 2048Mi, used"),
        ({"limits.cpu": "3"}, {"limits.cpu": "2"}, {}, "limits.cpu (requested 2, used 2 of 3)"),
        ({"count/pods": "5"}, {"count/pods": "4"}, {}, ""),
        ({"pods": "1"}, {"pods": "1"}, {}, "pods (requested 1, used 1 of 1)"),
        ({"requests.devices.kubevirt.io/kvm": "1"}, {}, {}, ""),
        ({"count/secrets": "0", "limits.memory": "0"}, {}, {}, ""),
        ({"pods": "0"}, {}, {"scopes": ["Terminating"]}, ""),
        ({"pods": "0"}, {}, {"scopeSelector": {"matchExpressions": []}}, ""),
        ({"pods": "many"}, {}, {}, ""),
    ],
)
def test_a_resource_quota_is_found_before_a_migration(hard: Object, used: Object, spec: Object, rejected: str) -> None:
    own = vm_pod(node="node-b", requests={"memory": "2Gi", "devices.kubevirt.io/kvm": "1"})
    own["spec"]["containers"][0]["resources"]["limits"] = {"cpu": "2"}
    quota = {"kind": "ResourceQuota", "apiVersion": "v1", "metadata": {"name": "limits", "namespace": "default"}}
    found = result(
        *SERVED, *NODES, vm(), migratable(), own, quota | {"spec": spec, "status": {"hard": hard, "used": used}}
    )
    assert found.detail.startswith(f"limits: {rejected}") if isinstance(found, Refusal) else not rejected
    assert not isinstance(found, Refusal) or found.word == "ResourceQuota"


@pytest.mark.parametrize(("manifests", "word", "detail"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_a_vm_stays_where_it_is(manifests: list[Object], word: str, detail: str) -> None:
    refusal = result(*manifests)
    assert isinstance(refusal, Refusal)
    assert refusal.word == word
    assert refusal.detail.startswith(detail)


def test_a_pod_that_the_caches_know_only_in_part_is_not_moved() -> None:
    found, chosen = inventory(*APART, migratable()), settings()
    (machine,) = without_manifests(found.machines(chosen))
    machine = replace(machine, vmi=found.vmis["default", "vm1"])
    refusal = plan_move(assess(machine, found.store, chosen), Surroundings(chosen), found.store)
    assert isinstance(refusal, Refusal)
    assert refusal.detail == "the VM's pod is unknown"


def sized(name: str, node: str, size: str) -> list[Object]:
    claim, *rest = storage(name, node)
    claim["spec"]["resources"] = {"requests": {"storage": size}}
    return [claim, *rest]


def test_the_gain_is_the_capacity_of_the_disks_that_become_local() -> None:
    disks = [*sized("disk1", "node-a", "10"), *sized("disk2", "node-a", "20"), *sized("disk3", "node-b", "5")]
    rest = [*NODES, vm()]
    pod = vm_pod(node="node-b", claims=["disk1", "disk2", "disk3"])
    # Others use the disks too, so that the share-managers stay where they are.
    others = [vm_pod(f"other-{each}", "node-a", claims=[each]) for each in ("disk1", "disk2", "disk3")]
    found = inventory(*disks, *rest, pod, *others)
    assert gains(found) == gains(inventory(*disks, *rest, pod, *others, migratable())) == {25}
    alone = inventory(*disks, *rest, pod, migratable())
    assert gains(alone) == {25}
    assert gains(inventory(*disks, *rest, pod)) == {30}  # it can't migrate, and a restart is a cold start
    assert make_plan([status_of(alone)], inventory().store, Surroundings(settings()))[0].gain == 0  # unknown claims


def test_hotplugged_disks_count_for_the_gain_and_utility_volumes_do_not() -> None:
    disks = [*sized("disk1", "node-a", "10"), *sized("disk2", "node-b", "40"), *sized("disk3", "node-b", "80")]
    launcher = vm_pod(node="node-b")
    plugged = [hotplug_pod(launcher, claims=[each], suffix=each) for each in ("disk2", "disk3")]
    utility = [{"name": "backup", "claimName": "disk3"}]
    for spec, gain in (({}, 10 - 80), ({"utilityVolumes": utility}, 10)):
        other = vm_pod("other", "node-c", claims=["disk3"])  # which keeps its share-manager on node-b
        found = inventory(*disks, *NODES, vm(), migratable(conditions=[], spec=spec), launcher, *plugged, other)
        assert gains(found) == {gain}  # of a restart, by which disk2 stays local
    refusal = result(*disks, *NODES, vm(), migratable(), launcher, *plugged)
    assert isinstance(refusal, Refusal)
    assert (refusal.word, refusal.detail) == ("NoGain", describe_gain(10 - 40 - 80))


def test_the_target_node_must_reach_the_hotplugged_disks() -> None:
    claim, volume, *rest = storage("disk2", "node-a")
    elsewhere = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]}
    volume["spec"]["nodeAffinity"] = {"required": elsewhere}
    launcher = vm_pod(node="node-b")
    own = [*SERVED, *NODES, vm(), migratable(), launcher]
    refusal = result(*own, claim, volume, *rest, hotplug_pod(launcher, claims=["disk2"]))
    assert isinstance(refusal, Refusal)
    assert refusal.word == "VolumeMismatch"
