"""`explain` prints each step of a decision, and the steps agree with the decision of `inject`."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.support import paths
from tests.support.builders import (
    OPT_IN,
    Object,
    catalog,
    claim,
    injection_for,
    labeled_namespace,
    name_requirement,
    node,
    node_terms,
    pinned_fields,
    pod,
    preferring_fields,
    request,
    review,
    share_manager,
    share_manager_pod,
    storage,
    virt_launcher,
    virtual_machine,
    volume,
)
from tests.support.command_line import run_cli, write_manifests
from tests.support.fleet import without_settings
from webhook.commands.explain.explanation import FOLLOWED, explain_review
from webhook.placement import wording
from webhook.placement.objects.selectors import Requirement
from webhook.placement.reasons import Reason
from webhook.placement.settings import Action, MigrationTargets, Settings
from webhook.placement.wording import SENTENCES
from webhook.reading.kubernetes_yaml import documents

ADVICE = {reason: each.text for reason, each in wording.ADVICE.items()}
CASES = sorted(paths.CASES.iterdir())
ALLOCATABLE = {"cpu": "4", "memory": "8Gi", "pods": "110"}


def explained(received: Object, *manifests: Object, **overrides: Any) -> list[str]:
    """The lines that `explain` prints for the steps of a new pod, each after its mark."""
    store, chosen = catalog(*manifests), Settings(**overrides)
    found = explain_review(review(received, received["metadata"]["namespace"], chosen), store, chosen)
    marks = {None: "", True: "✓ ", False: "✗ "}
    lines = []
    for section in found["steps"]:
        lines.append(section.title)
        for each in section.findings:
            mark = marks[each.holds] if each.decisive else f"({marks[each.holds].strip()}) "
            lines.append(f"{mark}{each.text}")
    return [*lines, "Decision"]


def run_explain(folder: Path, *received: Object, cluster: tuple[Object, ...] = (node(),), **env: str) -> Result:
    """Explain the objects of a file in a cluster."""
    file = write_manifests(folder, *received, name="pod.yaml")
    return run_cli("explain", "-f", file, "--snapshot", write_manifests(folder, *cluster), env=env)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_explanation_of_a_golden_case_has_its_decision_and_findings(case: Path) -> None:
    (expected,) = documents(case.joinpath("expected.yaml").read_text())
    decision = expected["decision"]
    settings = case / "settings.yaml"
    environment = next(documents(settings.read_text())) if settings.exists() else {}
    files = "-f", case / "pod.yaml", "--snapshot", case / "cluster.yaml"
    result = run_cli("explain", *files, env=environment | {"COLUMNS": "999"})
    assert (result.exit_code, without_settings(result.stderr)) == (0, "")
    words = " ".join(result.stdout.split())
    assert " ".join(f"{decision['outcome']}, {decision['reason']}: {decision['message']}".split()) in words
    if decision["reason"] != "NoShareManager":  # then each claim has its advice, below
        assert ADVICE[Reason(decision["reason"])] in words
    for finding in decision["claims"]:
        assert finding["claim"] in words
        node = finding["node"]
        expected_node = f"{node} runs other pods" if finding["reason"] else f"served by {node} (source:"
        assert finding["node"] is None or expected_node in words or "Which pods use the volume?" in words
        if reason := finding["reason"]:
            assert re.search(f"{reason}(: the share-manager [a-z ]+)?[.] {re.escape(ADVICE[Reason(reason)])}", words)


TARGET = {"kubevirt.io/migrationJobUID": "a"}
CORDONED = node(unschedulable=True)
UNREADY = node(ready="False", allocatable=ALLOCATABLE, taints=[{"key": "dedicated", "effect": "NoSchedule"}])
AVOIDING = {"weight": 100, "preference": {"matchFields": [name_requirement("node-a", "NotIn")]}}
AVOIDS = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [AVOIDING]}}
HERE = virt_launcher("vm", node="node-a")
ELSEWHERE = virt_launcher("vm", labels=TARGET, nodeSelector={"kubernetes.io/hostname": "node-c"})
STATE = [
    claim("state", labels={"persistent-state-for": "vm"}),
    volume("state"),
    share_manager_pod("vol-state", node="node-c"),
]
NO_VOTE = "no vote: the pod must be opted in, bound, and Pending or Running"
MISMATCH = "node-a does not match the pod's required node affinity"


# A new pod, the cluster, the settings, and lines that follow each other.
SHOWN: dict[str, tuple[Object, list[Object], dict[str, Any], list[str]]] = {
    "the VMs of a share-manager pod": (
        share_manager_pod(affinity=AVOIDS),
        [
            claim(),
            volume(),
            HERE,
            virt_launcher("other", node="node-b", opt_in=None),
            virt_launcher("going", node="node-a", deleting=True),
            virt_launcher("new"),
        ],
        {},
        [
            "Which pods use the volume?",
            "volume vol-disk1 → PV pvc-disk1 → claim default/disk1",
            "✓ default/vm: on node-a",
            f"✗ default/other: on node-b; {NO_VOTE}",
            f"✗ default/going: on node-a, terminating or not running; {NO_VOTE}",
            f"✗ default/new: not bound to a node; {NO_VOTE}",
            "the pod prefers to avoid node-a",
            "Decision",
        ],
    ),
    "a second candidate": (
        share_manager_pod(),
        [volume(), HERE, virt_launcher("target", node="node-b", labels=TARGET), CORDONED, node("node-b")],
        {},
        ["Which node is the target?", "✓ node-b", "✗ node-a", "Can node-a run the pod?"],
    ),
    "a share-manager that runs": (
        virt_launcher(), [claim(), volume(), share_manager()], {},
        [
            "claim disk1 → PV pvc-disk1 → volume vol-disk1",
            "ShareManager: running, owned by node-a",
            "✓ served by node-a (source: share-manager)",
        ],
    ),
    "a share-manager that has stopped": (
        virt_launcher(), [claim(), volume(), share_manager(state="stopped")], {},
        [
            "ShareManager: stopped, owned by node-a",
            f"NoShareManager: the share-manager is stopped. {ADVICE[Reason.NO_SHARE_MANAGER]}",
            "Decision",
        ],
    ),
    "several nodes": (
        virt_launcher(claims=["disk1", "disk2", "state"]),
        [*storage(), *storage("disk2", "node-b"), *STATE],
        {},
        [
            "✓ served by node-c (source: share-manager-pod); no vote",
            "Which node is the target?",
            "✓ node-a",
            "✗ node-b",
        ],
    ),
    "all checks and the free resources": (
        virt_launcher(requests={"cpu": "5"}),
        [*storage(), UNREADY],
        {},
        [
            "(✓) nothing that the guard can't evaluate",
            "✗ untolerated taint: dedicated:NoSchedule",
            "✓ pods: requested 1, free 109",
            "✗ cpu: requested 5, free 4",
        ],
    ),
    "no guard": (
        virt_launcher(affinity=node_terms(None)), [*storage(), UNREADY], {"node_guard": False},
        [
            f"✗ a required node affinity that can match a node: {MISMATCH}",
            "(✓) exists",
            "(✗) Ready: node-a is not Ready",
        ],
    ),
    "an RWO claim": (
        virt_launcher(), [claim(modes=["ReadWriteOnce"])], {}, [
            "claim disk1 → PV pvc-disk1", f"✗ {Reason.CLAIM_NOT_RWX}. {ADVICE[Reason.CLAIM_NOT_RWX]}",
        ]
    ),
    "a stopped share-manager": (
        virt_launcher(),
        [claim(), volume(), share_manager(owner="", state=None, deleting=True)],
        {},
        [
            "claim disk1 → PV pvc-disk1 → volume vol-disk1",
            "ShareManager: no state, owned by no node, being deleted",
            f"{Reason.NO_SHARE_MANAGER}: the share-manager is being deleted. {ADVICE[Reason.NO_SHARE_MANAGER]}",
        ],
    ),
    "a migration that leads elsewhere": (
        ELSEWHERE,
        [*storage(), node()],
        {"migration_targets": MigrationTargets.PREFER},
        ["✓ node-a", f"✗ {SENTENCES[Reason.MIGRATION_TARGET]}", "Decision"],
    ),
    "an observer that evaluates every VM": (
        virt_launcher(opt_in=None), storage(), {"action": Action.OBSERVE},
        ["✗ opted in: the VM is not opted in", "✓ not a live-migration target"],
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


def test_an_opted_in_pod_that_runs_no_vm_says_that_its_share_manager_follows_it(tmp_path: Path) -> None:
    web = pod("web", claims=["disk1"], node="node-b", annotations={OPT_IN: "true"})
    other = pod("other", claims=["disk1"], node="node-b")
    file = write_manifests(tmp_path, *storage(), node(), node("node-b"), web, other)
    result = run_cli("explain", "pod", "web", "--snapshot", file, "-o", "json")
    (found,) = json.loads(result.stdout)
    lines = [line["text"] for line in found["steps"][0]["findings"]]
    assert "opted in: Apart. The share-manager of claim disk1, which node-a serves, follows it" in lines
    assert found["advice"] == [FOLLOWED]
    assert found["decision"]["reason"] == "NotVirtLauncher"
    unasked = run_cli("explain", "pod", "other", "--snapshot", file, "-o", "json").stdout
    assert ("opted in: " in unasked, FOLLOWED in unasked) == (False, False)


def test_explain_evaluates_a_pod_as_if_it_were_eligible() -> None:
    received = virt_launcher(opt_in=None, labels={"kubevirt.io/migrationJobUID": "a"})
    lines = explained(received, *storage(), node())
    assert [line for line in lines if line.startswith("✗")] == [
        "✗ opted in: the VM is not opted in",
        "✗ not a live-migration target: the pod is a live-migration target, and KubeVirt chooses its node",
    ]
    found = explain_review(review(received), catalog(*storage(), node()), Settings())
    assert (found["decision"]["outcome"], found["ifEligible"]["outcome"]) == ("unchanged", "pinned")
    assert (found["patch"], found["advice"]) == (None, [ADVICE[Reason(found["decision"]["reason"])]])


def test_each_pod_of_a_list_and_each_review_has_a_page(tmp_path: Path) -> None:
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request(pod("c"))}
    several = {"apiVersion": "v1", "kind": "List", "items": [virt_launcher("a"), claim("b")]}
    result = run_explain(tmp_path, several, review)
    headings = [line for line in result.stdout.splitlines() if line.startswith("default/")]
    assert headings == ["default/a", "default/c"]
    assert result.stdout.count("What to do\n") == 2


def test_control_characters_in_names_are_replaced(tmp_path: Path) -> None:
    shown = run_explain(tmp_path, virt_launcher("a\x1b[31m", claims=["[red]b\x1b[31m\r"])).stdout
    assert "\x1b" not in shown
    assert "claim [red]b\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}" in shown


def test_a_terminal_of_few_columns_wraps_each_word(tmp_path: Path) -> None:
    shown = run_explain(tmp_path, virt_launcher(), cluster=storage(), COLUMNS="3").stdout
    assert "CoScheduled:" in shown.replace("\n", "").replace(" ", "")


def test_a_malformed_field_is_named_and_not_quoted(tmp_path: Path) -> None:
    result = run_explain(
        tmp_path, virt_launcher(requests={"cpu": "s3cret"}), cluster=(*storage(), node()), COLUMNS="999"
    )
    assert result.exit_code == 0
    assert (
        f"unchanged, {Reason.UNJUDGED}: the pod is malformed (spec.containers[0].resources.requests.cpu: "
        in result.stdout
    )
    assert "s3cret" not in result.stdout


@pytest.mark.parametrize(
    ("received", "problem"),
    [
        (
            virt_launcher("a", node="node-a", requests={"cpu": "1 core"}),
            "document 1: Pod a: spec.containers[0].resources.requests.cpu: expected a quantity, such as 500m or 4Gi",
        ),
        (
            virtual_machine() | {"spec": {}},
            "no Pod found; to print the pods of VMs: kubectl get pod -l kubevirt.io=virt-launcher -o yaml",
        ),
    ],
    ids=["a malformed quantity of an existing pod", "no pod"],
)
def test_a_file_without_a_pod_to_explain_is_rejected_in_one_line(
    tmp_path: Path, received: Object, problem: str
) -> None:
    result = run_explain(tmp_path, received)
    assert (result.exit_code, result.stdout) == (2, "")
    assert without_settings(result.stderr) == f"Error: {tmp_path / 'pod.yaml'}: {problem}\n"


def test_the_advice_names_the_first_of_the_annotations_that_opt_in() -> None:
    renamed = Settings(opt_in_annotations=("example.com/together", "kubevirt-scheduler/co-schedule"))
    advice = 'Annotate the VM\'s spec.template with example.com/together: "true" and restart it.'
    found = explain_review(review(virt_launcher(opt_in=None), chosen=renamed), catalog(*storage(), node()), renamed)
    assert found["advice"] == [advice]


def test_in_a_namespace_that_is_not_selected_explain_advises_no_annotation() -> None:
    excluding = Settings(namespace_selector=(Requirement("team", "Exists"),))
    found = explain_review(
        review(virt_launcher(), chosen=excluding), catalog(*storage(), labeled_namespace()), excluding
    )
    advice = "Nothing opts in VMs of namespace default: webhook.namespaceSelector excludes it."
    assert (found["decision"]["reason"], found["advice"]) == (Reason.NOT_OPTED_IN, [advice])
