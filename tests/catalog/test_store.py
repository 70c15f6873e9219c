"""Tests of Store: lookups find the latest objects, and removed objects leave no index entries."""

from typing import Any

import pytest

from tests.support.builders import (
    HOSTNAME,
    Object,
    catalog,
    fact_of,
    hotplug_pod,
    node,
    pinned_fields,
    pinned_vm_pod,
    pod,
    pod_anti_affinity,
    pod_fact,
    pod_term,
    share_manager_pod,
    virt_launcher,
    virtual_machine,
    vmi,
    volume,
)
from tests.support.fake_clock import FakeClock
from webhook.catalog.pod_tables import Pods
from webhook.catalog.releases import MAX_OWNERS, Releases
from webhook.catalog.store import Store

ANTI_AFFINITY = {"affinity": pod_anti_affinity(pod_term({"app": "web"}, HOSTNAME))}


def pod_table(*found: Object) -> Pods:
    table = Pods()
    for item in found:
        fact = pod_fact(item)
        assert fact
        table.put(fact)
    return table


def index_entries(table: Pods) -> dict[str, Any]:
    """The non-empty indexes of a pod table."""
    tables = table, table.terms
    indexes = {name: found or {} for each in tables for name, found in vars(each).items() if not hasattr(found, "put")}
    left = {name: {key: value for key, value in index.items() if value} for name, index in indexes.items()}
    return {name: index for name, index in left.items() if index}


def test_a_pv_is_found_by_its_name_and_its_volume_handle_until_it_is_removed() -> None:
    store = catalog(
        volume(), volume("static", name="disk", handle="vol-disk1-restored"), volume("nfs", driver="nfs", handle="x")
    )
    assert list(store.volumes_by_handle("vol-disk1")) == [store.volume("pvc-disk1")]
    assert [found.name for found in store.volumes_by_handle("vol-disk1-restored")] == ["disk"]
    assert [found.name for found in store.volumes_by_handle("disk")] == ["disk"]
    assert not store.volumes_by_handle("x")
    store.put(fact_of(volume(name="second")))
    assert list(store.volumes_by_handle("vol-disk1")) == [store.volume("pvc-disk1"), store.volume("second")]
    store.volumes.remove(("", "pvc-disk1"))
    assert list(store.volumes_by_handle("vol-disk1")) == [store.volume("second")]
    store.volumes.remove(("", "second"))
    assert not store.volumes_by_handle("vol-disk1")


def test_an_extended_resource_is_reported_while_a_node_has_it() -> None:
    store = Store()
    for name, gpus, reported in (("a", "1", True), ("b", "0", True), ("a", "", True), ("b", "", False)):
        fact = fact_of(node(name, allocatable={"cpu": "4"} | ({"example.com/gpu": gpus} if gpus else {})))
        store.put(fact)
        assert store.is_reported("example.com/gpu") is reported
    assert not store.is_reported("example.com/other")


def test_node_load_is_the_sum_of_pods_bound_or_pinned_to_the_node_without_the_excluded_pod() -> None:
    store = catalog(
        pod("bound", node="node-a", requests={"cpu": "1"}),
        pod("terminating", node="node-a", requests={"cpu": "10"}, deleting=True),
        virt_launcher("pinned", requests={"cpu": "100"}, **pinned_fields("node-a")),
        pod("copied", requests={"cpu": "1k"}, **pinned_fields("node-a")),
        pod("elsewhere", node="node-b", requests={"cpu": "1k"}),
        pod("nowhere", requests={"cpu": "10k"}),
        pod("finished", node="node-a", requests={"cpu": "100k"}, phase="Succeeded"),
        virt_launcher("bound-elsewhere", node="node-b", requests={"memory": "1"}, **pinned_fields("node-a")),
    )
    assert dict(store.requested("node-a", ("", ""))) == {"pods": 3, "cpu": 111_000}
    assert dict(store.requested("node-b", ("", ""))) == {"pods": 2, "cpu": 1_000_000, "memory": 1}
    assert dict(store.requested("node-a", ("default", "bound"))) == {"pods": 2, "cpu": 110_000}
    for other in ("other", "bound"), ("default", "elsewhere"), ("default", "gone"), ("default", ""):
        assert store.requested("node-a", other)["cpu"] == 111_000


def repelling(store: Store, namespace: str, *, own: bool, **labels: str) -> list[str]:
    return [found.name for found, _ in store.repelling_terms(namespace, labels, own=own)]


def test_only_pods_with_a_node_are_listed_as_placed_or_repelling() -> None:
    store = catalog(
        pod("bound", node="node-a", **ANTI_AFFINITY),
        pod("plain", node="node-a"),
        pod("nowhere", **ANTI_AFFINITY),
        pod("other", "other", node="node-a", **ANTI_AFFINITY),
    )
    assert [found.name for found in store.placed_pods("default", ())] == ["bound", "plain"]
    assert [found.name for found in store.placed_pods("other", ())] == ["other"]
    assert repelling(store, "default", own=True, app="web") == ["bound"]
    assert repelling(store, "other", own=True, app="web") == ["other"]
    assert repelling(store, "default", own=True, app="db") == repelling(store, "default", own=False, app="web") == []
    terms = store.repelling_terms("default", {"app": "web"}, own=True)
    assert iter(terms) is terms  # 27,000 terms would take 3 ms to list, and a review compares 5,000


def test_the_terms_of_a_namespaces_own_pods_are_not_among_those_of_others() -> None:
    anywhere = pod_anti_affinity(pod_term({"app": "web"}, namespaceSelector={}))
    store = catalog(pod("any", node="node-a", affinity=anywhere))
    assert repelling(store, "shop", own=False, app="web") == repelling(store, "default", own=True, app="web") == ["any"]
    assert repelling(store, "default", own=False, app="web") == []


POD_KINDS = [
    pytest.param(pod("one"), id="unbound"),
    pytest.param(pod("one", node="node-a", requests={"cpu": "1"}, **ANTI_AFFINITY), id="bound with anti-affinity"),
    pytest.param(pod("one", requests={"cpu": "1"}, **pinned_fields("node-a")), id="pinned"),
    pytest.param(pinned_vm_pod("one"), id="pinned and unschedulable"),
    pytest.param(pod("one", node="node-a", labels={f"label-{number}": "x" for number in range(200)}), id="oversized"),
    pytest.param(share_manager_pod(node="node-a"), id="share-manager pod"),
    pytest.param(virt_launcher("one", node="node-a", claims=["a", "b"]), id="virt-launcher pod"),
    pytest.param(hotplug_pod(virt_launcher("one"), node="node-a"), id="hotplug pod"),
]


@pytest.mark.parametrize("item", POD_KINDS)
def test_a_removed_pod_leaves_no_index_entries(item: Object) -> None:
    table, fact = pod_table(item), pod_fact(item)
    assert index_entries(table)
    table.remove(fact.key)
    assert index_entries(table) == {}


def test_a_pod_with_the_same_name_replaces_the_first() -> None:
    old, new = virt_launcher("one", node="node-a"), virt_launcher("one", node="node-b")
    new["metadata"]["uid"] = "another"
    table = pod_table(old, new)
    assert [found.node for found in table.mounting("default", "disk1")] == ["node-b"]
    table.put(pod_fact(hotplug_pod(old, claims=["hot"], node="node-a")))
    assert list(table.mounting("default", "hot")) == []


def test_a_claim_of_a_hotplug_pod_is_mounted_by_the_vm_that_owns_the_pod() -> None:
    vm = virt_launcher("one", node="node-a", claims=["root"])
    foreign = hotplug_pod(vm, node="node-a")
    foreign["metadata"]["namespace"] = "other"
    table = pod_table(vm, hotplug_pod(vm, node="node-a"), foreign)
    assert [found.name for found in table.mounting("default", "disk1")] == ["one"]
    assert list(table.mounting("other", "disk1")) == []
    table.remove(("default", "one"))
    assert list(table.mounting("default", "disk1")) == []


def test_the_pods_of_a_claim_that_many_vms_mount_are_listed_one_by_one() -> None:
    """A report asks for the users of each VM's volume: complete lists of 5,000 VMs would take minutes."""
    table = pod_table(*(virt_launcher(name, node="node-a") for name in ("a", "b")))
    mounting = table.mounting("default", "disk1")
    assert next(mounting).name == "a"
    assert [found.name for found in mounting] == ["b"]


def test_the_running_pods_that_mount_a_claim_without_a_vm_are_sorted_by_name() -> None:
    vm = virt_launcher("vm", node="node-a")
    own = [vm, hotplug_pod(vm, node="node-a"), share_manager_pod(node="node-a")]
    idle = [
        pod("unbound", claims=["disk1"]),
        pod("terminating", claims=["disk1"], node="node-a", deleting=True),
        pod("plain", node="node-a"),
        pod("elsewhere", "other", claims=["disk1"], node="node-a"),
    ]
    table = pod_table(*own, *idle, *(pod(name, claims=["disk1", "disk2"], node="node-a") for name in "ba"))
    assert [found.name for found in table.mounting_without_vm("default", "disk1")] == ["a", "b"]
    table.remove(("default", "a"))
    assert [found.name for found in table.mounting_without_vm("default", "disk2")] == ["b"]
    table.put(pod_fact(pod("b", claims=["disk3"], node="node-a")))
    assert [len(table.mounting_without_vm("default", claim)) for claim in ("disk1", "disk2", "disk3")] == [0, 0, 1]
    assert [found.name for found in table.mounting("default", "disk1")] == ["vm"]


def test_only_a_changed_capacity_of_a_node_evaluates_its_pins_again() -> None:
    store = catalog(node(), vmi(), pinned_vm_pod("one"))
    store.pins.counting()
    store.put(fact_of(node(labels={"changed": "true"})))
    assert not store.pins._changed
    store.put(fact_of(node(allocatable={"cpu": "1"})))
    assert store.pins._changed


def test_beyond_the_limit_the_failures_of_the_owner_recorded_first_are_forgotten() -> None:
    releases = Releases(FakeClock())
    for number in range(MAX_OWNERS + 1):
        releases.record(("default", f"vm-{number}"), "node-a", "uid")
    assert not releases.losses(("default", "vm-0"))
    assert all(releases.losses(("default", f"vm-{number}")) for number in (1, MAX_OWNERS))


def test_the_run_strategy_is_none_for_a_vmi_without_a_vm_and_empty_if_the_vm_is_unknown() -> None:
    objects = [virtual_machine(strategy="Once"), vmi(), vmi("lone", owner_kind=""), vmi("owned")]
    store = catalog(*objects, vmi("pooled", owner_kind="VirtualMachineInstanceReplicaSet"))
    found = {name: store.run_strategy("default", name) for name in ("vm1", "lone", "owned", "pooled", "unseen")}
    assert found == {"vm1": "Once", "lone": None, "owned": "", "pooled": None, "unseen": ""}
