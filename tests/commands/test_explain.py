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
from webhook.placement.reasons import COLD_REASONS, Reason
from webhook.placement.settings import Action, MigrationTargets, Settings
from webhook.placement.wording import ADVICE, SENTENCES, restart_advice
from webhook.reading.kubernetes_yaml import documents, to_yaml

CASES = sorted(paths.CASES.iterdir())
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
    assert {len(line) - len(line.lstrip()) for line in result.stdout.splitlines()} <= {0, 2, 4}
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


TARGET = {"kubevirt.io/migrationJobUID": "a"}
TARGET_ANSWER = "not a live-migration target: the pod is a live-migration target, and KubeVirt chooses its node"
CORDONED = node(unschedulable=True)
UNREADY = node(ready="False", allocatable=ALLOCATABLE)
TAINTED = node(taints=[{"key": "dedicated", "effect": "NoSchedule"}])
AVOIDING = {"weight": 100, "preference": {"matchFields": [name_requirement("node-a", "NotIn")]}}
AVOIDS = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [AVOIDING]}}
HERE = virt_launcher("vm", node="node-a")
ELSEWHERE = virt_launcher("vm", labels=TARGET, nodeSelector={"kubernetes.io/hostname": "node-c"})
PINNED = virt_launcher(**pinned_fields("node-a"))
PINNED["metadata"]["annotations"]["kubevirt-scheduler/decision"] = "CoScheduled: pinned to node-a"
STATE = [
    claim("state", labels={"persistent-state-for": "vm"}),
    volume("state"),
    share_manager_pod("vol-state", node="node-c"),
]
STOPPED = share_manager(state="stopped", deleting=True)
NO_VOTE = "no vote: the pod must be opted in, bound, and Pending or Running"
MISMATCH = "node-a does not match the pod's required node affinity"
PATH = "· claim disk1 → PV pvc-disk1"


def advised(reason: Reason) -> str:
    return f"{'·' if reason in COLD_REASONS else '✗'} {reason}. {ADVICE[reason]}"


# A new pod, the cluster, the settings, and lines that follow each other.
SHOWN: dict[str, tuple[Object, list[Object], dict[str, Any], list[str]]] = {
    "the VMs of a share-manager pod": (
        share_manager_pod(),
        [claim(), volume(), node(), HERE, virt_launcher("other", node="node-b", opt_in=None)],
        {},
        [
            "Which VMs use the volume?",
            "· volume vol-disk1 → PV pvc-disk1 → claim default/disk1",
            "✓ default/vm: on node-a",
            f"✗ default/other: on node-b; {NO_VOTE}",
            "Which node is the target?",
            "✓ node-a: VM pod default/vm",
        ],
    ),
    "no VM": (share_manager_pod(), [volume()], {}, ["✗ no virt-launcher pod mounts the volume", "Decision"]),
    "VMs without a vote": (
        share_manager_pod(),
        [volume(), virt_launcher("going", node="node-a", deleting=True), virt_launcher("vm")],
        {},
        [
            f"✗ default/going: on node-a, terminating or not running; {NO_VOTE}",
            f"✗ default/vm: not bound to a node; {NO_VOTE}",
        ],
    ),
    "a node to avoid": (
        share_manager_pod(affinity=AVOIDS), [volume(), HERE], {}, ["· the pod prefers to avoid node-a", "Decision"]
    ),
    "a second candidate": (
        share_manager_pod(),
        [volume(), HERE, virt_launcher("target", node="node-b", labels=TARGET), CORDONED, node("node-b")],
        {},
        ["Which node is the target?", "✓ node-b: VM pod default/target", "✗ node-a: VM pod default/vm"],
    ),
    "checks of the first candidate": (
        share_manager_pod(), [volume(), HERE, CORDONED], {}, ["✓ Ready", "✗ not cordoned: node-a is cordoned"]
    ),
    "several nodes": (
        virt_launcher(claims=["disk1", "disk2", "state"]),
        [*storage(), *storage("disk2", "node-b"), *STATE],
        {},
        ["✓ node-a: claim disk1", "✗ node-b: claim disk2", "✗ node-c: claim state (no vote)"],
    ),
    "the last checks": (
        virt_launcher(requests={"cpu": "5"}),
        [*storage(), UNREADY],
        {},
        [
            "(✓) nothing that the guard can't evaluate",
            "Parentheses mark checks that did not affect the decision.",
            "Does node-a have enough free resources?",
            "✓ pods: requested 1, free 109",
            "✗ cpu: requested 5, free 4",
        ],
    ),
    "an overcommitted node": (
        virt_launcher(requests={"cpu": "1"}),
        [*storage(), pod("crowd", node="node-a", requests={"cpu": "9"}), node(allocatable=ALLOCATABLE)],
        {},
        ["✗ cpu: requested 1, free 0"],
    ),
    "no guard": (virt_launcher(), [*storage(), UNREADY], {"node_guard": False}, ["(✗) Ready: node-a is not Ready"]),
    "an affinity that matches nothing": (
        virt_launcher(affinity=node_terms(None)),
        storage(),
        {"node_guard": False},
        [
            f"✗ a required node affinity that can match a node: {MISMATCH}",
        ],
    ),
    "a preference": (
        virt_launcher(), [*storage(), UNREADY], {"affinity_mode": "preferred"}, ["(✗) Ready: node-a is not Ready"]
    ),
    "a pin on a cordoned node": (PINNED, [*storage(), CORDONED], {}, ["✓ Ready", "✗ not cordoned: node-a is cordoned"]),
    "an invalid node name": (
        virt_launcher(),
        [claim(), volume(), share_manager(owner="Not A Node")],
        {},
        ["✗ valid node name: Not A Node is not a valid node name"],
    ),
    "an RWO claim": (
        virt_launcher(), [claim(modes=["ReadWriteOnce"])], {}, [f"{PATH} (unknown)", advised(Reason.CLAIM_NOT_RWX)]
    ),
    "a stopped share-manager": (
        virt_launcher(),
        [claim(), volume(), STOPPED],
        {},
        [
            f"{PATH} → volume vol-disk1",
            "· ShareManager: stopped, owned by node-a, being deleted",
            advised(Reason.SHARE_MANAGER_STOPPED),
        ],
    ),
    "a new share-manager": (
        virt_launcher(),
        [claim(), volume(), share_manager(owner="", state=None)],
        {},
        ["· ShareManager: no state yet, owned by no node", advised(Reason.SHARE_MANAGER_UNASSIGNED)],
    ),
    "a migration that leads elsewhere": (
        ELSEWHERE,
        [*storage(), node()],
        {"migration_targets": MigrationTargets.PREFER},
        [f"✗ the migration may go to the share-manager's node: {SENTENCES[Reason.MIGRATION_TARGET]}", "Decision"],
    ),
    "a patch of annotations": (
        virt_launcher(), [], {}, ["Patch: records the decision in the annotations (1 operation)"]
    ),
    "a patch of the scheduler's name": (
        virt_launcher(claims=[]),
        [],
        {"scheduler_names": {"default-scheduler": "secondary-scheduler"}},
        ["Patch: sets schedulerName to secondary-scheduler (1 operation)"],
    ),
    "an observer's patch": (
        virt_launcher(),
        storage(),
        {"action": Action.OBSERVE},
        ["Patch: none, because the webhook only observes, or is not called"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("received", "cluster", "overrides", "shown"), SHOWN.values(), ids=SHOWN)
def test_explain_shows(received: Object, cluster: list[Object], overrides: Any, shown: list[str]) -> None:
    lines = explained(received, *cluster, **overrides)
    assert shown[0] in lines
    assert lines[lines.index(shown[0]) :][: len(shown)] == shown


@pytest.mark.parametrize(
    ("received", "overrides", "reason"),
    [
        (pod(), {}, Reason.NOT_VIRT_LAUNCHER),
        (virt_launcher(node="node-a"), {}, Reason.ALREADY_BOUND),
        (virt_launcher(**preferring_fields("node-a")), {}, Reason.ALREADY_INJECTED),
        (share_manager_pod(), {"steering": False}, Reason.STEERING_OFF),
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


def test_each_pod_of_a_list_and_each_review_has_a_page(tmp_path: Path) -> None:
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request(pod("c"))}
    several = {"apiVersion": "v1", "kind": "List", "items": [virt_launcher("a"), claim("b")]}
    cluster = write_yaml(tmp_path, node(), name="cluster.yaml")
    result = run_explain("-f", write_yaml(tmp_path, several, review), "--snapshot", cluster)
    headings = [line for line in result.stdout.splitlines() if line.startswith("default/")]
    assert headings == ["default/a", "default/c"]
    assert result.stdout.count("What to do\n") == 2


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
    term = {"matchExpressions": [{"key": "s3cret", "operator": "In", "values": 3}]}
    path = write_yaml(tmp_path, virt_launcher(affinity=node_terms(term)))
    cluster = write_yaml(tmp_path, *storage(), node(ready="False"), name="cluster.yaml")
    result = run_explain("-f", path, "--snapshot", cluster)
    assert result.exit_code == 0
    assert "cannot show the steps: a field is malformed (TypeError)" in result.stdout
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
    lines = explain_stuck(server, tmp_path, *storage(), node(), pinned_vm_pod(), virtual_machine(), subject=subject)
    assert lines[:2] == ["The pod is pinned to node-a, but not scheduled there yet.", DELETED.format(300)]
    lines = explain_stuck(server, tmp_path, CORDONED, subject=subject)
    assert lines[0] == "The pod is pinned to node-a, but node-a is cordoned."
    assert lines[1:3] == [ADVICE[Reason.NODE_CORDONED], DELETED.format(30)]
    assert " ".join(lines[3:]) == f"To release the VM immediately, {RESTART}"
    lines = explain_stuck(server, tmp_path, virtual_machine(strategy="Manual"), subject=subject)
    assert lines[2:] == [
        "The webhook does not delete the pod, because the VM's run strategy does not restart it.",
        f"S{RESTART[1:]}",
    ]
    server.delete(virtual_machine())
    lines = explain_stuck(server, tmp_path, subject=subject)
    assert "because the webhook found no VirtualMachine of this name" in " ".join(lines)
    stuck = pinned_vm_pod(unschedulable=False, schedulerName="kubevirt-scheduler")
    lines = explain_stuck(server, tmp_path, node(), stuck, subject=subject)
    assert " ".join(lines).startswith("No scheduler has evaluated the pod for ")
    assert " ".join(lines).endswith(f"it names kubevirt-scheduler. {ADVICE[Reason.NOT_SCHEDULED]}")
