"""`report` lists the VMs of a snapshot or of a live cluster, with a summary and the nodes."""

import re
import unicodedata
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import Result

from tests.support.builders import OPT_IN, Object, labeled_namespace, node, pod, storage
from tests.support.command_line import run_cli, write_manifests
from tests.support.fake_api_server import ApiServer, error_response, forbidden, status
from tests.support.fleet import installation, longhorn_volume, replica, vm, vm_pod, vmi
from tests.support.migrations import migratable
from tests.support.paths import ROOT
from webhook.commands.label_selector import parse_selector
from webhook.commands.report.command import MAX_DRAINS
from webhook.placement.objects.selectors import labels_match

ALLOCATABLE = {"cpu": "4", "memory": "8Gi", "pods": "110"}
FLEET = [
    *storage("disk1", "node-a"),
    *storage("disk2", "node-b"),
    node("node-a", allocatable=ALLOCATABLE),
    node("node-b", allocatable=ALLOCATABLE),
    *(migratable(name, conditions=[]) for name in ("apart", "foreign")),
    vm("apart") | {"metadata": {"name": "apart", "namespace": "default", "labels": {"app": "db", "tier": "gold"}}},
    vm_pod("apart", "node-b", decided="NodeFull", requests={"cpu": "1", "memory": "2Gi"}),
    vm("foreign", opt_in=False),
    vm_pod("foreign", "node-b", opt_in=None),
    vm("together"),
    vmi("together", paused=True),
    vm_pod("together", "node-b", claims=["disk2"], decided="CoScheduled"),
    vm("off"),
    vm_pod("of-no-vmi", claims=["disk3"]),  # as anybody can create it
]


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    return write_manifests(tmp_path, *FLEET)


@pytest.fixture
def server(server: ApiServer) -> ApiServer:
    """A cluster with an installed webhook."""
    server.put(*installation())
    return server


def run_report(*arguments: Any) -> Result:
    return run_cli("report", *arguments, env={"COLUMNS": None})


def report_on(*arguments: Any) -> Any:
    result = run_report(*arguments, "-o", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    return msgspec.json.decode(result.stdout)


def names(report: Any) -> list[str]:
    return [vm["name"] for vm in report["vms"]]


ROWS = [
    ["default", "apart", "Apart", "node-b", "node-a", "restart"],
    ["default", "foreign", "Apart", "node-b", "node-a", "opt in, then restart"],
    ["default", "off", "Stopped", "-", "-", "-"],
    ["default", "together", "Together", "node-b", "node-b", "-"],
]
NODE_ROWS = [
    ["node-a", "Ready", "0", "0", "1", "0%", "0%", "2%"],
    ["node-b", "Ready", "3", "2", "1", "25%", "25%", "4%"],
]


def rows_of(result: Result) -> list[list[str]]:
    assert (result.exit_code, result.stderr) == (0, "")
    return [re.split(r" {3,}", line) for line in result.stdout.splitlines()]


def test_the_table_lists_vms_and_a_summary_and_another_one_nodes(snapshot: Path) -> None:
    heads, *rows, empty, first, second = rows_of(run_report("--snapshot", snapshot))
    assert heads == ["NAMESPACE", "VM", "STATE", "NODE", "STORAGE", "WHAT TO DO"]
    assert rows == ROWS
    helped = "2 of 2 would be together after a restart (1 only after opt-in)"
    assert [empty, f"{first[0]} {second[0]}"] == [[""], f"4 VMs: 1 together, 2 apart, 1 stopped; {helped}"]
    in_one = rows_of(run_report("--snapshot", snapshot, "-n", "default"))
    assert in_one[1:5] == [row[1:] for row in ROWS]
    nodes = rows_of(run_report("nodes", "--snapshot", snapshot))
    assert nodes == [["NODE", "STATUS", "VMS", "APART", "SHARE-MANAGERS", "CPU", "MEMORY", "PODS"], *NODE_ROWS]


def test_names_choose_vms_and_nodes(snapshot: Path) -> None:
    options = "--snapshot", snapshot, "-n", "default", "--no-headers"
    assert rows_of(run_report("off", "apart", *options)) == [row[1:] for row in ROWS if row[1] in ("apart", "off")]
    assert rows_of(run_report("vms", "off", *options)) == [row[1:] for row in ROWS if row[1] == "off"]
    assert rows_of(run_report("nodes", "node-b", "--snapshot", snapshot))[1:] == [NODE_ROWS[1]]
    for arguments, problem in (
        (["of", *options], 'VirtualMachine "of" not found in namespace "default"; did you mean "off"?'),
        (["nodes", "node-z", "--snapshot", snapshot], 'Node "node-z" not found; did you mean '),
        (["off", "-A", "--snapshot", snapshot], "-A cannot be combined with -n or names"),
    ):
        result = run_report(*arguments)
        assert (result.exit_code, problem in result.stderr) == (2, True), result.stderr


def test_the_wide_table_has_one_line_per_vm_with_claims_reasons_and_predictions(snapshot: Path) -> None:
    heads, *rows = rows_of(run_report("--snapshot", snapshot, "-o", "wide"))
    assert heads[1:8] == ["VM", "STATE", "WHAT TO DO", "NODE", "STORAGE", "OPT-IN", "CLAIM"]
    assert rows[0][2:9] == ["Apart", "restart", "node-b", "node-a", "yes", "disk1", "NodeFull"]
    assert (rows[1][3], rows[1][-1]) == ("opt in, then restart", "anywhere; if opted in: pinned to node-a")
    assert rows[3][2:4] == ["Together (paused)", "-"]
    assert (len(rows), rows[4]) == (7, [""])
    broken = write_manifests(snapshot.parent, vm("broken", domain={"memory": {"guest": "a lot"}}))
    _, row, *_ = rows_of(run_report("--snapshot", broken, "-o", "wide"))
    assert (row[2], row[7:9]) == ("Stopped", ["-", "-"])


UNKNOWN = "no right to list volumes.longhorn.io and replicas.longhorn.io, or a file without them"
# What Longhorn says about the volumes of two VMs that are apart and one that is together: cells, and the summary.
DATA: dict[str, tuple[list[Object], list[str], str]] = {
    "a replica beside one of two share-managers": (
        [
            *(longhorn_volume("vol-disk1", "disabled"), replica("node-b", "vol-disk1")),
            replica("node-a", "vol-disk1", healthyAt=""),
            *(longhorn_volume("vol-disk2"), replica("node-b", "vol-disk2")),
        ],
        ["remote", "remote", "-", "local"],
        "data of the volumes: 1 local, 2 remote",
    ),
    "no right to list replicas": (
        [longhorn_volume("vol-disk1", "strict-local"), longhorn_volume("vol-disk2", "")],
        ["-", "-", "-", "-"],
        f"data of the volumes: unknown for 3 ({UNKNOWN})",
    ),
    "no right to list volumes": (
        [replica("node-a", "vol-disk1")],
        ["-", "-", "-", "-"],
        f"data of the volumes: unknown for 3 ({UNKNOWN})",
    ),
}


@pytest.mark.parametrize("scene", DATA.values(), ids=DATA)
def test_the_wide_table_says_whether_the_data_is_beside_the_server(
    tmp_path: Path, scene: tuple[list[Object], list[str], str]
) -> None:
    items, cells, summary = scene
    snapshot = write_manifests(tmp_path, *FLEET, *items)
    heads, *rows = rows_of(run_report("--snapshot", snapshot, "-o", "wide"))
    assert [row[heads.index("DATA")] for row in rows[:4]] == cells
    assert rows[-1] == [summary]
    assert summary not in run_report("--snapshot", snapshot).stdout


def test_opted_in_pods_that_are_no_vms_are_counted_together_and_apart(tmp_path: Path) -> None:
    opted_in = {"annotations": {OPT_IN: "true"}}
    pods = [
        pod("web-0", claims=["disk1"], node="node-a", labels={"app": "web"}, **opted_in),
        pod("web-1", claims=["disk1"], node="node-b", labels={"app": "web"}, **opted_in),
        pod("cron", claims=["disk2"], node="node-a", namespace="other", **opted_in),
        pod("backup", claims=["disk1"], node="node-b"),
    ]
    snapshot = write_manifests(tmp_path, *FLEET, *pods)
    assert "workloads" not in report_on("--snapshot", snapshot)
    report = report_on("--snapshot", snapshot, "--workloads")
    text = "opted-in pods that are no VMs: 1 together, 1 apart"
    assert report["summary"]["workloads"] == {"together": 1, "apart": 1, "unserved": 0, "text": text}
    keys = ("namespace", "name", "node", "storageNode", "claim", "state")
    assert [tuple(each[key] for key in keys) for each in report["workloads"]] == [
        ("default", "web-0", "node-a", "node-a", "disk1", "Together"),
        ("default", "web-1", "node-b", "node-a", "disk1", "Apart"),
    ]
    assert run_report("--snapshot", snapshot, "--workloads").stdout.splitlines()[-1] == text
    none = run_report("--snapshot", snapshot, "--workloads", "-l", "app=none").stdout.splitlines()[-1]
    assert none == "opted-in pods that are no VMs: none"


@pytest.mark.parametrize(
    ("arguments", "column"),
    [
        (["--sort-by", "state"], ["apart", "foreign", "off", "together"]),
        (["--sort-by", "storage"], ["off", "apart", "foreign", "together"]),
        (["nodes", "--sort-by", "vms"], ["node-b", "node-a"]),
        (["--apart", "-o", "name"], ["virtualmachine.kubevirt.io/apart", "virtualmachine.kubevirt.io/foreign"]),
        (["nodes", "-o", "name", "--sort-by", "cpu"], ["node/node-b", "node/node-a"]),
    ],
)
def test_programs_get_sorted_rows_and_names(snapshot: Path, arguments: list[str], column: list[str]) -> None:
    rows = rows_of(run_report("--snapshot", snapshot, "-n", "default", "--no-headers", *arguments))
    assert [row[0] for row in rows] == column


def test_json_and_yaml_have_the_documented_keys_and_apart_shortens_only_the_list(snapshot: Path) -> None:
    report = report_on("--snapshot", snapshot)
    assert report["vms"][1] == {
        "namespace": "default",
        "name": "foreign",
        "kind": "VirtualMachine",
        "optedIn": False,
        "optedInBy": None,
        "optInPending": False,
        "optedOut": False,
        "excludedBy": None,
        "node": "node-b",
        "storageNode": "node-a",
        "claim": "disk1",
        "data": {"locality": None, "local": None, "text": ""},
        "outage": None,
        "state": "Apart",
        "reason": "NotOptedIn",
        "paused": False,
        "migrating": False,
        "ifStarted": {
            "outcome": "pinned",
            "reason": "CoScheduled",
            "node": "node-a",
            "stoppedBy": "NotOptedIn",
            "cold": False,
            "otherUsers": [{"kind": "VirtualMachineInstance", "namespace": "default", "name": "apart"}],
            "future": "anywhere",
            "together": True,
            "stopFirst": False,
            "text": "anywhere; if opted in: pinned to node-a",
        },
        "nextStep": "opt in, then restart",
        "advice": "Opt the VM in: kubevirt-scheduler opt-in foreign -n default --yes, then restart the VM: "
        "virtctl restart foreign -n default. Its pod is then pinned to node-a. The share-manager on node-a "
        "keeps running for VM default/apart.",
        "commands": ["kubevirt-scheduler opt-in foreign -n default --yes", "virtctl restart foreign -n default"],
        "plan": {
            "action": "restart",
            "reason": "NotLiveMigratable",
            "detail": "no VMI with the condition LiveMigratable",
            "gainBytes": 0,
        },
        "traffic": None,
        "nfs": {"cached": [], "exposed": False, "canLeave": [], "text": ""},
    }
    assert report["nodes"][1] == {
        "name": "node-b",
        "ready": True,
        "cordoned": False,
        "vms": 3,
        "states": {"together": 1, "apart": 2, "unserved": 0, "waiting": 0, "stopped": 0, "notConcerned": 0},
        "shareManagers": 1,
        "requested": {"cpu": 0.25, "memory": 0.25, "pods": 0.0364},
    }
    states = {"together": 1, "apart": 2, "unserved": 0, "waiting": 0, "stopped": 1, "notConcerned": 0}
    after = {"togetherAfterRestart": 2, "togetherAfterRestartNotOptedIn": 1, "togetherAfterRecolocate": 0}
    nfs = {"exposed": 0, "canLeave": 0, "text": ""}
    assert report["summary"].pop("text").startswith("4 VMs: 1 together, 2 apart, 1 stopped; 2 of 2 would be")
    assert report["summary"].pop("data")["unknown"] == 3
    outages = {"vms": 0, "text": ""}
    assert report["summary"] == {"vms": 4} | states | after | {"traffic": None, "nfs": nfs, "outages": outages}
    assert yaml.safe_load(run_report("--snapshot", snapshot, "-o", "yaml").stdout)["nodes"] == report["nodes"]
    only_apart = report_on("--snapshot", snapshot, "--apart")
    assert (names(only_apart), only_apart["summary"]["vms"]) == (["apart", "foreign"], 4)


def test_namespace_and_selector_choose_the_vms(snapshot: Path) -> None:
    assert names(report_on("--snapshot", snapshot, "-n", "default", "-l", "app=db,tier in (gold, silver)")) == ["apart"]
    assert names(report_on("--snapshot", snapshot, "-A", "-l", "!app")) == ["foreign", "off", "together"]
    result = run_report("--snapshot", snapshot, "-n", "other")
    assert result.stdout.splitlines() == ["0 VMs"]
    assert result.stderr == "No VM found in namespace other. To select all namespaces, add -A\n"
    known = write_manifests(
        snapshot.parent, *(labeled_namespace(name) for name in ("default", "other")), name="ns.yaml"
    )
    wrong = run_report("--snapshot", snapshot, "--snapshot", known, "-n", "defaultx", "--fail-on", "apart")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert 'Error: namespace "defaultx" not found; did you mean "default"?' in wrong.stderr
    empty = run_report("--snapshot", snapshot, "--snapshot", known, "-n", "other")
    assert (empty.exit_code, "No VM found in namespace other" in empty.stderr) == (0, True)
    labeled = run_report("--snapshot", snapshot, "-n", "default", "-l", "app=none").stderr
    assert labeled == "No VM with these labels found in namespace default. To select all namespaces, add -A\n"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 0, ""),
        (["--fail-on", "apart"], 1, ""),
        (["--fail-on", "apart", "-l", "app=none"], 0, ""),
        (["-A", "-n", "shop"], 2, "-A cannot be combined with -n or names"),
        (["nodes", "--apart"], 2, "--apart selects VMs, but `report nodes` lists nodes; see --sort-by apart"),
        (["--sort-by", "cpu"], 2, "--sort-by of vms is one of: name, state, node, storage"),
        (["-l", "a=b=c"], 2, "invalid label selector 'a=b=c'"),
    ],
)
def test_the_exit_status_reports_vms_that_are_apart_and_contradictory_options(
    snapshot: Path, arguments: list[str], status: int, message: str
) -> None:
    result = run_report("--snapshot", snapshot, *arguments)
    assert (result.exit_code, message in result.stderr) == (status, True)


def test_a_live_cluster_is_read_in_lists_and_never_per_vm(server: ApiServer, tmp_path: Path) -> None:
    server.put(*FLEET)
    report = report_on("--kubeconfig", server.kubeconfig(tmp_path))
    assert names(report) == ["apart", "foreign", "off", "together"]
    lists = [request for request in server.requests if request.verb == "list"]
    assert [request.plural for request in server.requests if request not in lists] == ["services"]
    assert all(request.query["limit"] for request in lists)
    assert len(lists) == 32  # one page of each kind, and three for the webhook
    server.forbidden.add(("list", "virtualmachines"))
    refused = run_report("-A", "--kubeconfig", server.kubeconfig(tmp_path))
    assert (refused.exit_code, "403: virtualmachines is forbidden" in refused.stderr) == (2, True)
    server.forbidden.clear()
    server.put(node("broken", allocatable={"cpu": "a lot"}))
    server.missing |= {"virtualmachines", "virtualmachineinstances", "sharemanagers"}
    result = run_report("--kubeconfig", server.kubeconfig(tmp_path))
    assert result.exit_code == 0
    assert (
        result.stderr
        == "Warning: Node broken: status.allocatable.cpu: expected a quantity, such as 500m or 4Gi; ignored\n"
    )


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ("app=db", True),
        ("app==db", True),
        ("app=web", False),
        ("app!=web", True),
        ("app", True),
        ("!app", False),
        ("example.com/tier in (gold, silver)", True),
        ("example.com/tier notin (gold),app=db", False),
        ("empty=", True),
    ],
)
def test_a_selector_selects_like_kubectl(selector: str, selected: bool) -> None:
    labels = {"app": "db", "example.com/tier": "gold", "empty": ""}
    assert labels_match(parse_selector(selector), labels) is selected


@pytest.mark.parametrize("output", ["table", "wide", "name"])
def test_control_characters_of_a_name_are_replaced(tmp_path: Path, output: str) -> None:
    file = write_manifests(tmp_path, vm("a\x07\nb"))
    assert "a\ufffd\ufffdb" in run_report("--snapshot", file, "-o", output).stdout


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (forbidden("list", "nodes"), 'cannot list resource "nodes"'),
        (forbidden("list", "nodes"), "docs/reference/rights.md lists the rights of each command"),
        (status(401, "Unauthorized"), "renew the token or the client certificate of the kubeconfig's user"),
    ],
)
def test_a_refused_request_says_what_to_do(server: ApiServer, tmp_path: Path, response: Object, words: str) -> None:
    server.script("list", "nodes", error_response(response))
    result = run_report("-A", "--kubeconfig", server.kubeconfig(tmp_path))
    assert (result.exit_code, words in result.stderr) == (2, True), result.stderr


def test_files_that_do_not_describe_their_cluster_are_its_source(snapshot: Path) -> None:
    found = report_on("--snapshot", snapshot)
    assert re.fullmatch(rf"{snapshot} \(\d{{4}}-\d\d-\d\d \d\d:\d\d UTC\)", found["source"])
    assert (found["cluster"], found["time"], found["warnings"]) == (None, None, [])


def test_a_page_has_drains_as_long_as_it_shows_nodes_as_boxes(tmp_path: Path) -> None:
    """Those of 100 nodes took 0.9 s of CPU time at each refresh, and no box showed them."""
    script = ROOT.joinpath("webhook", "commands", "report", "matrix.js").read_text()
    assert re.findall(r"MANY_NODES = (\d+)", script) == [str(MAX_DRAINS)]
    for number, shown in ((MAX_DRAINS, True), (MAX_DRAINS + 1, False)):
        nodes = [node(f"node-{index}") for index in range(number)]
        page = run_report("-A", "-o", "html", "--snapshot", write_manifests(tmp_path, *storage(), *nodes)).stdout
        assert ("A drain of node-0 concerns no VM" in page) is shown


def test_a_vm_whose_opt_in_has_a_mistake_is_named_and_opt_in_corrects_it(server: ApiServer, tmp_path: Path) -> None:
    misplaced = vm("vm2", opt_in=False)
    misplaced["metadata"]["annotations"] = {OPT_IN: "true"}
    server.put(vm(annotations={OPT_IN: "yes"}), misplaced)
    options = "-n", "default", "--kubeconfig", server.kubeconfig(tmp_path)
    named = run_report(*options).stderr
    place = "spec.template.metadata.annotations"
    assert (
        f"Warning: VM default/vm1: {place} has {OPT_IN}: 'yes'; write {place}: {OPT_IN}: \"true\", and 1 more" in named
    )
    assert run_cli("opt-in", *options, "--yes").exit_code == 0
    assert "Warning: VM" not in run_report(*options).stderr


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_control_characters_are_escaped_for_programs(tmp_path: Path, output: str) -> None:
    file = write_manifests(tmp_path, vm("a\x9b\x85\x7fb"))
    printed = run_report("--snapshot", file, "-o", output).stdout
    assert not any(unicodedata.category(char) == "Cc" for char in printed if char != "\n")
    assert yaml.safe_load(printed)["vms"][0]["name"] == "a\x9b\x85\x7fb"


def test_a_node_without_a_ready_condition_is_not_called_not_ready(tmp_path: Path) -> None:
    file = write_manifests(tmp_path, *storage(), node(ready=None), node("node-b", ready="False"), vm(), vm_pod())
    _, *nodes = rows_of(run_report("nodes", "--snapshot", file))
    assert [row[1] for row in nodes] == ["Unknown", "NotReady"]
    assert "NotReady" not in run_report("--snapshot", file).stdout
