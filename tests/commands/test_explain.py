"""`explain` prints each step of a decision, and the steps agree with the decision of `inject`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from tests.support import paths
from tests.support.builders import (
    Object,
    catalog,
    claim,
    injection_for,
    name_requirement,
    node,
    node_terms,
    pinned_fields,
    pinned_vm_pod,
    pod,
    preferring_fields,
    request,
    share_manager,
    share_manager_pod,
    storage,
    virt_launcher,
    virtual_machine,
    volume,
)
from tests.support.fake_api_server import ApiServer
from tests.support.fleet import installation, without_settings
from webhook.cli import commands
from webhook.commands.explain.explanation import explain_request
from webhook.placement.guard.feasibility import CHECKS
from webhook.placement.reasons import COLD_REASONS, Reason
from webhook.placement.settings import Action, MigrationTargets, Settings
from webhook.placement.wording import ADVICE, SENTENCES, restart_advice
from webhook.reading.kubernetes_yaml import documents, to_yaml

CASES = sorted(paths.CASES.iterdir())
QUESTIONS = {check.reason: check.question for check in CHECKS}
ALLOCATABLE = {"cpu": "4", "memory": "8Gi", "pods": "110"}


def run_explain(*arguments: Any, **options: Any) -> Result:
    result = CliRunner().invoke(commands, ["explain", *map(str, arguments)], **options)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def explained(received: Object, *manifests: Object, **overrides: Any) -> list[str]:
    """The lines that `explain` prints for a new pod, each after its mark."""
    store, chosen = catalog(*manifests), Settings(**overrides)
    found = explain_request("name", request(received, received["metadata"]["namespace"]), store, chosen)
    return [f"{line.mark} {line.words}".strip() for line in found.lines]


def write_yaml(folder: Path, *contents: Any, name: str = "pod.yaml") -> Path:
    path = folder / name
    path.write_text("---\n".join(map(to_yaml, contents)))
    return path


def test_explain_prints_all_steps_of_a_vm_pod_in_order(tmp_path: Path) -> None:
    vm = virt_launcher("vm", requests={"cpu": "500m", "memory": "1536Mi"})
    cluster = [*storage(), share_manager(), node(allocatable=ALLOCATABLE)]
    result = run_explain(
        "-f", write_yaml(tmp_path, vm), "--snapshot", write_yaml(tmp_path, *cluster, name="cluster.yaml")
    )
    assert (result.exit_code, without_settings(result.stderr)) == (0, "")
    assert (
        result.stdout
        == """\
default/vm

Does the webhook handle the pod?
  ✓ the request creates a pod
  · share-manager pod: no
  ✓ virt-launcher pod
  ✓ created by KubeVirt's controller
  ✓ opted in: by its annotation
  ✓ not a live-migration target
  ✓ not a dummy pod that only provisions a claim
  ✓ not bound to a node yet
  ✓ mounts a claim
  ✓ without the webhook's terms

Which nodes serve the claims?
  · claim disk1 → PV pvc-disk1 → volume vol-disk1
    · share-manager pod share-manager-vol-disk1: on node-a
    · ShareManager: running, owned by node-a
    ✓ served by node-a (source: share-manager-pod)

Which node is the target?
  ✓ node-a: claim disk1

Can node-a run the pod?
  ✓ exists
  ✓ Ready
  ✓ not cordoned
  ✓ taints tolerated by the pod
  ✓ selected by nodeSelector and required node affinity
  ✓ selected by the node affinity and the zones of the claims' PVs
  ✓ enough free resources
  ✓ allowed by required pod (anti-)affinity
  ✓ nothing that the guard can't evaluate

Does node-a have enough free resources?
  ✓ pods: requested 1, free 109
  ✓ cpu: requested 500m, free 4
  ✓ memory: requested 1536Mi, free 8192Mi

Decision
  pinned, CoScheduled: pinned to node-a, which serves claim disk1
  Patch: requires and prefers node-a, records the decision in the annotations (3
  operations)

What to do
  No action needed.
"""
    )


def test_explain_shows_the_vms_that_use_the_volume_of_a_share_manager_pod() -> None:
    mounting = [virt_launcher("vm", node="node-a"), virt_launcher("other", node="node-b", opt_in=None)]
    lines = explained(share_manager_pod(), claim(), volume(), node(), *mounting)
    assert lines[1:5] == [
        "✓ the request creates a pod",
        "· share-manager pod: yes, so it follows its VM",
        "✓ created by Longhorn's manager",
        "✓ steering of share-manager pods enabled",
    ]
    start = lines.index("Which VMs use the volume?")
    assert lines[start + 1 : start + 6] == [
        "· volume vol-disk1 → PV pvc-disk1 → claim default/disk1",
        "✓ default/vm: on node-a",
        "✗ default/other: on node-b; no vote: the pod must be opted in, bound, and Pending or Running",
        "Which node is the target?",
        "✓ node-a: VM pod default/vm",
    ]
    assert "Patch: prefers node-a, records the decision in the annotations (3 operations)" in lines


def preferring_to_avoid(name: str) -> Object:
    preferred = [{"weight": 100, "preference": {"matchFields": [name_requirement(name, "NotIn")]}}]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def test_explain_shows_why_a_share_manager_pod_follows_no_vm() -> None:
    assert "· volume vol-disk1 → no known PV" in explained(share_manager_pod())
    assert "· volume vol-disk1 → PV pvc- → no claimRef" in explained(
        share_manager_pod(), volume("", handle="vol-disk1")
    )
    assert "✗ no virt-launcher pod mounts the volume" in explained(share_manager_pod(), volume())
    terminating = virt_launcher("vm", node="node-a", deleting=True)
    assert [
        line
        for line in explained(share_manager_pod(), volume(), terminating)
        if "on node-a, terminating or not" in line
    ]
    unbound = explained(share_manager_pod(), volume(), virt_launcher("vm"))
    assert [line for line in unbound if line.startswith("✗ default/vm: not bound to a node")]
    avoided = explained(
        share_manager_pod(affinity=preferring_to_avoid("node-a")), volume(), virt_launcher("vm", node="node-a")
    )
    assert "· the pod prefers to avoid node-a" in avoided
    assert "Which node is the target?" not in avoided


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_explanation_of_a_golden_case_has_its_decision_and_findings(case: Path) -> None:
    (expected,) = documents(case.joinpath("expected.yaml").read_text())
    decision = expected["decision"]
    settings = case / "settings.yaml"
    environment = next(documents(settings.read_text())) if settings.exists() else {}
    result = run_explain(
        "-f", case / "pod.yaml", "--snapshot", case / "cluster.yaml", env=environment | {"COLUMNS": "999"}
    )
    assert (result.exit_code, without_settings(result.stderr)) == (0, "")
    words = " ".join(result.stdout.split())
    assert " ".join(f"{decision['outcome']}, {decision['reason']}: {decision['message']}".split()) in words
    if decision["reason"] != "NoShareManager":  # then the advice is that of each claim, below
        assert ADVICE[Reason(decision["reason"])] in words
    for finding in decision["claims"]:
        assert finding["claim"] in words
        node = finding["node"]
        expected_node = f"{node} runs other VMs" if finding["reason"] else f"served by {node} (source:"
        assert finding["node"] is None or expected_node in words or "VM pod" in words
        assert finding["reason"] is None or f"{finding['reason']}. {ADVICE[Reason(finding['reason'])]}" in words


UNSATISFIABLE_AFFINITY = {"affinity": node_terms(None)}
FAILED_CHECKS: dict[Reason, tuple[Object, list[Object]]] = {
    Reason.NODE_NOT_FOUND: (virt_launcher(), [node("node-b")]),
    Reason.NODE_NOT_READY: (virt_launcher(), [node(ready="False")]),
    Reason.NODE_CORDONED: (virt_launcher(), [node(unschedulable=True)]),
    Reason.NODE_TAINTED: (virt_launcher(), [node(taints=[{"key": "a", "effect": "NoSchedule"}])]),
    Reason.NODE_MISMATCH: (virt_launcher(nodeSelector={"a": "b"}), [node()]),
    Reason.NODE_FULL: (virt_launcher(requests={"cpu": "5"}), [node(allocatable=ALLOCATABLE)]),
    Reason.UNJUDGED: (virt_launcher(resourceClaims=[{"name": "gpu"}]), [node()]),
}


@pytest.mark.parametrize("reason", FAILED_CHECKS)
def test_only_the_first_failed_check_and_those_before_it_are_decisive(reason: Reason) -> None:
    received, nodes = FAILED_CHECKS[reason]
    decision = injection_for(received, *storage(), *nodes).decision
    lines = explained(received, *storage(), *nodes)
    answers = lines[lines.index("Can node-a run the pod?") + 1 :][: len([each for each in CHECKS if not each.quiet])]
    (position,) = (index for index, line in enumerate(answers) if line.startswith("✗"))
    question, _, detail = answers[position].removeprefix("✗ ").partition(": node-a ")
    assert (decision.reason, question) == (reason, QUESTIONS[reason])
    assert detail in decision.message
    assert all(line.startswith("✓") for line in answers[:position])
    assert all(line.startswith("(") for line in answers[position + 1 :])


def test_a_taint_that_the_decision_does_not_name_is_shown() -> None:
    taint = {"key": "dedicated", "effect": "NoSchedule"}
    assert "✗ untolerated taint: dedicated:NoSchedule" in explained(virt_launcher(), *storage(), node(taints=[taint]))


def test_a_second_failed_check_is_shown_in_parentheses() -> None:
    lines = explained(virt_launcher(requests={"cpu": "5"}), *storage(), node(ready="False", allocatable=ALLOCATABLE))
    assert "✗ Ready: node-a is not Ready" in lines
    assert "(✗) enough free resources: node-a lacks cpu (requested 5)" in lines
    assert "(✓) nothing that the guard can't evaluate" in lines
    assert "✗ cpu: requested 5, free 4" in lines
    assert [line for line in lines if line.startswith("Parentheses mark checks that did not affect the decision.")]


@pytest.mark.parametrize("overrides", [{"node_guard": False}, {"affinity_mode": "preferred"}])
def test_checks_without_an_effect_on_the_decision_are_shown_in_parentheses(overrides: dict[str, Any]) -> None:
    lines = explained(virt_launcher(), *storage(), node(ready="False"), **overrides)
    assert "(✗) Ready: node-a is not Ready" in lines


def test_each_candidate_of_a_share_manager_pod_is_shown_until_one_passes() -> None:
    target = virt_launcher("target", node="node-b", labels={"kubevirt.io/migrationJobUID": "uid"})
    nodes = [node("node-a", unschedulable=True), node("node-b")]
    lines = explained(share_manager_pod(), volume(), virt_launcher("source", node="node-a"), target, *nodes)
    votes = lines.index("Which node is the target?")
    assert lines[votes + 1 : votes + 3] == ["✓ node-b: VM pod default/target", "✗ node-a: VM pod default/source"]
    assert [line for line in lines if line.startswith("Can ")] == [
        "Can node-a run the pod?",
        "Can node-b run the pod?",
    ]
    assert "✗ not cordoned: node-a is cordoned" in lines


def test_a_pin_that_the_guard_now_refuses_is_explained() -> None:
    fields = pinned_fields("node-a")
    fields["annotations"] |= {"kubevirt-scheduler/decision": "CoScheduled: pinned to node-a, which serves claim disk1"}
    lines = explained(virt_launcher(**fields), *storage(), node(unschedulable=True))
    assert "Can node-a run the pod?" in lines
    assert "✗ not cordoned: node-a is cordoned" in lines
    assert [line for line in lines if line.startswith("preferred, NodeCordoned: was pinned to node-a")]


def test_an_invalid_node_name_and_an_unsatisfiable_node_affinity_are_shown() -> None:
    lines = explained(virt_launcher(), claim(), volume(), share_manager(owner="Not A Node"))
    assert "✗ valid node name: Not A Node is not a valid node name" in lines
    unsatisfiable = explained(virt_launcher(**UNSATISFIABLE_AFFINITY), *storage(), node_guard=False)
    mismatch = "node-a does not match the pod's required node affinity"
    assert f"✗ a required node affinity that can match a node: {mismatch}" in unsatisfiable


def test_claims_on_several_nodes_are_shown_as_votes() -> None:
    claims = ["disk1", "disk2", "state"]
    state = [claim("state", labels={"persistent-state-for": "vm"}), volume("state")]
    serving = share_manager_pod("vol-state", node="node-c")
    lines = explained(virt_launcher(claims=claims), *storage(), *storage("disk2", "node-b"), *state, serving)
    start = lines.index("Which node is the target?")
    assert lines[start + 1 : start + 4] == [
        "✓ node-a: claim disk1",
        "✗ node-b: claim disk2",
        "✗ node-c: claim state (no vote)",
    ]
    assert [line for line in lines if line.startswith("Warning: kubevirt-scheduler: several nodes serve the claims")]


CLAIM_CASES: dict[Reason, list[Object]] = {
    Reason.CLAIM_NOT_FOUND: [],
    Reason.CLAIM_NOT_RWX: [claim(modes=["ReadWriteOnce"])],
    Reason.SHARE_MANAGER_STOPPED: [claim(), volume(), share_manager(state="stopped", deleting=True)],
    Reason.SHARE_MANAGER_UNASSIGNED: [claim(), volume(), share_manager(owner="", state=None)],
    Reason.NO_SHARE_MANAGER: [claim()],
}
CLAIM_PATHS = {
    Reason.CLAIM_NOT_FOUND: ["· claim disk1"],
    Reason.CLAIM_NOT_RWX: ["· claim disk1 → PV pvc-disk1 (unknown)"],
    Reason.SHARE_MANAGER_STOPPED: [
        "· claim disk1 → PV pvc-disk1 → volume vol-disk1",
        "· ShareManager: stopped, owned by node-a, being deleted",
    ],
    Reason.SHARE_MANAGER_UNASSIGNED: [
        "· claim disk1 → PV pvc-disk1 → volume vol-disk1",
        "· ShareManager: no state yet, owned by no node",
    ],
    Reason.NO_SHARE_MANAGER: ["· claim disk1 → PV pvc-disk1 (unknown) → volume pvc-disk1"],
}

TARGET = {"kubevirt.io/migrationJobUID": "a"}
TARGET_ANSWER = "not a live-migration target: the pod is a live-migration target, and KubeVirt chooses its node"


@pytest.mark.parametrize("reason", CLAIM_CASES)
def test_a_claim_without_a_node_shows_its_reason_and_advice(reason: Reason) -> None:
    lines, mark = explained(virt_launcher(), *CLAIM_CASES[reason]), "·" if reason in COLD_REASONS else "✗"
    start = lines.index("Which nodes serve the claims?") + 1
    assert lines[start : lines.index("Decision")] == [*CLAIM_PATHS[reason], f"{mark} {reason}. {ADVICE[reason]}"]


@pytest.mark.parametrize(
    ("received", "overrides", "reason"),
    [
        (pod(), {}, Reason.NOT_VIRT_LAUNCHER),
        (virt_launcher(node="node-a"), {}, Reason.ALREADY_BOUND),
        (virt_launcher(claims=[]), {}, Reason.NO_CLAIMS),
        (virt_launcher(**preferring_fields("node-a")), {}, Reason.ALREADY_INJECTED),
        (share_manager_pod(), {"steering": False}, Reason.STEERING_OFF),
        (share_manager_pod(node="node-a"), {}, Reason.ALREADY_BOUND),
        (share_manager_pod(**pinned_fields("node-a")), {}, Reason.ALREADY_INJECTED),
    ],
)
def test_the_first_failed_rule_ends_the_steps(received: Object, overrides: Any, reason: Reason) -> None:
    decision = injection_for(received, **overrides).decision
    lines = explained(received, **overrides)
    answers = lines[: lines.index("Decision")]
    assert decision.reason is reason
    assert [line for line in answers if line.startswith("✗")] == answers[-1:]
    assert answers[-1].endswith(f": {decision.message}")


def test_the_steps_end_where_a_migration_leads_elsewhere() -> None:
    chosen = {"migration_targets": MigrationTargets.PREFER}
    received = virt_launcher(labels=TARGET, nodeSelector={"kubernetes.io/hostname": "node-c"})
    lines = explained(received, *storage(), node(), **chosen)
    elsewhere = f"✗ the migration may go to the share-manager's node: {SENTENCES[Reason.MIGRATION_TARGET]}"
    assert lines[lines.index("Decision") - 1] == elsewhere


def test_an_observer_says_that_the_vm_is_not_opted_in() -> None:
    lines = explained(virt_launcher(opt_in=None), *storage(), node(), action=Action.OBSERVE)
    assert "✓ opted in: no, but CO_SCHEDULE_ACTION=observe evaluates every VM" in lines
    assert "Can node-a run the pod?" in lines


@pytest.mark.parametrize(
    ("changes", "broken", "words"),
    [
        ({"opt_in": None}, ["opted in: the VM is not opted in"], "opted in"),
        ({"labels": TARGET}, [TARGET_ANSWER], "not a live-migration target"),
        ({"opt_in": None, "labels": TARGET}, ["opted in: the VM is not opted in", TARGET_ANSWER],
         "opted in and not a live-migration target"),
    ],
    ids=["not opted in", "a migration target", "both"],
)  # fmt: skip
def test_explain_evaluates_a_pod_as_if_it_were_eligible(changes: Any, broken: list[str], words: str) -> None:
    lines = explained(virt_launcher(**changes), *storage(), node())
    assert [line.removeprefix("✗ ") for line in lines if line.startswith("✗")] == broken
    assert f"· the next steps assume that the pod is {words}" in lines
    assert f"if {words}: pinned, CoScheduled: pinned to node-a, which serves claim disk1" in lines
    assert "Patch: none, the pod stays unchanged" in lines


def test_a_request_that_creates_no_pod_takes_no_further_step() -> None:
    update = request(virt_launcher(), operation="UPDATE")
    lines = [line.words for line in explain_request("name", update, catalog(), Settings()).lines]
    assert lines[1:3] == ["the request creates a pod: the request does not create a pod", "Decision"]


def test_the_effect_of_the_patch_is_shown_in_one_line() -> None:
    other = {"scheduler_names": {"default-scheduler": "secondary-scheduler"}}
    assert "Patch: none, the pod stays unchanged" in explained(pod())
    assert "Patch: records the decision in the annotations (1 operation)" in explained(virt_launcher())
    assert "Patch: sets schedulerName to secondary-scheduler (1 operation)" in explained(
        virt_launcher(claims=[]), **other
    )
    observed = explained(virt_launcher(), *storage(), action=Action.OBSERVE)
    assert "Patch: none, because the webhook only observes, or is not called" in observed


def test_an_overcommitted_node_shows_zero_free_resources() -> None:
    large_pod = pod("crowd", node="node-a", requests={"cpu": "9"})
    assert "✗ cpu: requested 1, free 0" in explained(
        virt_launcher(requests={"cpu": "1"}), *storage(), large_pod, node(allocatable=ALLOCATABLE)
    )


def test_each_pod_of_a_list_and_each_review_has_a_page(tmp_path: Path) -> None:
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request(pod("c"))}
    several = {"apiVersion": "v1", "kind": "List", "items": [virt_launcher("a"), claim("b")]}
    cluster = write_yaml(tmp_path, node(), name="cluster.yaml")
    result = run_explain("-f", write_yaml(tmp_path, several, review), "--snapshot", cluster)
    headings = [line for line in result.stdout.splitlines() if line.startswith("default/")]
    assert headings == ["default/a", "default/c"]
    assert result.stdout.count("What to do\n") == 2


def test_lines_fit_80_columns_or_the_width_of_the_terminal(tmp_path: Path) -> None:
    name = "a-claim-with-a-name-that-is-longer-than-a-line-of-eighty-columns-" * 2
    path = write_yaml(tmp_path, virt_launcher(claims=[name, "disk1"]))
    cluster = write_yaml(tmp_path, *storage(), node(ready="False"), name="cluster.yaml")
    narrow = run_explain("-f", path, "--snapshot", cluster, env={"COLUMNS": None}).stdout
    wide = run_explain("-f", path, "--snapshot", cluster, env={"COLUMNS": "100"}).stdout
    assert max(map(len, narrow.splitlines())) <= 80 < max(map(len, wide.splitlines())) <= 100
    assert not [line for line in narrow.splitlines() if line != line.rstrip()]
    assert name in "".join(narrow.split())


def test_output_is_colored_only_with_the_color_option(tmp_path: Path) -> None:
    path, cluster = write_yaml(tmp_path, virt_launcher()), write_yaml(tmp_path, node(), name="cluster.yaml")
    plain = run_explain("-f", path, "--snapshot", cluster).stdout
    colored = run_explain("-f", path, "--snapshot", cluster, env={"FORCE_COLOR": "1", "TERM": "dumb"}).stdout
    assert "\x1b" not in plain
    assert "\x1b[32m✓\x1b[0m" in colored
    assert click.unstyle(colored) == plain


def test_control_characters_in_names_are_replaced(tmp_path: Path) -> None:
    path = write_yaml(tmp_path, virt_launcher("a\x1b[31m", claims=["[red]b\x1b[31m\r"]))
    shown = run_explain("-f", path, "--snapshot", write_yaml(tmp_path, node(), name="cluster.yaml")).stdout
    assert "\x1b" not in shown
    assert "claim [red]b\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}" in shown


def test_a_malformed_field_hides_the_steps_but_not_the_decision(tmp_path: Path) -> None:
    path = write_yaml(tmp_path, virt_launcher(requests={"cpu": "s3cret"}))
    cluster = write_yaml(tmp_path, *storage(), node(ready="False", allocatable=ALLOCATABLE), name="cluster.yaml")
    result = run_explain("-f", path, "--snapshot", cluster)
    assert result.exit_code == 0
    assert "cannot show the steps: a field is malformed (Malformed)" in result.stdout
    assert f"preferred, {Reason.NODE_NOT_READY}: " in result.stdout
    assert "s3cret" not in result.stdout


def test_a_file_without_a_pod_is_rejected_with_a_kubectl_command(tmp_path: Path) -> None:
    vm = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "vm1"}}
    path, cluster = write_yaml(tmp_path, vm), write_yaml(tmp_path, node(), name="cluster.yaml")
    result = run_explain("-f", path, "--snapshot", cluster)
    assert (result.exit_code, result.stdout) == (2, "")
    assert without_settings(result.stderr) == (
        f"Error: {path}: no Pod found; to print the pods of VMs: kubectl get pod -l kubevirt.io=virt-launcher -o yaml\n"
    )


# A pinned pod that can't be scheduled, on a live cluster


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        server.put(*installation())
        yield server


def explain_stuck(server: ApiServer, folder: Path, *items: Object, subject: str = "vm vm1") -> list[str]:
    """Return the lines under "What to do"."""
    server.put(*items)
    result = run_explain(*subject.split(), "--kubeconfig", server.kubeconfig(folder), env={"COLUMNS": "120"})
    assert (result.exit_code, without_settings(result.stderr)) == (0, "")
    return [line.strip() for line in result.stdout.partition("What to do\n")[2].splitlines()]


RESTART = f"{restart_advice('default', 'vm1', 'Always')}."
DELETED = "If releasing pins is enabled, the webhook deletes the pod after {} s, and KubeVirt restarts the VM."


@pytest.mark.parametrize("subject", ["vm vm1", "pod virt-launcher-vm1-abcde"])
def test_explain_says_what_to_do_about_a_pin_that_can_not_hold(server: ApiServer, tmp_path: Path, subject: str) -> None:
    cluster = [*storage(), node(unschedulable=True), pinned_vm_pod(), virtual_machine()]
    lines = explain_stuck(server, tmp_path, *cluster, subject=subject)
    assert lines[0] == "The pod is pinned to node-a, but node-a is cordoned."
    assert lines[1:3] == [ADVICE[Reason.NODE_CORDONED], DELETED.format(30)]
    assert " ".join(lines[3:]) == f"To release the VM immediately, {RESTART}"


def test_explain_says_that_a_stuck_pod_without_an_obstacle_is_released_after_five_minutes(
    server: ApiServer, tmp_path: Path
) -> None:
    lines = explain_stuck(server, tmp_path, *storage(), node(), pinned_vm_pod(), virtual_machine())
    assert lines[:2] == ["The pod is pinned to node-a, but not scheduled there yet.", DELETED.format(300)]


def test_explain_says_why_the_webhook_keeps_a_stuck_pod(server: ApiServer, tmp_path: Path) -> None:
    cluster = [*storage(), node(unschedulable=True), pinned_vm_pod(), virtual_machine(strategy="Manual")]
    assert explain_stuck(server, tmp_path, *cluster)[2:] == [
        "The webhook does not delete the pod, because the VM's run strategy does not restart it.",
        f"S{RESTART[1:]}",
    ]


def test_explain_needs_no_right_to_read_vms(server: ApiServer, tmp_path: Path) -> None:
    server.forbidden.add(("get", "virtualmachines"))
    lines = explain_stuck(server, tmp_path, *storage(), node(unschedulable=True), pinned_vm_pod())
    assert "because the webhook found no VirtualMachine of this name" in " ".join(lines)


def test_a_pending_pod_that_no_scheduler_has_evaluated_names_its_scheduler(server: ApiServer, tmp_path: Path) -> None:
    stuck = pinned_vm_pod(unschedulable=False, schedulerName="kubevirt-scheduler")
    for subject in ("vm vm1", "pod virt-launcher-vm1-abcde"):
        lines = " ".join(explain_stuck(server, tmp_path, *storage(), node(), stuck, virtual_machine(), subject=subject))
        assert lines.startswith("No scheduler has evaluated the pod for ")
        assert lines.endswith(f"it names kubevirt-scheduler. {ADVICE[Reason.NOT_SCHEDULED]}")
