"""`inject` shows what would become of a pod, keeps all else as it was, and never ends in a traceback."""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import jsonpatch
import msgspec
import pytest
from click.testing import CliRunner, Result
from hypothesis import strategies as st

from tests.support import paths
from tests.support.builders import (
    Object,
    catalog,
    claim,
    node,
    patched,
    pod,
    request,
    storage,
    virt_launcher,
)
from webhook.cli import commands
from webhook.cluster.manifests import documents, to_yaml
from webhook.placement.decision import Reason
from webhook.placement.injector import inject
from webhook.placement.settings import Settings
from webhook.serving.review import API_VERSION, KIND, as_json

REVIEWS = sorted(paths.REVIEWS.glob("*.json"))
CASES = sorted(paths.CASES.iterdir())
SCRIPT = Path(sys.executable).with_name("kubevirt-scheduler")

CLUSTER = [*storage(), *storage("disk2", "node-b"), virt_launcher("consumer", node="node-c")]
CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"key": "1e3", "at": "12:30"}}
CREATION = {"apiVersion": API_VERSION, "kind": KIND, "request": request(virt_launcher())}

# Bytes that mean nothing, and documents that begin well.
BYTES = st.binary() | st.text(st.characters(exclude_categories=["Cs"])).map(str.encode)

Run = Callable[..., Result]


def invoked(*arguments: Any, env: dict[str, str] | None = None, stdin: str | bytes = "") -> Result:
    result = CliRunner().invoke(commands, list(map(str, arguments)), env=env, input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs `inject` on a file with the cluster above."""
    cluster = file(tmp_path, {"apiVersion": "v1", "kind": "List", "items": CLUSTER}, name="cluster.yaml")
    return partial(invoked, "inject", "--snapshot", cluster, "-f")


def file(folder: Path, *contents: Any, name: str = "pod.yaml") -> Path:
    path = folder / name
    path.write_text("---\n".join(map(to_yaml, contents)))
    return path


def told(result: Result) -> Any:
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


def printed(result: Result) -> list[Any]:
    assert (result.exit_code, result.stderr) == (0, "")
    return list(documents(result.stdout))


def mutated(received: Object) -> Object:
    injection = inject(request(received, received["metadata"]["namespace"]), catalog(*CLUSTER), Settings())
    after: Object = patched(received, injection)
    return after


def refusal(result: Result) -> str:
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    return line.removeprefix("Error: ")


@pytest.mark.parametrize("review", REVIEWS, ids=lambda review: review.stem)
def test_a_recorded_review_prints_its_mutated_object(run: Run, review: Path) -> None:
    received = json.loads(review.read_bytes())["request"]
    expected = patched(received["object"], inject(received, catalog(*CLUSTER), Settings()))
    (found,) = printed(run(review))
    assert json.dumps(found) == json.dumps(mutated(received["object"]))  # as text: the order of keys counts
    assert found == expected


@pytest.mark.parametrize("review", REVIEWS, ids=lambda review: review.stem)
def test_the_patch_leads_from_the_recorded_object_to_the_printed_one(run: Run, review: Path) -> None:
    received, operations = json.loads(review.read_bytes())["request"]["object"], told(run(review, "-o", "patch"))
    assert [jsonpatch.apply_patch(received, operations)] == printed(run(review))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_golden_case_comes_out_as_written_down(case: Path) -> None:
    settings = case / "settings.yaml"
    environment = next(documents(settings.read_text())) if settings.exists() else {}
    arguments = ["inject", "-f", case / "pod.yaml", "--snapshot", case / "cluster.yaml", "-o", "json"]
    result = invoked(*arguments, env=environment)
    (expected,) = documents(case.joinpath("expected.yaml").read_text())
    assert told(result) == expected


def test_documents_of_other_kinds_come_out_as_they_went_in(run: Run, tmp_path: Path) -> None:
    other = pod("other", annotations={"a": "on", "b": "2026-11-21T11:01:53Z"}, unknown={"field": [1.5, None]})
    path = file(tmp_path, CONFIG_MAP, virt_launcher(), other)
    assert json.dumps(printed(run(path))) == json.dumps([CONFIG_MAP, mutated(virt_launcher()), other])
    assert to_yaml(CONFIG_MAP) in run(path).stdout


def test_a_list_stays_a_list_with_its_pods_mutated_in_place(run: Run, tmp_path: Path) -> None:
    inner = {"kind": "PodList", "items": [virt_launcher("b")], "apiVersion": "v1"}
    content = {"apiVersion": "v1", "items": [CONFIG_MAP, virt_launcher("a"), inner], "kind": "List", "metadata": {}}
    expected = content | {
        "items": [CONFIG_MAP, mutated(virt_launcher("a")), inner | {"items": [mutated(virt_launcher("b"))]}]
    }
    assert json.dumps(printed(run(file(tmp_path, content)))) == json.dumps([expected])


def test_a_pod_without_a_namespace_is_in_default(run: Run, tmp_path: Path) -> None:
    bare = virt_launcher()
    del bare["metadata"]["namespace"]
    assert told(run(file(tmp_path, bare), "-o", "json"))["decision"]["node"] == "node-a"


def test_the_input_may_come_from_standard_input(run: Run) -> None:
    expected = [mutated(virt_launcher())]
    assert printed(run("-", stdin=to_yaml(virt_launcher()))) == expected
    assert printed(run("-", stdin=json.dumps(virt_launcher()))) == expected


def test_one_pod_is_an_object_in_json_and_several_are_a_list(run: Run, tmp_path: Path) -> None:
    vm, other = virt_launcher(), pod("other")
    one, two = file(tmp_path, vm, name="one.yaml"), file(tmp_path, vm, CONFIG_MAP, other, name="two.yaml")
    expected = inject(request(vm), catalog(*CLUSTER), Settings())
    nothing = inject(request(other), catalog(*CLUSTER), Settings())
    assert told(run(one, "-o", "json")) == msgspec.to_builtins(as_json(expected))
    assert told(run(two, "-o", "json")) == msgspec.to_builtins([as_json(expected), as_json(nothing)])
    assert told(run(one, "-o", "patch")) == expected.patch
    assert told(run(two, "-o", "patch")) == [expected.patch, []]


def test_where_nothing_is_to_be_done_the_patch_is_empty(run: Run, tmp_path: Path) -> None:
    path = file(tmp_path, pod("other"))
    assert told(run(path, "-o", "patch")) == []
    assert told(run(path, "-o", "json"))["patch"] is None
    assert run(path, "-o", "diff").stdout == ""
    assert told(run(file(tmp_path, CONFIG_MAP), "-o", "patch")) == []


def test_a_review_of_another_kind_is_decided_and_printed(run: Run, tmp_path: Path) -> None:
    asked = request(CONFIG_MAP, kind={"group": "", "version": "v1", "kind": "ConfigMap"})
    path = file(tmp_path, CREATION | {"request": asked})
    assert printed(run(path)) == [CONFIG_MAP]
    assert told(run(path, "-o", "json"))["decision"]["reason"] == Reason.NOT_A_POD_CREATION


def test_a_review_without_an_object_is_printed_as_it_is(run: Run, tmp_path: Path) -> None:
    review = CREATION | {"request": request(None, operation="DELETE")}
    assert printed(run(file(tmp_path, review))) == [review]


def test_the_diff_shows_what_is_added_and_nothing_else(run: Run, tmp_path: Path) -> None:
    path = file(tmp_path, CONFIG_MAP, virt_launcher("vm"), pod("other"))
    lines = run(path, "-o", "diff", "--no-color").stdout.splitlines()
    assert lines[:2] == [f"--- {path} default/vm", f"+++ {path} default/vm (injected)"]
    assert "+    kubevirt-scheduler/co-scheduled-node: node-a" in lines
    assert not [line for line in lines[2:] if line.startswith("-")]
    assert not [line for line in lines if "other" in line]


def test_the_diff_is_coloured_where_it_was_asked_for(run: Run, tmp_path: Path) -> None:
    path = file(tmp_path, virt_launcher())
    assert "\x1b" not in run(path, "-o", "diff").stdout
    colored = run(path, "-o", "diff", "--color", env={"NO_COLOR": "1"}).stdout
    assert "\x1b[32m+    kubevirt-scheduler/co-scheduled-node: node-a\x1b[0m\n" in colored
    assert click.unstyle(colored) == run(path, "-o", "diff").stdout


def test_a_warning_goes_to_standard_error_and_names_the_pod_among_several(run: Run, tmp_path: Path) -> None:
    vm = virt_launcher("vm", claims=["disk1", "disk2"])
    conflict = "kubevirt-scheduler: the claims are served by several nodes: node-a is meant, not node-b"
    assert run(file(tmp_path, vm)).stderr == f"Warning: {conflict}\n"
    assert run(file(tmp_path, vm, pod("other")), "-o", "diff").stderr == f"Warning: default/vm: {conflict}\n"
    assert told(run(file(tmp_path, vm), "-o", "json"))["warnings"] == [conflict]


def test_a_warning_can_not_command_the_terminal(run: Run, tmp_path: Path) -> None:
    vm = virt_launcher(claims=["a\x1b[31m\nb"])
    (line,) = run(file(tmp_path, vm)).stderr.splitlines()
    assert "\x1b" not in line


def test_a_surprise_is_told_and_the_pod_comes_out_as_it_went_in(run: Run, tmp_path: Path) -> None:
    vm = virt_launcher(affinity="strange")
    result = run(file(tmp_path, vm))
    assert list(documents(result.stdout)) == [vm]
    assert result.exit_code == 0
    assert result.stderr.startswith(f"Warning: {Reason.INTERNAL_ERROR}: the webhook failed (Malformed)")
    assert run(file(tmp_path, vm), "-o", "json").stderr == result.stderr


def test_settings_come_from_the_environment(run: Run, tmp_path: Path) -> None:
    path = file(tmp_path, virt_launcher())
    observed = told(run(path, "-o", "json", env={"CO_SCHEDULE_ACTION": "observe"}))
    assert (observed["decision"]["node"], observed["patch"]) == ("node-a", None)
    assert refusal(run(path, env={"CO_SCHEDULE_ACTION": "perhaps"})).startswith("CO_SCHEDULE_ACTION='perhaps': allowed")


def test_verbose_says_what_else_the_snapshot_holds(run: Run, tmp_path: Path) -> None:
    other = file(tmp_path, CONFIG_MAP, claim(), name="other.yaml")
    result = run(file(tmp_path, virt_launcher()), "--snapshot", str(other), "-v")
    assert result.stderr == "The snapshot also holds, and nobody asks for it: 1 ConfigMap\n"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "it is empty; a Pod is wanted, in YAML or JSON"),
        ("a: [\n", "document 1, line 2: it is no YAML: did not find expected node content"),
        ("- 1", "document 1: it is no Kubernetes object: a map is wanted"),
        ("{apiVersion: v1, kind: Pod}", "document 1: a Pod's metadata is no map"),
        ("{apiVersion: v1, kind: Pod, metadata: {}, spec: x}", "document 1: a Pod's spec is no map"),
        (
            "{apiVersion: v1, kind: AdmissionReview}",
            "document 1: the body is no AdmissionReview of admission.k8s.io/v1",
        ),
        (f"{{apiVersion: {API_VERSION}, kind: {KIND}}}", "document 1: the AdmissionReview has no request"),
        (to_yaml(CREATION | {"request": request({})}), "document 1: a Pod's metadata is no map"),
    ],
)
def test_bad_input_is_one_line_with_file_document_and_what_is_wrong(run: Run, content: str, sentence: str) -> None:
    assert refusal(run("-", stdin=content)) == f"standard input: {sentence}"


def test_a_bad_snapshot_is_one_line_as_well(run: Run, tmp_path: Path) -> None:
    vm = file(tmp_path, virt_launcher())
    assert refusal(run(vm, "--snapshot", "missing.yaml")).startswith("missing.yaml: No such file or directory")
    bad = file(tmp_path, node(allocatable={"cpu": "lots"}), name="bad.yaml")
    assert refusal(run(vm, "--snapshot", str(bad))).startswith(f"{bad}: document 1: Node node-a: a resource quantity")


def test_without_a_snapshot_and_a_cluster_it_is_said_what_is_needed(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "none")
    result = invoked("inject", "-f", file(tmp_path, virt_launcher()), "--kubeconfig", nowhere)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.endswith("give --kubeconfig FILE, or --snapshot FILE\n")
