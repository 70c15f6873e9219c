"""A decision is the same from a cluster's caches, from its lists and from a snapshot, also of malformed objects."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.cluster.live_caches import sync_caches
from tests.support.builders import (
    Object,
    claim,
    inject_request,
    node,
    node_terms,
    pod,
    request,
    share_manager,
    share_manager_pod,
    storage,
    storage_class,
    virt_launcher,
    virtual_machine,
    volume,
)
from tests.support.command_line import write_manifests
from tests.support.fake_api_server import ApiServer, body, error_response, forbidden, status
from tests.support.fake_clock import FakeClock
from tests.support.fleet import longhorn_volume, replica
from tests.support.malformed import MALFORMED, replaced, value_paths
from webhook.cluster.client import ClusterClient
from webhook.cluster.credentials import Api
from webhook.cluster.live_catalog import Live
from webhook.fleet.volumes import VolumeData
from webhook.placement.reasons import OptedInBy
from webhook.placement.settings import OptIn, Settings
from webhook.reading.documents import BadInput
from webhook.reading.export import export
from webhook.reading.live import read_inventory
from webhook.reading.snapshot import read

ZONE = node_terms({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]})
CLUSTER = [
    *storage("disk1", "node-a"),
    node(taints=[{"key": "a", "effect": "NoSchedule"}], allocatable={"cpu": "8"}, labels={"zone": "a"}),
    share_manager(),
    volume(required={"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]}),
    virt_launcher("consumer", node="node-a", affinity=ZONE),
    virtual_machine(),
    node("node-b"),
    claim("unseen"),  # only the ShareManager names the node of its share-manager
    volume("unseen"),
    share_manager("vol-unseen", owner="node-b"),
]
SUBJECTS = (
    virt_launcher("new", requests={"cpu": "1"}, tolerations=[{"operator": "Exists"}]),
    virt_launcher("other", claims=["unseen"]),
    share_manager_pod(),
)


PATHS = [path for path in value_paths(CLUSTER) if len(path) > 1 and path[1] in ("spec", "status")]


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        yield server


@hypothesis_settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.sampled_from(PATHS), MALFORMED), max_size=2, unique_by=lambda one: one[0][0]))
def test_caches_lists_and_a_snapshot_lead_to_the_same_decision(
    server: ApiServer, changes: list[tuple[tuple[str | int, ...], Any]]
) -> None:
    objects: list[Object] = CLUSTER
    for path, value in changes:
        objects = replaced(objects, path, value)
    server.put(*objects)
    client = ClusterClient(Api(server.url))
    live = Live(client, Settings(), FakeClock())
    sync_caches(live, server)
    with TemporaryDirectory() as folder:
        file = write_manifests(Path(folder), *objects)
        catalogs = [live.store, read_inventory(client, Settings()).store, read([file])[0].store]
    for subject in SUBJECTS:
        admission = request(subject, subject["metadata"]["namespace"])
        cached, *others = [inject_request(admission, catalog, Settings()) for catalog in catalogs]
        assert cached.error is None
        assert others == [cached, cached]


def test_a_list_and_a_file_skip_and_name_the_same_objects(tmp_path: Path) -> None:
    nameless: Object = {"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"namespace": "kubevirt"}}
    objects = [virt_launcher("broken", requests={"cpu": []}), virt_launcher("good"), nameless]
    with ApiServer() as server:
        server.put(*objects[:2])
        server.script("list", "kubevirts", body({"metadata": {}, "items": [nameless]}))
        listed = read_inventory(ClusterClient(Api(server.url)), Settings())
    file = write_manifests(tmp_path, *objects)
    loaded, _ = read([file])
    assert [line.partition(": document ")[2].partition(": ")[2] for line in loaded.malformed] == listed.malformed
    assert [line.partition(": ")[0] for line in listed.malformed] == ["Pod default/broken", "KubeVirt kubevirt"]
    for inventory in listed, loaded:
        assert [name for _, name in inventory.pods] == ["good"]
        assert inventory.kubevirts == {}


def test_a_list_and_a_snapshot_keep_the_pods_that_a_drain_may_hurt(tmp_path: Path) -> None:
    owned = {"controller": True, "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "x", "uid": "u"}
    bare, stateful, stateless = pod("bare"), pod("stateful", claims=["disk1"]), pod("stateless")
    for each in stateful, stateless:
        each["metadata"]["ownerReferences"] = [owned]
    with ApiServer() as server:
        server.put(bare, stateful, stateless)
        client = ClusterClient(Api(server.url))
        file = write_manifests(tmp_path, *export(client, "longhorn-system", (), lambda *_: None))
        listed, loaded = read_inventory(client, Settings()), read([file])[0]
    assert {name for _, name in listed.pods} == {"bare", "stateful"}
    for inventory in listed, loaded:
        kinds = {name: pod.metadata.controller.kind for (_, name), pod in inventory.pods.items()}
        assert (kinds["bare"], kinds["stateful"]) == ("", "StatefulSet")


def test_only_the_settings_in_longhorns_namespace_count(tmp_path: Path) -> None:
    api: Object = {"apiVersion": "longhorn.io/v1beta2", "kind": "Setting"}
    settings = [
        api | {"metadata": {"namespace": namespace, "name": name}, "value": value}
        for namespace, name, value in (
            ("longhorn-system", "current-longhorn-version", "v1.11.3"),
            ("default", "current-longhorn-version", "v1.12.0"),
            ("default", "taint-toleration", "a:NoSchedule"),
        )
    ]
    with ApiServer() as server:
        server.put(*settings)
        listed = read_inventory(ClusterClient(Api(server.url)), Settings())
    paths = {request.path for request in server.requests if request.plural == "settings"}
    assert paths == {"/apis/longhorn.io/v1beta2/namespaces/longhorn-system/settings"}
    for found in listed, read([write_manifests(tmp_path, node(), *settings)])[0]:
        assert found.longhorn_setting("current-longhorn-version", Settings()) == "v1.11.3"
        assert found.longhorn_setting("taint-toleration", Settings()) is None


def test_the_old_annotation_names_the_storage_class_of_a_claim_also_in_a_snapshot(tmp_path: Path) -> None:
    old = claim(storageClassName="other")
    old["metadata"]["annotations"] = {"volume.beta.kubernetes.io/storage-class": "longhorn-rwx"}
    server_pod = share_manager_pod(node="node-a")
    started = virt_launcher(opt_in=None)
    with ApiServer() as server:
        server.put(old, volume(), server_pod, node(), storage_class())
        client = ClusterClient(Api(server.url))
        file = write_manifests(tmp_path, *export(client, "longhorn-system", (), lambda *_: None))
        for inventory in (read_inventory(client, Settings()), read([file])[0]):
            decision = inject_request(request(started), inventory.store, Settings(opt_in=OptIn.NAMESPACE)).decision
            assert (decision.opted_in_by, decision.node) == (OptedInBy.STORAGE_CLASS, "node-a")


def test_a_list_and_a_snapshot_have_the_same_data_of_volumes(tmp_path: Path) -> None:
    objects = [longhorn_volume(), replica(), replica("node-b", failedAt="2026-08-01T12:00:00Z"), claim()]
    elsewhere = longhorn_volume("foreign")
    elsewhere["metadata"]["namespace"] = "default"  # not Longhorn's
    with ApiServer() as server:
        server.put(*objects, elsewhere)
        client = ClusterClient(Api(server.url))
        listed = read_inventory(client, Settings())
        file = write_manifests(tmp_path, *export(client, "longhorn-system", (), lambda *_: None))
        server.forbidden |= {("list", "volumes"), ("list", "replicas")}
        assert read_inventory(client, Settings()).volume_data() == {}
    data = VolumeData("best-effort", "node-a", frozenset({"node-a"}), frozenset({"node-a", "node-b"}))
    assert [listed.volume_data(), read([file])[0].volume_data()] == [{"vol-disk1": data}] * 2


@pytest.mark.parametrize("template", [None, {"metadata": None}, {"metadata": {"annotations": None}, "spec": None}])
def test_a_vm_with_a_null_template_is_listed(template: Object | None) -> None:
    machine = virtual_machine("odd")
    machine["spec"]["template"] = template
    with ApiServer() as server:
        server.put(machine)
        inventory = read_inventory(ClusterClient(Api(server.url)), Settings())
    assert inventory.malformed == []
    assert [each.name for each in inventory.machines(Settings())] == ["odd"]


def test_a_missing_right_is_named_and_a_snapshot_without_a_kind_that_fails_is_refused() -> None:
    with ApiServer() as server:
        client = ClusterClient(Api(server.url))
        server.forbidden.add(("list", "csinodes"))
        with pytest.raises(BadInput, match=forbidden("list", "csinodes")["message"]):
            read_inventory(client, Settings())
        server.script("list", "sharemanagers", error_response(status(500, "etcd is slow")))
        with pytest.raises(BadInput, match="sharemanagers: the API server responded with 500: etcd is slow"):
            list(export(client, "longhorn-system", (), lambda *_: None))
