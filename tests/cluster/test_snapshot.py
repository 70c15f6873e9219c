"""A snapshot is what kubectl wrote: the same store comes of it as of the objects themselves."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.builders import (
    Object,
    catalog,
    claim,
    node,
    pod,
    request,
    share_manager,
    storage,
    virt_launcher,
    volume,
)
from webhook.cluster.documents import BadInput
from webhook.cluster.manifests import to_yaml
from webhook.cluster.snapshot import load, read
from webhook.placement.decision import Reason
from webhook.placement.injector import decide
from webhook.placement.settings import Settings

CLUSTER = [*storage(), share_manager(), node(), virt_launcher("vm", node="node-a")]


def listed(*items: Any, kind: str = "List") -> Object:
    return {"apiVersion": "v1", "items": list(items), "kind": kind, "metadata": {"resourceVersion": ""}}


def file(folder: Path, *contents: Any, name: str = "cluster.yaml") -> Path:
    path = folder / name
    path.write_text("---\n".join(map(to_yaml, contents)))
    return path


def refusal(path: Path) -> str:
    with pytest.raises(BadInput) as refused:
        load([path])
    assert "\n" not in str(refused.value)
    return str(refused.value).removeprefix(f"{path}: ")


@pytest.mark.parametrize("contents", [[listed(*CLUSTER)], CLUSTER, [listed(listed(*CLUSTER[:2]), *CLUSTER[2:])]])
def test_objects_are_found_in_lists_and_in_documents(tmp_path: Path, contents: list[Object]) -> None:
    found, known = load([file(tmp_path, *contents)]), catalog(*CLUSTER)
    assert found.claim("default", "disk1") == known.claim("default", "disk1") is not None
    assert found.volume_by_handle("vol-disk1") == known.volume_by_handle("vol-disk1") is not None
    assert found.share_manager("longhorn-system", "vol-disk1") is not None
    assert found.node("node-a") == known.node("node-a")
    assert found.mounting_pods("default", "disk1") == known.mounting_pods("default", "disk1") != []
    assert found.share_manager_pods("longhorn-system", "vol-disk1") != []


def test_json_and_folders_and_several_paths_are_one_cluster(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    folder.mkdir()
    file(folder, claim(), name="claims.yaml")
    folder.joinpath("volumes.json").write_text(json.dumps(listed(volume())))
    store = load([folder, file(tmp_path, share_manager())])
    decision = decide(request(virt_launcher()), store, Settings())
    assert (decision.reason, decision.node) == (Reason.CO_SCHEDULED, "node-a")


def test_items_of_the_apis_own_lists_need_no_kind(tmp_path: Path) -> None:
    bare = {key: value for key, value in node().items() if key not in ("kind", "apiVersion")}
    assert load([file(tmp_path, listed(bare, kind="NodeList"))]).node("node-a") is not None


def test_of_an_object_that_comes_twice_the_later_one_counts(tmp_path: Path) -> None:
    found = load([file(tmp_path, share_manager(owner="node-a"), share_manager(owner="node-b"))])
    manager = found.share_manager("longhorn-system", "vol-disk1")
    assert manager is not None
    assert manager.owner == "node-b"


def test_a_finished_pod_is_no_load_but_an_object_of_the_cluster(tmp_path: Path) -> None:
    store = load([file(tmp_path, pod("done", node="node-a", phase="Succeeded", requests={"cpu": "1"}))])
    assert store.requested("node-a", ("", "")) == {}


def test_other_kinds_are_counted_and_left_out(tmp_path: Path) -> None:
    strange = [
        {"apiVersion": "v1", "kind": "ConfigMap"},
        {"apiVersion": "metrics.k8s.io/v1beta1", "kind": "Node", "metadata": {"name": "node-a"}},
        {"apiVersion": "example.org/v1", "kind": "ShareManager"},
        {"apiVersion": "v1", "kind": "ConfigMap"},
    ]
    store, ignored = read([file(tmp_path, listed(*strange), claim())])
    assert ignored == {"ConfigMap": 2, "Node": 1, "ShareManager": 1}
    assert not store.has_nodes()


@pytest.mark.parametrize("contents", [[], [listed()], [{"apiVersion": "v1", "kind": "Secret"}]])
def test_files_without_any_object_of_a_cluster_say_how_to_write_a_snapshot(tmp_path: Path, contents: Any) -> None:
    command = "kubectl get pvc,pv,nodes,pods,sharemanagers.longhorn.io -A -o yaml"
    sentence = f"no object of the cluster is in it; a snapshot is written by: {command}"
    assert refusal(file(tmp_path, *contents)) == sentence


@pytest.mark.parametrize(
    ("item", "sentence"),
    [
        ([], "items[0] is no Kubernetes object: a map is wanted"),
        ({"metadata": {"name": "a"}}, "items[0] is no Kubernetes object: give it an apiVersion and a kind"),
        (claim(""), "a PersistentVolumeClaim has no metadata.name; every object of a cluster has one"),
        (
            {"apiVersion": "v1", "kind": "Node", "metadata": []},
            "a Node has no metadata.name; every object of a cluster",
        ),
        (node(allocatable={"cpu": "s3cret"}), "Node node-a: a resource quantity is not a number with a unit"),
        (pod("a", requests={"cpu": []}), "Pod default/a: a resource quantity is neither a string nor a number"),
        (
            pod(
                "a",
                affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"namespaces": 1}]}},
            ),
            "Pod default/a: a field has another type than Kubernetes gives it",
        ),
    ],
)
def test_a_malformed_object_is_named_with_its_file_and_document(tmp_path: Path, item: Any, sentence: str) -> None:
    path = file(tmp_path, claim("good"), listed(item))
    assert refusal(path).startswith(f"document 2: {sentence}")
