"""The store answers with what was put in last, and forgets what was dropped."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from tests.support.builders import (
    HOSTNAME,
    Object,
    apart,
    catalog,
    claim,
    hotplug_pod,
    node,
    pinned,
    pod,
    pod_term,
    request,
    settings,
    share_manager,
    share_manager_pod,
    virt_launcher,
    volume,
)
from webhook.cluster.objects import read_node, read_pod
from webhook.cluster.store import Store
from webhook.cluster.tables import Pods, vm_key
from webhook.placement.catalog import Node, Pod
from webhook.placement.decision import Reason
from webhook.placement.injector import decide

REPELLING = {"affinity": apart(pod_term({"app": "web"}, HOSTNAME))}


def pods(*found: Object) -> Pods:
    kept = Pods()
    for item in found:
        fact = read_pod(item)
        assert fact
        kept.put(fact)
    return kept


def traces(kept: Pods) -> dict[str, Any]:
    """What a store of pods still holds, whatever it is indexed by."""
    indexes = {name: getattr(kept, name) for name in vars(kept)}
    left = {name: {key: value for key, value in index.items() if value} for name, index in indexes.items()}
    left["_load"] = {node: load for node, load in left["_load"].items() if any(load.values())}
    return {name: index for name, index in left.items() if index}


def test_an_empty_store_knows_nothing() -> None:
    empty = Store()
    assert empty.claim("default", "disk1") is None
    assert empty.volume("pvc-disk1") is None
    assert empty.volume_by_handle("vol-disk1") is None
    assert empty.share_manager("longhorn-system", "vol-disk1") is None
    assert empty.node("node-a") is None
    assert not empty.has_nodes()
    assert dict(empty.requested("node-a", ("", ""))) == {}
    assert [*empty.share_manager_pods("longhorn-system", "v"), *empty.mounting_pods("default", "disk1")] == []
    assert [*empty.placed_pods(["default"]), *empty.pods_with_anti_affinity("default")] == []


def test_an_object_put_again_replaces_what_was_known() -> None:
    known = catalog(
        *(claim(volume=""), claim()),
        *(volume(required={}), volume()),
        *(share_manager(state="starting"), share_manager()),
        *(node(ready="False"), node()),
        *(pod("one", node="node-a", requests={"cpu": "1"}), pod("one", node="node-b", requests={"cpu": "2"})),
    )
    assert known.claim("default", "disk1").volume_name == "pvc-disk1"
    assert known.volume("pvc-disk1").node_affinity is None
    assert known.share_manager("longhorn-system", "vol-disk1").state == "running"
    assert known.node("node-a").ready
    assert (known.requested("node-a", ("", "")).get("cpu", 0), known.requested("node-b", ("", ""))["cpu"]) == (0, 2000)


def test_a_pv_is_found_by_its_name_and_by_its_handle() -> None:
    known = catalog(
        volume(), volume("static", name="disk", handle="vol-disk1-restored"), volume("nfs", driver="nfs", handle="x")
    )
    assert known.volume("pvc-disk1") is known.volume_by_handle("vol-disk1")
    assert known.volume_by_handle("vol-disk1-restored").name == "disk"
    assert known.volume_by_handle("disk").name == "disk"
    assert known.volume_by_handle("x") is None


def test_share_manager_pods_come_in_the_order_of_their_names() -> None:
    second, first = share_manager_pod(), share_manager_pod()
    second["metadata"]["name"], first["metadata"]["name"] = "b", "a"
    known = catalog(second, first, share_manager_pod("vol-disk2"))
    assert [found.name for found in known.share_manager_pods("longhorn-system", "vol-disk1")] == ["a", "b"]


def test_the_load_of_a_node_is_that_of_the_pods_bound_or_pinned_to_it() -> None:
    known = catalog(
        pod("bound", node="node-a", requests={"cpu": "1"}),
        pod("terminating", node="node-a", requests={"cpu": "10"}, deleting=True),
        pod("pinned", requests={"cpu": "100"}, **pinned("node-a")),
        pod("elsewhere", node="node-b", requests={"cpu": "1k"}),
        pod("nowhere", requests={"cpu": "10k"}),
        pod("finished", node="node-a", requests={"cpu": "100k"}, phase="Succeeded"),
        pod("bound-elsewhere", node="node-b", requests={"memory": "1"}, **pinned("node-a")),
    )
    assert dict(known.requested("node-a", ("", ""))) == {"pods": 3, "cpu": 111_000}
    assert dict(known.requested("node-b", ("", ""))) == {"pods": 2, "cpu": 1_000_000, "memory": 1}


@pytest.mark.parametrize(
    ("besides", "cpu"),
    [
        (("default", "one"), 2000),
        (("other", "one"), 3000),
        (("default", "elsewhere"), 3000),
        (("default", "gone"), 3000),
        (("default", ""), 3000),
    ],
    ids=["on it", "of that name in another namespace", "on another node", "not known", "without a name"],
)
def test_a_pod_is_no_load_to_itself(besides: tuple[str, str], cpu: int) -> None:
    known = catalog(
        pod("one", node="node-a", requests={"cpu": "1"}),
        pod("two", node="node-a", requests={"cpu": "2"}),
        pod("elsewhere", node="node-b", requests={"cpu": "4"}),
    )
    assert known.requested("node-a", besides)["cpu"] == cpu


def test_only_pods_with_a_site_are_placed_or_repel() -> None:
    known = catalog(
        pod("bound", node="node-a", **REPELLING),
        pod("plain", node="node-a"),
        pod("nowhere", **REPELLING),
        pod("other", "other", node="node-a", **REPELLING),
    )
    assert [found.name for found in known.placed_pods(["default"])] == ["bound", "plain"]
    assert [found.name for found in known.placed_pods(["other", "gone", "default"])] == ["other", "bound", "plain"]
    assert [found.name for found in known.pods_with_anti_affinity("default")] == ["bound"]
    assert [found.name for found in known.pods_with_anti_affinity("other")] == ["other"]


def test_pods_that_repel_others_are_found_by_whom_their_terms_are_about() -> None:
    named = pod_term({"app": "web"}, namespaces=["shop", "blog"])
    selected = pod_term({"app": "web"}, namespaceSelector={})
    both = pod("both", node="node-a", affinity=apart(named, selected, named))
    known = catalog(both, pod("any", node="node-a", affinity=apart(selected)))
    where = ("shop", "blog", "default", "")
    assert [[found.name for found in known.pods_with_anti_affinity(name)] for name in where] == [
        ["both"],
        ["both"],
        [],
        ["both", "any"],
    ]
    known.pods.remove(("default", "both"))
    assert [[found.name for found in known.pods_with_anti_affinity(name)] for name in where] == [[], [], [], ["any"]]


EVERY_KIND = [
    pytest.param(pod("one"), id="unbound"),
    pytest.param(pod("one", node="node-a", requests={"cpu": "1"}, **REPELLING), id="bound and repelling"),
    pytest.param(pod("one", requests={"cpu": "1"}, **pinned("node-a")), id="pinned"),
    pytest.param(share_manager_pod(node="node-a"), id="a share-manager pod"),
    pytest.param(virt_launcher("one", node="node-a", claims=["a", "b"]), id="a virt-launcher pod"),
    pytest.param(hotplug_pod(virt_launcher("one"), node="node-a"), id="a hotplug pod"),
]


@pytest.mark.parametrize("item", EVERY_KIND)
def test_a_dropped_pod_leaves_no_trace(item: Object) -> None:
    kept, fact = pods(item), read_pod(item)
    assert traces(kept)
    kept.remove(fact.key)
    assert traces(kept) == {}


@pytest.mark.parametrize("item", EVERY_KIND)
def test_a_pod_put_twice_counts_once(item: Object) -> None:
    assert traces(pods(item, item)) == traces(pods(item))


def test_dropping_a_pod_that_is_not_there_changes_nothing() -> None:
    kept = pods(pod("one", node="node-a"))
    before = traces(kept)
    kept.remove(("default", "two"))
    kept.remove(("other", "one"))
    assert traces(kept) == before


def test_a_pod_of_the_same_name_takes_the_place_of_the_first() -> None:
    old, new = virt_launcher("one", node="node-a"), virt_launcher("one", node="node-b")
    new["metadata"]["uid"] = "another"
    kept = pods(old, new)
    assert [found.node for found in kept.mounting("default", "disk1")] == ["node-b"]
    kept.put(read_pod(hotplug_pod(old, claims=["hot"], node="node-a")))
    assert kept.mounting("default", "hot") == []


def test_a_hotplug_pod_stands_for_the_vm_that_owns_it() -> None:
    vm = virt_launcher("one", node="node-a", claims=["root"])
    kept = pods(vm, hotplug_pod(vm, node="node-a"))
    assert [found.name for found in kept.mounting("default", "disk1")] == ["one"]
    kept.remove(("default", "one"))
    assert kept.mounting("default", "disk1") == []


def test_a_pv_that_is_dropped_leaves_another_one_of_the_same_volume() -> None:
    first, second = volume(name="first"), volume(name="second")
    known = catalog(first, second)
    known.volumes.remove(("", "first"))
    assert known.volume_by_handle("vol-disk1").name == "second"
    known.volumes.remove(("", "second"))
    assert known.volume_by_handle("vol-disk1") is None


def test_a_relist_replaces_the_objects_of_one_kind_and_no_others() -> None:
    known = catalog(node("node-a"), node("node-b"), claim(), pod("one", node="node-a"))
    known.swap_table(Node, known.new_table(Node, [read_node(node("node-c"))]))
    assert [known.node(name) is not None for name in ("node-a", "node-b", "node-c")] == [False, False, True]
    assert known.claim("default", "disk1")
    gone = known.swap_table(Pod, known.new_table(Pod, []))
    assert dict(known.requested("node-a", ("", ""))) == {}
    assert (len(gone), len(known.pods)) == (1, 0)


def test_a_table_is_dismantled_to_the_last_object() -> None:
    known = catalog(claim(), claim("disk2"), volume(), pod("one", node="node-a"))
    for table in (known.claims, known.volumes, known.pods):
        table.clear_stepwise()
        assert len(table) == 0


MADE = virt_launcher(labels={"kubevirt.io/created-by": "uid-of-vmi", "app": "web"}, requests={"cpu": "1"}, **REPELLING)
SERVED = [claim(), volume(), share_manager(), node(allocatable={"cpu": "1", "pods": "9"})]


def reserving(*found: Object) -> Store:
    """A store that has just seen MADE pinned to node-a, as webhook.live reserves its room."""
    known, fact = catalog(*SERVED, *found), read_pod(MADE)
    assert fact
    known.reservations.put(replace(fact, name=vm_key(fact)[1], effective_node="node-a"))
    return known


def test_a_pod_that_was_pinned_a_moment_ago_counts_until_it_shows() -> None:
    known, shown = reserving(), deepcopy(MADE)
    assert dict(known.requested("node-a", ("", ""))) == {"pods": 1, "cpu": 1000}
    assert [*known.placed_pods(["default"])] == [*known.pods_with_anti_affinity("default")] != []
    shown["metadata"]["name"] = "virt-launcher-vm1-abcde"
    known.put(read_pod(shown))
    assert not any(known.requested("node-a", ("", "")).values())


def test_a_reservation_adds_to_what_is_there() -> None:
    known = reserving(pod("two", node="node-a", requests={"cpu": "2", "memory": "1"}))
    assert dict(known.requested("node-a", ("", ""))) == {"pods": 2, "cpu": 3000, "memory": 1}
    assert decide(request(virt_launcher(requests={"cpu": "1"})), reserving(), settings()).reason is Reason.NODE_FULL


def test_a_reservation_does_not_count_against_the_same_vms_next_try() -> None:
    """The API server asks again when an answer was lost, virt-controller when another webhook refused the pod."""
    assert decide(request(MADE), reserving(), settings()).reason is Reason.CO_SCHEDULED
