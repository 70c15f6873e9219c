"""The fleet is collected from the cluster's objects."""

import pytest

from tests.support.builders import (
    OPT_IN,
    Object,
    claim,
    hotplug_pod,
    labeled_namespace,
    node,
    share_manager_pod,
)
from tests.support.fleet import LATER, NOW, inventory, vm, vm_pod, vmi
from tests.support.migrations import kubevirt
from webhook.catalog.inventory import Inventory, node_loads, seconds_since
from webhook.catalog.store import parse_time
from webhook.fleet.machine import Machine
from webhook.placement.affinity import CO_SCHEDULED_NODE
from webhook.placement.objects.longhorn import VERSION_SETTING
from webhook.placement.settings import Settings

SETTINGS = Settings()
TARGET = {"kubevirt.io/migrationJobUID": "job"}


def machines_of(*manifests: Object) -> dict[str, Machine]:
    return {machine.name: machine for machine in inventory(*manifests).machines(SETTINGS)}


def test_a_vm_and_its_pod_are_one_machine() -> None:
    found = machines_of(vm("vm1"), vmi("vm1", paused=True), vm_pod("vm1"), vm("off"), vmi("lone"), vm_pod("lone"))
    assert list(found) == ["lone", "off", "vm1"]
    assert [machine.is_vm for machine in found.values()] == [False, True, True]
    assert [machine.pod is not None for machine in found.values()] == [True, False, True]
    assert [machine.paused for machine in found.values()] == [False, False, True]


def test_a_snapshot_without_vms_still_has_machines_of_vms() -> None:
    owned = vmi("owned")
    owned["metadata"]["ownerReferences"] = [{"kind": "VirtualMachine", "name": "owned", "controller": True}]
    found = machines_of(vm_pod("unknown")) | machines_of(owned, vm_pod("owned"), vmi("lone"), vm_pod("lone"))
    assert {name: machine.is_vm for name, machine in found.items()} == {"lone": False, "owned": True, "unknown": True}


def test_the_opt_in_is_that_of_the_vm_and_otherwise_that_of_the_pod() -> None:
    found = machines_of(vm("new"), vm_pod("new", opt_in=None), vm("old", opt_in=False), vm_pod("old"), vm_pod("lone"))
    assert {name: bool(machine.applicant.true_annotations) for name, machine in found.items()} == {
        "new": True,
        "old": False,
        "lone": True,
    }


def test_the_age_of_a_pod_is_known_if_both_times_are_valid() -> None:
    created, now = "2026-08-01T12:00:00Z", "2026-08-01T12:01:00Z"
    for time, at, age in (created, now, 60), (created, "", None), ("yesterday", now, None), (created[:-1], now, None):
        assert seconds_since(time, parse_time(at)) == age


def test_a_pod_without_the_annotation_of_its_vmi_is_a_machine_of_its_own() -> None:
    pod = vm_pod("vm1", annotations={"kubevirt.io/domain": "Not A Name"})
    assert list(machines_of(vm("vm1"), pod)) == ["uid-of-vm1", "vm1"]


def test_the_source_of_a_live_migration_runs_the_vm_until_it_ends_and_then_the_target() -> None:
    source, target = vm_pod("vm1"), vm_pod("vm1", "node-b", suffix="fghij", labels=TARGET, created=LATER)
    unbound = vm_pod("vm1", "", suffix="fghij", labels=TARGET, created=LATER)
    during = [source, target], [target, source], [source, unbound]
    after = [vm_pod("vm1", deleting=True), target], [vm_pod("vm1", phase="Succeeded"), target]
    for node_and_migrating, cases in ((("node-a", True), during), (("node-b", False), after)):
        for pods in cases:
            (found,) = machines_of(*pods).values()
            assert found.pod
            assert (found.pod.node, found.migrating) == node_and_migrating


def test_a_vm_whose_pods_all_terminate_is_stopped() -> None:
    assert machines_of(vm("vm1"), vm_pod("vm1", deleting=True))["vm1"].pod is None
    assert machines_of(vm_pod("vm1", deleting=True)) == {}  # a VMI without a VM is gone


def test_hotplugged_claims_belong_to_the_pod_that_owns_the_hotplug_pod() -> None:
    launcher = vm_pod("vm1")
    unplugged = hotplug_pod(launcher, claims=["disk3"], deleting=True)
    unplugged["metadata"]["name"] = "hp-volume-unplugged"
    foreign = hotplug_pod(launcher, claims=["disk4"])
    foreign["metadata"]["namespace"] = "other"
    found = machines_of(launcher, hotplug_pod(launcher, claims=["disk2"]), unplugged, foreign, vm_pod("other"))
    assert {name: machine.hotplugged for name, machine in found.items()} == {"other": (), "vm1": ("disk2",)}


@pytest.mark.parametrize(
    ("owner", "mounted"),
    [
        ("vm1", True),
        ("vm12", False),
    ],
)
def test_a_stopped_vm_mounts_the_claim_of_its_persistent_state(owner: str, mounted: bool) -> None:
    (found,) = machines_of(vm("vm1"), claim("state", labels={"persistent-state-for": owner})).values()
    assert found.template
    assert found.template.claims == ("state",) * mounted


def test_an_inventory_has_the_time_of_the_reading_and_the_versions_of_what_serves_nfs() -> None:
    server, other = share_manager_pod(node="node-a"), share_manager_pod("vol-other", namespace="default")
    server["spec"]["containers"] = [{"image": "registry:5000/share-manager:v1.8.1@sha256:1"}]
    setting = {"kind": "Setting", "metadata": {"name": VERSION_SETTING, "namespace": "longhorn-system"}, "value": "v2"}
    found = inventory(server, other, setting)
    servers = found.servers(SETTINGS)
    assert (found.time, servers.longhorn, servers.running) == (NOW, "v2", {"vol-disk1": "v1.8.1"})
    assert Inventory().time == ""


def test_only_the_settings_in_longhorns_namespace_count() -> None:
    kind = {"kind": "Setting", "value": "v1.12.0"}
    foreign = kind | {"metadata": {"name": VERSION_SETTING, "namespace": "shop"}}
    assert inventory(foreign).longhorn_setting(VERSION_SETTING, SETTINGS) is None
    written = kind | {"metadata": {"name": VERSION_SETTING}}
    assert inventory(foreign, written).longhorn_setting(VERSION_SETTING, SETTINGS) == "v1.12.0"


def test_a_vm_whose_next_pod_cannot_be_predicted_does_not_fail_the_others() -> None:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": "a text"}}
    broken = vm_pod("broken", affinity={"nodeAffinity": required}, annotations={CO_SCHEDULED_NODE: "node-a"})
    unquoted = vm("unquoted", nodeSelector={"rank": 5})
    found = machines_of(broken, unquoted, vm("stopped", domain={"memory": {"guest": "a lot"}}), vm_pod("vm1"))
    predicted = {name: machine.template is not None for name, machine in found.items()}
    assert predicted == {"broken": False, "unquoted": False, "stopped": False, "vm1": True}
    changed = vm("broken") | {"status": {"conditions": [{"type": "RestartRequired", "status": "True"}]}}
    (machine,) = machines_of(broken, changed).values()
    assert (machine.template is not None, machine.target) == (True, None)


def test_the_load_of_a_node_is_a_share_of_its_allocatable_resources() -> None:
    requests = {"cpu": "1", "memory": "4Gi"}
    loads = node_loads(
        inventory(
            node("node-a", allocatable={"cpu": "4", "memory": "8Gi", "pods": "10"}),
            node("node-b"),
            vm_pod("vm1", requests=requests),
            share_manager_pod(node="node-a"),
            share_manager_pod("other", node="node-a", deleting=True),
            share_manager_pod("fake", node="node-a", namespace="default"),
        ).store,
        SETTINGS,
    )
    first, second = loads
    assert (first.name, first.share_managers) == ("node-a", 1)
    assert first.requested == {"cpu": 0.25, "memory": 0.5, "pods": 0.4}
    assert (second.name, second.share_managers, second.requested) == ("node-b", 0, {})


def test_the_inventory_lists_the_namespaces_that_it_knows() -> None:
    assert inventory(labeled_namespace("shop"), labeled_namespace("default")).namespaces() == ["shop", "default"]
    assert inventory().namespaces() == []


def test_running_pods_get_the_annotations_that_kubevirt_copies_from_the_templates() -> None:
    other = "other.example/key"
    flags = {"customizeComponents": {"flags": {"controller": {"additional-launcher-annotations-sync": OPT_IN}}}}
    found = inventory(
        kubevirt() | {"spec": flags},
        *(vm("in", annotations={other: "true"}), vm_pod("in", opt_in=None)),
        *(vm("out", annotations={OPT_IN: "false"}), vm_pod("out", annotations={other: "true"})),
        *(vm("same"), vm_pod("same"), vm("gone", opt_in=False), vm_pod("gone")),
        *(vm("stopped"), vm("diskless"), vm_pod("diskless", claims=[], opt_in=None), vm_pod("lone")),
        *map(vmi, ("in", "out", "same", "gone", "diskless", "lone")),
    )
    found.copy_annotations()
    pods = {machine.name: machine.pod for machine in found.machines(SETTINGS)}
    read = {name: (pod.true_annotations, pod.false_annotations) for name, pod in pods.items() if pod}
    empty, opted = frozenset[str](), frozenset({OPT_IN})
    expected = {
        "in": (opted, empty),
        "out": (frozenset({other}), opted),
        "same": (opted, empty),
        "gone": (empty, empty),
        "diskless": (empty, empty),
        "lone": (opted, empty),
    }
    assert {name: each for name, each in read.items() if name in expected} == expected
