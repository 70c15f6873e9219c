"""`drain-check` prints what a drain of nodes does to VMs, also as JSON and in the page of `report`."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.support.builders import Object, node, pod, storage
from tests.support.command_line import run_cli, write_manifests
from tests.support.fake_api_server import ApiServer
from tests.support.fleet import inventory, longhorn_volume, replica, vm, vm_pod
from tests.support.migrations import migratable
from webhook.commands.drain_check import site_of
from webhook.placement.settings import Settings

LIVE = {"evictionStrategy": "LiveMigrate"}
API = {"kind": "Setting", "apiVersion": "longhorn.io/v1beta2"}
IN_LONGHORN = {"name": "current-longhorn-version", "namespace": "longhorn-system"}
VERSION: Object = API | {"metadata": IN_LONGHORN, "value": "v1.11.3"}
BUDGET: Object = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {"selector": {"matchLabels": {"app": "web"}}},
    "status": {"disruptionsAllowed": 0},
}
CLUSTER: list[Object] = [
    node("node-a"),
    node("node-b"),
    *storage("disk1"),
    *storage("disk2"),
    *(vm(name) for name in ("db", "web", "far")),
    migratable("db", "node-a", spec=LIVE),
    vm_pod("db", "node-a"),
    migratable("web", "node-a"),
    vm_pod("web", "node-a", claims=[], labels={"app": "web"}),
    migratable("far", "node-b", spec=LIVE),
    vm_pod("far", "node-b", claims=["disk2"]),
    *storage("disk3"),
    pod("cms", node="node-b", claims=["disk3"]),
]
READ = [*CLUSTER, VERSION, BUDGET, longhorn_volume(), replica(), replica("node-b")]
TEXT = """\
A drain of node-a concerns 3 VMs and interrupts 1.

VM            NODE     STORAGE   EFFECT                       WHY
default/db    node-a   node-a    Migrates, then I/O pauses    to node-b; its share-manager follows it if it
                                                              migrates first
default/web   node-a   -         Blocks until somebody acts   PodDisruptionBudget web allows no eviction
default/far   node-b   node-a    I/O pauses                   its share-manager follows it

POD           NODE     EFFECT       WHY
default/cms   node-b   I/O pauses   its share-manager may start on any node

I/O pauses until the new share-manager runs, and then for at most 90 s, until all NFS clients are back. Before
1.9, KubeVirt may restart a VM whose I/O pauses for 30 s.
With evictionStrategy: LiveMigrate, KubeVirt would migrate default/web.

Order:
  kubectl cordon node-a
  virtctl migrate db -n default  # to node-b
  virtctl migrate web -n default  # to node-b
  kubectl drain node-a --ignore-daemonsets --delete-emptydir-data  # when the VMs have migrated
  kubectl uncordon node-a  # after the maintenance

In this order, a drain of node-a concerns 3 VMs and interrupts 0.
"""


def run(*arguments: Any) -> Result:
    return run_cli(*arguments, env={"COLUMNS": "110"})


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    return write_manifests(tmp_path, *READ)


def test_the_answer_is_a_table_and_the_order_of_a_drain(snapshot: Path) -> None:
    result = run("drain-check", "node-a", "--snapshot", snapshot)
    assert (result.exit_code, result.stdout) == (1, TEXT)
    for name in "node-x", "":  # "": an unset variable of a script
        unknown = run("drain-check", "node-a", name, "--snapshot", snapshot)
        words = f'Error: Node "{name}" not found; to list all: kubectl get nodes\n'
        assert (unknown.exit_code, unknown.stderr) == (2, words)


def test_the_json_has_the_same_rows_and_knows_fast_failover(snapshot: Path, tmp_path: Path) -> None:
    result = run("drain-check", "node-a", "--snapshot", snapshot, "-o", "json")
    found = json.loads(result.stdout)
    assert (found["nodes"], found["safe"], found["interrupted"]) == (["node-a"], False, 1)
    assert found["vms"][0] == {
        "namespace": "default",
        "name": "db",
        "node": "node-a",
        "storageNode": "node-a",
        "effects": ["Migrates", "IOPauses"],
        "text": "Migrates, then I/O pauses",
        "why": "to node-b; its share-manager follows it if it migrates first",
        "interrupted": False,
        "claims": ["disk1"],
        "targets": ["node-b"],
        "events": [
            {"effect": "Migrates", "step": 1, "may": False, "until": "", "untilStep": None, "why": "to node-b"},
            {
                "effect": "IOPauses",
                "step": 1,
                "may": False,
                "until": "",
                "untilStep": None,
                "why": "its share-manager follows it if it migrates first",
            },
        ],
        "after": "MayBeApart",
    }
    in_order = found["inOrder"]["vms"][0]
    assert (in_order["text"], in_order["after"]) == ("Migrates, then I/O pauses", "Together")
    assert found["vms"][1]["events"][0]["until"] == "somebody acts"
    assert found["order"][0] == {"command": "kubectl cordon node-a", "comment": ""}
    assert len(found["notes"]) == 2
    fast = API | {"metadata": {"name": "rwx-volume-fast-failover"}, "value": "true"}
    file = write_manifests(tmp_path, fast, name="setting.yaml")
    result = run("drain-check", "node-a", "--snapshot", snapshot, "--snapshot", file, "-o", "json")
    assert "at most 30 s" in json.loads(result.stdout)["notes"][0]


def test_a_node_without_vms_is_drained_at_once(tmp_path: Path) -> None:
    file = write_manifests(tmp_path, *READ, node("node-c"), longhorn_volume("vol-x"), replica("node-c", "vol-x"))
    result = run("drain-check", "node-c", "node-b", "--snapshot", file, "-o", "json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["text"]) == (1, "A drain of node-c, node-b concerns 1 VM and interrupts 0")
    assert found["obstacles"][1:] == [
        {
            "kind": "Volume",
            "name": "vol-x",
            "detail": "its last healthy replica is here: Longhorn blocks the drain (block-if-contains-last-replica)",
            "ends": False,
        }
    ]
    table = run("drain-check", "node-c", "--snapshot", file).stdout
    (refused,) = found["obstacles"][:1]
    assert refused["name"] == "default/cms"
    assert table.startswith("A drain of node-c concerns no VM.\n\nTHE DRAIN WAITS FOR   NAME    WHY\nVolume")


def test_without_a_right_the_answer_says_so_and_goes_on(server: ApiServer, tmp_path: Path) -> None:
    server.put(*CLUSTER, VERSION, BUDGET, replica())
    server.forbidden |= {("list", "poddisruptionbudgets"), ("list", "replicas")}
    result = run("drain-check", "node-a", "-o", "json", "--kubeconfig", server.kubeconfig(tmp_path))
    found = json.loads(result.stdout)
    missing = "poddisruptionbudgets, replicas.longhorn.io, volumes.longhorn.io"
    assert found["notes"][-1] == f"Nothing is known of these, maybe because you may not list them: {missing}"
    assert [vm["name"] for vm in found["vms"]] == ["db", "web", "far"]


def test_kubevirts_default_strategy_counts() -> None:
    spec = {"configuration": {"evictionStrategy": "LiveMigrate"}}
    kubevirt = {"kind": "KubeVirt", "metadata": {"name": "kubevirt", "namespace": "kubevirt"}, "spec": spec}
    assert site_of([], inventory(*READ, kubevirt), Settings()).strategy == "LiveMigrate"
    assert not site_of([], inventory(*READ), Settings()).strategy


def test_the_page_has_the_same_rows_for_each_node(snapshot: Path) -> None:
    page = run("report", "-A", "--snapshot", snapshot, "-o", "html").stdout
    found = re.search(r'<script type="application/json" id="report"[^>]*>(.*?)</script>', page)
    assert found
    shown = {each["name"]: each["drain"] for each in json.loads(found[1])["nodes"]}
    expected = json.loads(run("drain-check", "node-a", "--snapshot", snapshot, "-o", "json").stdout)
    assert shown["node-a"] == {key: expected[key] for key in shown["node-a"]}
    assert [vm["name"] for vm in shown["node-b"]["vms"]] == ["far"]
    part = run("report", "-n", "default", "--snapshot", snapshot, "-o", "html").stdout
    assert '"drain":' not in part
