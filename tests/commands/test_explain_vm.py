"""`explain vm`, `vmi` and `pod` find the VM in a live cluster or in a snapshot, and explain its next start."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import Result

from tests.support.builders import OPT_IN as OPT_IN_KEY
from tests.support.builders import Object, node, pinned_vm_pod, pod, storage
from tests.support.command_line import run_cli
from tests.support.command_line import write_manifests as snapshot
from tests.support.fake_api_server import ApiServer
from tests.support.fleet import installation, longhorn_volume, replica, vm, vm_pod, vmi, without_settings
from tests.support.migrations import migratable
from webhook.placement.wording import restart_advice
from webhook.reading.kubernetes_yaml import to_yaml

ABLE = {"labels": {"kubevirt.io/schedulable": "true"}}
SERVED = [*storage(), node("node-a", **ABLE), node("node-b", **ABLE), vm_pod("other", "node-a")]
OPT_IN = "Opt the VM in: kubevirt-scheduler opt-in vm1 -n default --yes, then r"
BACKUP = pod("backup", claims=["disk1"], node="node-b")
KEEPS = "The share-manager on node-a keeps running for"
KEPT = f"Its pod is then pinned to node-a. {KEEPS} VM default/other."
RESTART = f"Restart the VM: virtctl restart vm1 -n default. {KEPT}"
STOP_AND_START = restart_advice("default", "vm1", "Always")
SCENES: dict[str, tuple[list[Object], str, list[str], str]] = {
    "apart": (
        [vm(), vm_pod(node="node-b", decided="NodeFull")],
        "Apart, NodeFull: node-a serves claim disk1",
        ["pinned, CoScheduled: pinned to node-a, which serves claim disk1"],
        RESTART,
    ),
    "not opted in": (
        [vm(opt_in=False), vm_pod(node="node-b", opt_in=None)],
        "Apart, NotOptedIn: node-a serves claim disk1",
        [
            "✗ opted in: the VM is not opted in",
            "✓ not bound to a node yet",
            "unchanged, NotOptedIn: the VM is not opted in",
            "if eligible: pinned, CoScheduled: pinned to node-a, which serves claim disk1",
        ],
        OPT_IN + RESTART.removeprefix("R"),
    ),
    "data on another node": (
        [vm(), vm_pod(), longhorn_volume(), replica("node-b")],
        "Together, CoScheduled: node-a serves claim disk1 (dataLocality: best-effort, remote)",
        [],
        "No action needed.",
    ),
    "paused and migrating": (
        [vm(), vmi(paused=True), vm_pod(), vm_pod(suffix="new", node="node-b", created="2026-09-01T12:00:00Z")],
        "Together (paused, migrating), CoScheduled: node-a serves claim disk1",
        [],
        "No action needed.",
    ),
    "a VMI without a VM": (
        [migratable(conditions=[]), vm_pod(node="node-b")],
        "Apart, NotReviewed: node-a serves claim disk1",
        ["decision at creation: none (no annotation)"],
        f"Delete the VMI, and create it again unless a controller does: kubectl delete vmi vm1 -n default. {KEPT}",
    ),
    "a pin that can not hold": (
        [vm(), pinned_vm_pod(node="node-b")],
        "Waiting, ShareManagerMoved: node-a serves claim disk1",
        ["the scheduler reports:"],
        f"Pinned to node-b, but node-b no longer runs the share-manager, which is now on node-a; {STOP_AND_START}.",
    ),
}


@pytest.fixture
def server(server: ApiServer) -> ApiServer:
    """A cluster with an installed webhook."""
    server.put(*installation())
    return server


def run_explain(*arguments: Any, stdin: str = "") -> Result:
    return run_cli("explain", *arguments, env={"COLUMNS": "120"}, stdin=stdin)


def lines_of(result: Result) -> list[str]:
    assert (result.exit_code, without_settings(result.stderr)) == (0, "")
    return [line.strip() for line in result.stdout.splitlines()]


def advice_of(lines: list[str]) -> str:
    return " ".join(lines[lines.index("What to do") + 1 :])


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_a_vm_is_explained_alike_from_a_snapshot_a_live_cluster_and_its_pod(
    server: ApiServer, tmp_path: Path, scene: tuple[list[Object], str, list[str], str]
) -> None:
    items, state, shown, advice = scene
    file = snapshot(tmp_path, *SERVED, *items)
    lines = lines_of(run_explain("vm", "vm1", "--snapshot", file))
    assert lines[0] == "default/vm1"
    assert lines[lines.index("Does the webhook handle the new pod?") - 3] == state
    assert [line for line in shown if line not in lines] == []
    assert advice_of(lines) == advice
    server.put(*SERVED, *items)
    assert lines_of(run_explain("vm/vm1", "--kubeconfig", server.kubeconfig(tmp_path))) == lines
    # The pods that use a volume cost no list beside that of the node guard.
    pods = [request for request in server.requests if request.plural == "pods"]
    assert [each.path for each in pods if "labelSelector" not in each.query] == ["/api/v1/pods"]
    if len(items) == 2 and items[1]["kind"] == "Pod":
        assert lines_of(run_explain("-f", "-", "--snapshot", file, stdin=to_yaml(items[1]))) == lines


def test_a_share_manager_that_only_this_vm_uses_stops_with_it(tmp_path: Path) -> None:
    *alone, _ = SERVED
    lines = lines_of(run_explain("vm", "vm1", "--snapshot", snapshot(tmp_path, *alone, vm(), vm_pod(node="node-b"))))
    assert "pod virt-launcher-vm1-abcde: Running, on node-b" in lines
    assert "below, the VM has stopped, and with it the share-managers that only this VM uses" in lines
    assert lines[lines.index("Decision") + 1].startswith("unchanged, ColdStart: ")


OBSERVING = installation({"CO_SCHEDULE_ACTION": "observe"})


@pytest.mark.parametrize("objects", [[], installation(called=False), OBSERVING], ids=["none", "not called", "observes"])
def test_a_webhook_that_changes_no_pod_only_would_decide(tmp_path: Path, objects: list[Object]) -> None:
    with ApiServer() as server:
        server.put(
            *SERVED, *SCENES["apart"][0], vm("vm2", opt_in=False), vm_pod("vm2", "node-b", opt_in=None), *objects
        )
        live = "--kubeconfig", server.kubeconfig(tmp_path)
        decided = {name: run_explain("vm", name, *live).stdout.partition("Decision\n")[2] for name in ("vm1", "vm2")}
    pinned = "pinned, CoScheduled: pinned to node-a, which serves claim disk1\n"
    assert decided["vm1"].startswith(f"  the webhook would decide: {pinned}")
    assert (f"  the webhook would decide: if eligible: {pinned}" in decided["vm2"]) is (objects is not OBSERVING)


def test_all_names_of_a_running_vm_give_the_same_explanation(server: ApiServer, tmp_path: Path) -> None:
    items = [*SERVED, vm(), vmi(), vm_pod(node="node-b")]
    server.put(*items)
    file, kubeconfig = snapshot(tmp_path, *items), server.kubeconfig(tmp_path)
    expected = lines_of(run_explain("vm", "vm1", "--snapshot", file))
    for words in ("vm/vm1", "VM/vm1", "vmi vm1", "vmi/vm1", "pod virt-launcher-vm1-abcde"):
        for source in (["--snapshot", file], ["--kubeconfig", kubeconfig]):
            assert lines_of(run_explain(*words.split(), *source)) == expected


@pytest.mark.parametrize("words", ["vm", "vm a b", "pv/a", "vm/", "vm/a/b", "", "vm vm1 -f pod.yaml"])
def test_a_wrong_subject_is_rejected_with_the_right_forms(words: str) -> None:
    result = run_explain(*words.split())
    assert result.exit_code == 2
    forms = "specify either -f FILE or one of: vm NAME, vmi NAME, pod NAME, pvc NAME, node NAME, vm/NAME"
    assert forms in result.stderr


NOT_FOUND = 'not found in namespace "default"; to list all: kubectl get'


def test_a_claim_is_explained_with_its_node_and_its_users(tmp_path: Path) -> None:
    objects = [*SERVED, BACKUP, vm(), vm_pod(node="node-b", decided="NodeFull")]
    (shown,) = msgspec.json.decode(
        run_explain("pvc/disk1", "-A", "-o", "json", "--snapshot", snapshot(tmp_path, *objects)).stdout
    )
    lines = [finding["text"] for step in shown["steps"] for finding in step["findings"]]
    assert lines[0] == "claim disk1 → PV pvc-disk1 → volume vol-disk1"
    assert lines[-4:] == [
        "served by node-a (source: share-manager-pod)",
        "VM default/other on node-a, Together: node-a serves claim disk1",
        "VM default/vm1 on node-b, Apart: node-a serves claim disk1",
        "pod default/backup",
    ]
    assert shown["advice"] == ["VM default/vm1: restart"]
    (unused,) = msgspec.json.decode(
        run_explain("pvc", "disk1", "-A", "-o", "json", "--snapshot", snapshot(tmp_path, *storage()[:2])).stdout
    )
    assert unused["steps"][1]["findings"][0]["text"] == "none"
    assert unused["advice"] == ["No action needed: the share-manager starts after the VM."]


def test_a_node_is_explained_with_its_vms_and_those_that_it_serves(tmp_path: Path) -> None:
    cordoned = node("node-a", unschedulable=True, taints=[{"key": "team", "effect": "NoSchedule"}], **ABLE)
    objects = [*storage(), cordoned, node("node-b", **ABLE), vm_pod("other", "node-a"), vm(), vm_pod(node="node-b")]
    result = run_explain("node", "node-a", "--snapshot", snapshot(tmp_path, *objects))
    for line in (
        "  ✗ not cordoned",
        "  taint team:NoSchedule",
        "  share-managers: 1",
        "  VM default/other on node-a, Together: node-a serves claim disk1",
        "  VM default/vm1 on node-b, Apart: node-a serves claim disk1",
        "  Before a drain: kubevirt-scheduler drain-check node-a",
    ):
        assert line in result.stdout.splitlines()


@pytest.mark.parametrize(("kind", "name"), [("vm", "VirtualMachine"), ("pod", "Pod"), ("pvc", "PersistentVolumeClaim")])
def test_a_missing_object_is_an_error(server: ApiServer, tmp_path: Path, kind: str, name: str) -> None:
    server.put(*SERVED, vm("off"))
    for source in (
        ["--kubeconfig", server.kubeconfig(tmp_path)],
        ["--snapshot", snapshot(tmp_path, *SERVED, vm("off"))],
    ):
        result = run_explain(kind, "gone", "-n", "default", *source)
        problem = f'Error: {name} "gone" {NOT_FOUND} {kind} -n default\n'
        assert (result.exit_code, result.stdout, result.stderr) == (2, "", problem)


@pytest.mark.parametrize("pod_name", ["", "virt-launcher-vm1-abcde"], ids=["vm", "pod"])
def test_an_object_is_found_in_any_namespace_and_several_are_listed(
    server: ApiServer, tmp_path: Path, pod_name: str
) -> None:
    words = ["pod", pod_name] if pod_name else ["vm", "vm1"]
    shop = [vm(), vm_pod()]
    for item in shop:
        item["metadata"]["namespace"] = "shop"
    server.put(*SERVED, *shop)
    live = ["-A", "--kubeconfig", server.kubeconfig(tmp_path)]
    for source in (live, ["--snapshot", snapshot(tmp_path, *SERVED, *shop)]):
        assert lines_of(run_explain(*words, *source))[0] == "shop/vm1"
    server.put(vm(), vm_pod())
    problem = f'{words[0]} "{words[1]}" found in several namespaces; specify one: -n default, -n shop'
    for source in (live, ["--snapshot", snapshot(tmp_path, *SERVED, *shop, vm(), vm_pod())]):
        result = run_explain(*words, *source)
        assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"Error: {problem}\n")
    assert "-A cannot be combined with -n or names" in run_explain(*words, *live, "-n", "shop").stderr


def test_a_share_manager_pod_is_explained_by_its_name_with_its_consumers(server: ApiServer, tmp_path: Path) -> None:
    server.put(*SERVED)
    words = ["pod", "share-manager-vol-disk1", "-n", "longhorn-system"]
    for source in (["--kubeconfig", server.kubeconfig(tmp_path)], ["--snapshot", snapshot(tmp_path, *SERVED)]):
        lines = lines_of(run_explain(*words, *source))
        assert lines[:3] == ["longhorn-system/share-manager-vol-disk1", "", "Where is the pod?"]
        assert "✓ not bound to a node yet" in lines
        assert "preferred, CoScheduled: prefers node-a, which runs 1 VM of this volume" in lines
    web = [pod(f"web-{node}", claims=["disk1"], node=node, annotations={OPT_IN_KEY: "true"}) for node in ("b", "c")]
    lines = lines_of(run_explain(*words, "--snapshot", snapshot(tmp_path, *storage(), *web, BACKUP)))
    assert lines[lines.index("Which pods use the volume?") :][:5] == [
        "Which pods use the volume?",
        "volume vol-disk1 → PV pvc-disk1 → claim default/disk1",
        "✗ default/backup: on node-b; no vote: the pod must be opted in, bound, and Pending or Running",
        "✓ default/web-b: on b",
        "✓ default/web-c: on c",
    ]
    assert "preferred, CoScheduled: prefers b, which runs 1 pod of this volume" in lines
    lines = lines_of(run_explain(*words, "--snapshot", snapshot(tmp_path, *SERVED, *web)))
    assert "✓ default/virt-launcher-other-abcde: on node-a" in lines
    assert "✗ default/web-b: on b; no vote: VMs decide" in lines


def test_a_pod_that_is_piped_in_needs_no_vm(server: ApiServer, tmp_path: Path) -> None:
    server.missing |= {"virtualmachines", "virtualmachineinstances"}
    launcher = vm_pod(node="node-b")
    server.put(*SERVED, launcher)
    piped = run_explain("-f", "-", "--kubeconfig", server.kubeconfig(tmp_path), stdin=to_yaml(launcher))
    assert "Apart, NotReviewed: node-a serves claim disk1" in lines_of(piped)
    finished = to_yaml(vm_pod(phase="Succeeded"))
    piped = run_explain("-f", "-", "--snapshot", snapshot(tmp_path, *SERVED), stdin=finished)
    assert "Stopped, CoScheduled: node-a serves claim disk1" in lines_of(piped)


def test_a_vm_whose_next_pod_is_unknown_is_explained_without_steps(tmp_path: Path) -> None:
    broken = vm(domain={"memory": {"guest": "a lot"}})
    lines = lines_of(run_explain("vm", "vm1", "--snapshot", snapshot(tmp_path, *SERVED, broken)))
    assert advice_of(lines) == "The next start is unknown: a field of the VM or of its pod is malformed."
    assert not {"Does the webhook handle the new pod?", "Decision"} & set(lines)


def test_json_and_yaml_hold_the_status_the_steps_and_the_decisions(tmp_path: Path) -> None:
    file = snapshot(tmp_path, *SERVED, *SCENES["not opted in"][0])
    result = run_explain("vm", "vm1", "--snapshot", file, "-o", "json")
    (found,) = msgspec.json.decode(result.stdout)
    assert found["name"] == "default/vm1"
    assert (found["vm"]["state"], found["vm"]["storageNode"]) == ("Apart", "node-a")
    titles = [step["title"] for step in found["steps"]]
    assert titles[:2] == ["Where is the VM?", "Does the webhook handle the new pod?"]
    refused = [finding for step in found["steps"] for finding in step["findings"] if finding["holds"] is False]
    assert refused == [{"text": "opted in: the VM is not opted in", "holds": False, "decisive": True}]
    assert (found["decision"]["reason"], found["ifEligible"]["outcome"]) == ("NotOptedIn", "pinned")
    assert (found["patch"], found["warnings"]) == (None, [])
    assert found["advice"] == [SCENES["not opted in"][3]]
    assert yaml.safe_load(run_explain("vm", "vm1", "--snapshot", file, "-o", "yaml").stdout) == [found]
    created = to_yaml(vm_pod(node="", created=""))
    (found,) = msgspec.json.decode(run_explain("-f", "-", "--snapshot", file, "-o", "json", stdin=created).stdout)
    assert (found["vm"], found["ifEligible"], found["decision"]["outcome"]) == (None, None, "pinned")
    assert found["patch"]
