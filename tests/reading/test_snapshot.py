"""Tests of snapshots: files that kubectl wrote fill a Store with the same objects as the cluster."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.builders import (
    Object,
    claim,
    node,
    pinned_vm_pod,
    pod,
    share_manager,
)
from tests.support.command_line import write_manifests
from tests.support.paths import DOCS
from webhook.catalog.kinds import kinds, tool_kinds
from webhook.catalog.store import Store
from webhook.reading.documents import BadInput
from webhook.reading.snapshot import DESCRIPTION, read


def load(paths: list[Path]) -> Store:
    return read(paths)[0].store


def list_of(*items: Any, kind: str = "List") -> Object:
    return {"apiVersion": "v1", "items": list(items), "kind": kind, "metadata": {"resourceVersion": ""}}


def error_message(path: Path) -> str:
    with pytest.raises(BadInput) as caught:
        load([path])
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{path}: ")


def test_other_kinds_are_ignored_and_the_later_copy_of_an_object_replaces_the_earlier(tmp_path: Path) -> None:
    unsupported = [
        {"apiVersion": "v1", "kind": "ConfigMap"},
        {"apiVersion": "metrics.k8s.io/v1beta1", "kind": "Node", "metadata": {"name": "node-a"}},
        {"apiVersion": "example.org/v1", "kind": "ShareManager"},
    ]
    copies = share_manager(owner="node-a"), share_manager(owner="node-b")
    store = load([write_manifests(tmp_path, list_of(*unsupported), claim(), *copies)])
    assert (len(store.nodes), len(store.claims)) == (0, 1)
    manager = store.share_manager("longhorn-system", "vol-disk1")
    assert manager is not None
    assert manager.owner == "node-b"


@pytest.mark.parametrize("contents", [[], [list_of()], [{"apiVersion": "v1", "kind": "Secret"}]])
def test_files_without_cluster_objects_raise_an_error_with_the_snapshot_command(tmp_path: Path, contents: Any) -> None:
    command = "kubevirt-scheduler snapshot"
    sentence = f"no object that decisions read; to write a snapshot: {command}"
    assert error_message(write_manifests(tmp_path, *contents)) == sentence


def test_a_malformed_object_is_skipped_with_its_name_and_place(tmp_path: Path) -> None:
    malformed = {
        "PersistentVolumeClaim default: metadata.name is missing": claim(""),
        "Node: metadata: expected object, got array": {"apiVersion": "v1", "kind": "Node", "metadata": []},
        "Node node-a: status.allocatable.cpu: expected a quantity, such as 500m or 4Gi": node(
            allocatable={"cpu": "s3cret"}
        ),
        "Pod default/a: spec.containers[0].resources.requests.cpu: expected a quantity, such as 500m or 4Gi": pod(
            "a", requests={"cpu": []}
        ),
    }
    path = write_manifests(tmp_path, claim("good"), list_of(*malformed.values()))
    inventory, _ = read([path])
    assert inventory.store.claim("default", "good")
    assert inventory.malformed == [f"{path}: document 2: {words}" for words in malformed]


@pytest.mark.parametrize(
    ("time", "counts"),
    [("2026-08-01T12:04:00Z", True), ("2026-08-01T12:06:00Z", False), ("2026-08-01T12:06:00", True), ("now", True)],
)
def test_a_pinned_pod_of_a_snapshot_counts_for_five_minutes(tmp_path: Path, time: str, *, counts: bool) -> None:
    api_version, kind = DESCRIPTION
    description = {"apiVersion": api_version, "kind": kind, "metadata": {"creationTimestamp": time}}
    pinned = pinned_vm_pod(created="2026-08-01T12:00:00Z")
    store = load([write_manifests(tmp_path, list_of(description, node(), pinned))])
    assert any(store.unbound_pods("node-a")) is counts


def test_the_documented_kubectl_get_reads_each_kind_that_the_commands_read() -> None:
    page = DOCS.joinpath("reference", "commands.md").read_text()
    listed = {name for line in re.findall(r"^\$ [A-Z]+=(\S+)$", page, re.MULTILINE) for name in line.split(",")}
    wanted = {
        f"{kind.plural}.{kind.group}" if "longhorn" in kind.group else kind.plural
        for kind in (*kinds(""), *tool_kinds(""))
    }
    assert listed - {"$KUBEVIRT"} == wanted
