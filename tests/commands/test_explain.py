"""`explain` tells the walk to a decision, and each line of it is what the engine says."""

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
    injected,
    node,
    node_named,
    node_terms,
    pinned,
    pod,
    request,
    share_manager,
    share_manager_pod,
    storage,
    virt_launcher,
    volume,
)
from webhook.cli import commands
from webhook.cluster.manifests import documents, to_yaml
from webhook.commands.narration import conclude, narrate
from webhook.placement.decision import CLAIM_REASONS, Reason
from webhook.placement.feasibility import CHECKS
from webhook.placement.injector import inject
from webhook.placement.settings import Action, Settings
from webhook.placement.walk import Walk, walk
from webhook.placement.wording import ADVICE

CASES = sorted(paths.CASES.iterdir())
QUESTIONS = {check.reason: check.question for check in CHECKS}
ROOM = {"cpu": "4", "memory": "8Gi", "pods": "110"}


def invoked(*arguments: Any, **rest: Any) -> Result:
    result = CliRunner().invoke(commands, ["explain", *map(str, arguments)], **rest)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def walked(received: Object, *found: Object, **chosen: Any) -> Walk:
    return walk(request(received, received["metadata"]["namespace"]), catalog(*found), Settings(**chosen))


def told(received: Object, *found: Object, **chosen: Any) -> list[str]:
    """The lines that follow from a walk, each behind its mark."""
    lines = [
        *narrate(walked(received, *found, **chosen)),
        *conclude(injected(received, *found, **chosen), Settings(**chosen)),
    ]
    return [f"{line.mark} {line.words}".strip() for line in lines]


def file(folder: Path, *contents: Any, name: str = "pod.yaml") -> Path:
    path = folder / name
    path.write_text("---\n".join(map(to_yaml, contents)))
    return path


def test_the_whole_walk_of_a_vm_is_told_in_order(tmp_path: Path) -> None:
    vm = virt_launcher("vm", requests={"cpu": "500m", "memory": "1536Mi"})
    cluster = [*storage(), share_manager(), node(allocatable=ROOM)]
    result = invoked("-f", file(tmp_path, vm), "--snapshot", file(tmp_path, *cluster, name="cluster.yaml"))
    assert (result.exit_code, result.stderr) == (0, "")
    assert (
        result.stdout
        == """\
default/vm

Is the pod ours?
  ✓ does the request create a pod?
  · is it a share-manager pod? no
  ✓ is it a virt-launcher pod?
  ✓ is it opted in?
  ✓ is it no live-migration target?
  ✓ is it no dummy pod that only provisions a claim?
  ✓ is its node still open?
  ✓ does it mount a claim?
  ✓ is it without our terms yet?

Which nodes serve its claims?
  · claim disk1 → PV pvc-disk1 → volume vol-disk1
    · share-manager pod share-manager-vol-disk1: on node-a
    · ShareManager: running, owned by node-a
    ✓ node-a, says the share-manager-pod

Which node is meant?
  ✓ node-a: claim disk1

Could node-a take the pod?
  ✓ does it exist?
  ✓ is it Ready?
  ✓ is it free of a cordon?
  ✓ does the pod tolerate its taints?
  ✓ do nodeSelector and required node affinity select it?
  ✓ does the node affinity of the claims' PVs select it?
  ✓ has it room?
  ✓ does required pod (anti-)affinity allow it?
  ✓ can all that the pod asks for be judged?

What the pod asks for, and what is free on node-a
  ✓ pods: 1 of 109
  ✓ cpu: 500m of 4
  ✓ memory: 1536Mi of 8192Mi

Decision
  pinned, CoScheduled: pinned to node-a, which serves claim disk1
  Patch: requires and prefers node-a, says so in the annotations (3 operations)

What to do
  Nothing to do.
"""
    )


def test_a_share_manager_pod_is_followed_to_its_vms() -> None:
    mounting = [virt_launcher("vm", node="node-a"), virt_launcher("other", node="node-b", opt_in=None)]
    lines = told(share_manager_pod(), claim(), volume(), node(), *mounting)
    assert lines[1:4] == [
        "✓ does the request create a pod?",
        "· is it a share-manager pod? yes, so it is to follow its VM",
        "✓ are share-manager pods steered?",
    ]
    start = lines.index("Which VMs use its volume?")
    assert lines[start + 1 : start + 6] == [
        "· volume vol-disk1 → PV pvc-disk1 → claim default/disk1",
        "✓ default/vm: on node-a",
        "✗ default/other: on node-b; it has no vote unless it is opted in, bound, and Pending or Running",
        "Which node is meant?",
        "✓ node-a: VM pod default/vm",
    ]
    assert "Patch: prefers node-a, says so in the annotations (3 operations)" in lines


def avoiding(name: str) -> Object:
    preferred = [{"weight": 100, "preference": {"matchFields": [node_named(name, "NotIn")]}}]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def test_what_keeps_a_share_manager_pod_from_its_vms_is_told() -> None:
    assert "· volume vol-disk1 → no PV that is known" in told(share_manager_pod())
    assert "· volume vol-disk1 → PV pvc- → no claimRef" in told(share_manager_pod(), volume("", handle="vol-disk1"))
    assert "✗ no virt-launcher pod mounts it" in told(share_manager_pod(), volume())
    leaving = virt_launcher("vm", node="node-a", deleting=True)
    assert [line for line in told(share_manager_pod(), volume(), leaving) if "on node-a, terminating or not" in line]
    unbound = told(share_manager_pod(), volume(), virt_launcher("vm"))
    assert [line for line in unbound if line.startswith("✗ default/vm: not bound to a node")]
    stale = told(share_manager_pod(affinity=avoiding("node-a")), volume(), virt_launcher("vm", node="node-a"))
    assert "· the pod prefers not to be on node-a" in stale
    assert "Which node is meant?" not in stale


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_walk_of_a_golden_case_leads_to_its_decision(case: Path) -> None:
    (expected,) = documents(case.joinpath("expected.yaml").read_text())
    decision = expected["decision"]
    settings = case / "settings.yaml"
    environment = next(documents(settings.read_text())) if settings.exists() else {}
    result = invoked("-f", case / "pod.yaml", "--snapshot", case / "cluster.yaml", env=environment | {"COLUMNS": "999"})
    assert (result.exit_code, result.stderr) == (0, "")
    words = " ".join(result.stdout.split())
    assert " ".join(f"{decision['outcome']}, {decision['reason']}: {decision['message']}".split()) in words
    assert ADVICE[Reason(decision["reason"])] in words
    for finding in decision["claims"]:
        assert finding["claim"] in words
        assert finding["node"] is None or f"{finding['node']}, says the" in words or "VM pod" in words
        assert finding["reason"] is None or f"{finding['reason']}. {ADVICE[Reason(finding['reason'])]}" in words


UNTIED = {"affinity": node_terms(None)}
OBSTACLES: dict[Reason, tuple[Object, list[Object]]] = {
    Reason.NODE_NOT_FOUND: (virt_launcher(), [node("node-b")]),
    Reason.NODE_NOT_READY: (virt_launcher(), [node(ready="False")]),
    Reason.NODE_CORDONED: (virt_launcher(), [node(unschedulable=True)]),
    Reason.NODE_TAINTED: (virt_launcher(), [node(taints=[{"key": "a", "effect": "NoSchedule"}])]),
    Reason.NODE_MISMATCH: (virt_launcher(nodeSelector={"a": "b"}), [node()]),
    Reason.NODE_FULL: (virt_launcher(requests={"cpu": "5"}), [node(allocatable=ROOM)]),
    Reason.UNJUDGED: (virt_launcher(resourceClaims=[{"name": "gpu"}]), [node()]),
}


@pytest.mark.parametrize("reason", OBSTACLES)
def test_the_check_that_decided_is_marked_and_those_behind_it_stand_in_brackets(reason: Reason) -> None:
    received, nodes = OBSTACLES[reason]
    decision = injected(received, *storage(), *nodes).decision
    guard = walked(received, *storage(), *nodes).guard
    assert decision.reason is reason
    assert guard is not None
    failed = [answer for answer in guard.answers if answer.decisive and not answer.holds]
    assert [answer.question for answer in failed] == [QUESTIONS[reason]]
    assert failed[0].detail in decision.message
    position = guard.answers.index(failed[0])
    assert all(answer.decisive and answer.holds for answer in guard.answers[:position])
    assert not any(answer.decisive for answer in guard.answers[position + 1 :])
    assert len(guard.answers) == len(CHECKS)


def test_a_second_obstacle_is_told_though_it_decided_nothing() -> None:
    lines = told(virt_launcher(requests={"cpu": "5"}), *storage(), node(ready="False", allocatable=ROOM))
    assert "✗ is it Ready? it is not Ready" in lines
    assert "(✗) has it room? it is full (cpu: 5 asked for, 4 free)" in lines
    assert "(✓) can all that the pod asks for be judged?" in lines
    assert "✗ cpu: 5 of 4" in lines
    assert [line for line in lines if line.startswith("In brackets: it decided nothing.")]


@pytest.mark.parametrize("chosen", [{"node_guard": False}, {"affinity_mode": "preferred"}])
def test_where_the_guard_was_not_asked_its_answers_stand_in_brackets(chosen: dict[str, Any]) -> None:
    guard = walked(virt_launcher(), *storage(), node(ready="False"), **chosen).guard
    assert guard is not None
    assert not any(answer.decisive for answer in guard.answers)
    assert "(✗) is it Ready? it is not Ready" in told(virt_launcher(), *storage(), node(ready="False"), **chosen)


def test_a_share_manager_pod_that_is_not_guarded_has_its_answers_in_brackets() -> None:
    found = [volume(), virt_launcher("vm", node="node-a"), node(unschedulable=True)]
    assert "✗ is it free of a cordon? it is cordoned" in told(share_manager_pod(), *found)
    assert "(✗) is it free of a cordon? it is cordoned" in told(share_manager_pod(), *found, node_guard=False)


def test_a_node_that_no_node_can_be_and_a_pod_that_no_node_can_take_are_told() -> None:
    lines = told(virt_launcher(), claim(), volume(), share_manager(owner="Not A Node"))
    assert "✗ is that a name of a node? no node can be called so" in lines
    untied = told(virt_launcher(**UNTIED), *storage(), node_guard=False)
    assert "✗ is there a term to carry a pin? the pod's required node affinity has none" in untied


def test_a_disagreement_of_the_claims_is_told_as_a_vote() -> None:
    claims = ["disk1", "disk2", "state"]
    state = [claim("state", labels={"persistent-state-for": "vm"}), volume("state")]
    serving = share_manager_pod("vol-state", node="node-c")
    lines = told(virt_launcher(claims=claims), *storage(), *storage("disk2", "node-b"), *state, serving)
    start = lines.index("Which node is meant?")
    assert lines[start + 1 : start + 4] == [
        "✓ node-a: claim disk1",
        "✗ node-b: claim disk2",
        "✗ node-c: claim state (without a vote)",
    ]
    assert [line for line in lines if line.startswith("Warning: kubevirt-scheduler: the claims are served by several")]


CLAIMS: dict[Reason, list[Object]] = {
    Reason.CLAIM_NOT_FOUND: [],
    Reason.CLAIM_NOT_RWX: [claim(modes=["ReadWriteOnce"])],
    Reason.CLAIM_NOT_BOUND: [claim(volume="")],
    Reason.NOT_LONGHORN: [claim(), volume(driver="example.org")],
    Reason.SHARE_MANAGER_STOPPED: [claim(), volume(), share_manager(state="stopped", deleting=True)],
    Reason.SHARE_MANAGER_UNASSIGNED: [claim(), volume(), share_manager(owner="", state=None)],
    Reason.NO_SHARE_MANAGER: [claim()],
}
WAYS = {
    Reason.CLAIM_NOT_FOUND: ["· claim disk1"],
    Reason.CLAIM_NOT_RWX: ["· claim disk1 → PV pvc-disk1 (not known)"],
    Reason.CLAIM_NOT_BOUND: ["· claim disk1"],
    Reason.NOT_LONGHORN: ["· claim disk1 → PV pvc-disk1"],
    Reason.SHARE_MANAGER_STOPPED: [
        "· claim disk1 → PV pvc-disk1 → volume vol-disk1",
        "· ShareManager: stopped, owned by node-a, deleted",
    ],
    Reason.SHARE_MANAGER_UNASSIGNED: [
        "· claim disk1 → PV pvc-disk1 → volume vol-disk1",
        "· ShareManager: without a state, owned by nobody",
    ],
    Reason.NO_SHARE_MANAGER: ["· claim disk1 → PV pvc-disk1 (not known) → volume pvc-disk1"],
}


@pytest.mark.parametrize("reason", CLAIMS)
def test_a_claim_without_a_node_has_its_reason_and_what_to_do(reason: Reason) -> None:
    lines = told(virt_launcher(), *CLAIMS[reason])
    start = lines.index("Which nodes serve its claims?") + 1
    assert lines[start : lines.index("Decision")] == [*WAYS[reason], f"✗ {reason}. {ADVICE[reason]}"]


def test_every_reason_of_a_claim_is_in_the_table() -> None:
    assert set(CLAIMS) == set(CLAIM_REASONS)


@pytest.mark.parametrize(
    ("received", "chosen", "reason"),
    [
        (pod(), {}, Reason.NOT_VIRT_LAUNCHER),
        (virt_launcher(opt_in=None), {}, Reason.NOT_OPTED_IN),
        (virt_launcher(labels={"kubevirt.io/migrationJobUID": "a"}), {}, Reason.MIGRATION_TARGET),
        (virt_launcher(node="node-a"), {}, Reason.ALREADY_BOUND),
        (virt_launcher(claims=[]), {}, Reason.NO_CLAIMS),
        (virt_launcher(**pinned("node-a")), {}, Reason.ALREADY_INJECTED),
        (share_manager_pod(), {"steering": False}, Reason.STEERING_OFF),
        (share_manager_pod(node="node-a"), {}, Reason.ALREADY_BOUND),
        (share_manager_pod(**pinned("node-a")), {}, Reason.ALREADY_INJECTED),
    ],
)
def test_the_rule_that_ends_the_walk_is_the_last_one_told(received: Object, chosen: Any, reason: Reason) -> None:
    decision = injected(received, **chosen).decision
    found = walked(received, **chosen)
    assert decision.reason is reason
    assert [answer.holds for answer in found.rules].index(False) == len(found.rules) - 1
    assert found.rules[-1].detail == decision.message
    assert (found.chains, found.served, found.choice, found.guard) == ((), None, None, None)


def test_a_request_that_creates_no_pod_is_told_and_nothing_else() -> None:
    found = walk(request(virt_launcher(), operation="UPDATE"), catalog(), Settings())
    assert [line.words for line in narrate(found)][1:] == [
        "does the request create a pod? the request does not create a pod"
    ]


def test_the_effect_of_the_patch_is_told_in_one_line() -> None:
    other = {"scheduler_names": {"default-scheduler": "secondary-scheduler"}}
    assert "Patch: none, the pod stays as it is" in told(pod())
    assert "Patch: says so in the annotations (1 operation)" in told(virt_launcher())
    assert "Patch: sets schedulerName to secondary-scheduler (1 operation)" in told(virt_launcher(claims=[]), **other)
    observed = told(virt_launcher(), *storage(), action=Action.OBSERVE)
    assert "Patch: none is sent, because CO_SCHEDULE_ACTION is observe" in observed


def test_a_node_with_more_pods_than_room_has_nothing_free() -> None:
    crowd = pod("crowd", node="node-a", requests={"cpu": "9"})
    assert "✗ cpu: 1 of 0" in told(virt_launcher(requests={"cpu": "1"}), *storage(), crowd, node(allocatable=ROOM))


def test_each_pod_of_a_list_and_each_review_has_its_page(tmp_path: Path) -> None:
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request(pod("c"))}
    several = {"apiVersion": "v1", "kind": "List", "items": [virt_launcher("a"), claim("b")]}
    cluster = file(tmp_path, node(), name="cluster.yaml")
    result = invoked("-f", file(tmp_path, several, review), "--snapshot", cluster)
    heads = [line for line in result.stdout.splitlines() if line.startswith("default/")]
    assert heads == ["default/a", "default/c"]
    assert result.stdout.count("What to do\n") == 2


def test_lines_fit_eighty_columns_or_as_many_as_there_are(tmp_path: Path) -> None:
    name = "a-claim-with-a-name-that-is-longer-than-a-line-of-eighty-columns-" * 2
    path = file(tmp_path, virt_launcher(claims=[name, "disk1"]))
    cluster = file(tmp_path, *storage(), node(ready="False"), name="cluster.yaml")
    narrow = invoked("-f", path, "--snapshot", cluster, env={"COLUMNS": None}).stdout
    wide = invoked("-f", path, "--snapshot", cluster, env={"COLUMNS": "100"}).stdout
    assert max(map(len, narrow.splitlines())) <= 80 < max(map(len, wide.splitlines())) <= 100
    assert not [line for line in narrow.splitlines() if line != line.rstrip()]
    assert name in "".join(narrow.split())


def test_colours_are_only_there_where_they_were_asked_for(tmp_path: Path) -> None:
    path, cluster = file(tmp_path, virt_launcher()), file(tmp_path, node(), name="cluster.yaml")
    plain = invoked("-f", path, "--snapshot", cluster).stdout
    colored = invoked("-f", path, "--snapshot", cluster, "--color", env={"NO_COLOR": "1", "TERM": "dumb"}).stdout
    assert "\x1b" not in plain
    assert "\x1b[32m✓\x1b[0m" in colored
    assert click.unstyle(colored) == plain


def test_what_a_name_holds_can_not_command_the_terminal(tmp_path: Path) -> None:
    path = file(tmp_path, virt_launcher("a\x1b[31m", claims=["[red]b\x1b[31m\r"]))
    shown = invoked("-f", path, "--snapshot", file(tmp_path, node(), name="cluster.yaml")).stdout
    assert "\x1b" not in shown
    assert "claim [red]b\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}" in shown


def test_a_walk_that_a_malformed_field_breaks_off_still_ends_with_the_decision(tmp_path: Path) -> None:
    path = file(tmp_path, virt_launcher(requests={"cpu": "s3cret"}))
    cluster = file(tmp_path, *storage(), node(ready="False", allocatable=ROOM), name="cluster.yaml")
    result = invoked("-f", path, "--snapshot", cluster)
    assert result.exit_code == 0
    assert "the walk can not be shown: a field of the pod or of the cluster (Malformed)" in result.stdout
    assert f"preferred, {Reason.NODE_NOT_READY}: " in result.stdout
    assert "s3cret" not in result.stdout


def test_a_file_without_a_pod_is_refused_with_what_to_do(tmp_path: Path) -> None:
    vm = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "vm1"}}
    path, cluster = file(tmp_path, vm), file(tmp_path, node(), name="cluster.yaml")
    result = invoked("-f", path, "--snapshot", cluster)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"Error: {path}: there is no Pod in it; the pod of a VM is shown by: "
        "kubectl get pod -l kubevirt.io=virt-launcher -o yaml\n"
    )


def test_the_walk_is_pure_and_finds_the_same_twice() -> None:
    asked, known = request(virt_launcher()), catalog(*storage(), node())
    assert walk(asked, known, Settings()) == walk(asked, known, Settings())
    assert inject(asked, known, Settings()) == inject(asked, known, Settings())
