"""The command line as a whole: help, processes, and input of any shape, which never ends in a traceback."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.builders import (
    apart,
    node,
    node_terms,
    pod_term,
    request,
    share_manager,
    share_manager_pod,
    storage,
    virt_launcher,
    volume,
)
from webhook import __version__
from webhook.cli import commands
from webhook.cluster.manifests import documents, to_yaml
from webhook.serving.review import API_VERSION, KIND

SCRIPT = Path(sys.executable).with_name("kubevirt-scheduler")
HEAVY = {"certs", "cryptography", "flask", "gunicorn", "kubernetes", "prometheus_client", "rich", "structlog"}

# Bytes that mean nothing, and text that may mean something.
BYTES = st.binary() | st.text(st.characters(exclude_categories=["Cs"])).map(str.encode)

STRANGE = st.sampled_from([None, 1, "x", [], [None], [[1]], {}, {"a": None}, True])
VM = virt_launcher(
    "vm",
    labels={"app": "vm"},
    requests={"cpu": "1"},
    nodeSelector={"disk": "ssd"},
    tolerations=[{"key": "a", "operator": "Exists"}],
    affinity=node_terms({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]})
    | apart(pod_term({"app": "vm"}, matchLabelKeys=["app"], namespaces=["default"])),
)
REVIEW = {"apiVersion": API_VERSION, "kind": KIND, "request": request(VM)}
CLUSTER = [
    *storage("disk1", "node-a"),
    node(taints=[{"key": "a", "effect": "NoSchedule"}], allocatable={"cpu": "8"}),
    share_manager(),
    volume(required={"nodeSelectorTerms": [{}]}),
    virt_launcher("consumer", node="node-a", affinity=VM["spec"]["affinity"]),
]


def invoked(*arguments: Any, stdin: bytes = b"") -> Result:
    result = CliRunner().invoke(commands, list(map(str, arguments)), input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def file(folder: Path, name: str, *contents: Any) -> Path:
    path = folder / name
    path.write_text("---\n".join(map(to_yaml, contents)))
    return path


@pytest.mark.parametrize("command", [[], ["inject"], ["explain"]])
def test_help_has_examples_on_lines_of_their_own(command: list[str]) -> None:
    result = invoked(*command, "--help")
    assert result.exit_code == 0
    lines = [line.strip() for line in result.stdout.splitlines()]
    name = " ".join(["kubevirt-scheduler", *command])
    assert [line for line in lines if line.startswith(name) and line.endswith("--snapshot cluster.yaml")]


def test_the_commands_are_listed_and_an_unknown_one_is_refused() -> None:
    names = [line.split()[0] for line in invoked("--help").stdout.split("Commands:\n")[1].splitlines()]
    assert names[:3] == ["inject", "explain", "serve"]
    assert invoked("guess").exit_code == 2


def test_the_version_is_told() -> None:
    assert invoked("--version").stdout == f"kubevirt-scheduler {__version__}\n"


@settings(deadline=None, max_examples=50)
@given(BYTES, st.sampled_from(["yaml", "json", "patch", "diff"]))
def test_whatever_bytes_come_it_is_decided_or_refused_in_one_line(content: bytes, output: str) -> None:
    with TemporaryDirectory() as folder:
        cluster = file(Path(folder), "cluster.yaml", *CLUSTER)
        for command in (["inject", "-o", output], ["explain"]):
            result = invoked(*command, "-f", "-", "--snapshot", cluster, stdin=content)
            assert result.exit_code in (0, 2)
            assert len(result.stderr.splitlines()) == (1 if result.exit_code else 0)


@settings(deadline=None, max_examples=50)
@given(BYTES)
def test_whatever_bytes_are_the_snapshot_it_is_decided_or_refused_in_one_line(content: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = file(Path(folder), "pod.yaml", VM)
        result = invoked("inject", "-f", path, "--snapshot", "-", stdin=content)
        assert result.exit_code == 2
        assert len(result.stderr.splitlines()) == 1


def leaves(content: Any, *way: str | int) -> list[tuple[str | int, ...]]:
    """The ways to everything in an object."""
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return [way, *(leaf for key, one in inner for leaf in leaves(one, *way, key))]


def changed(content: Any, way: tuple[str | int, ...], value: Any) -> Any:
    if not way:
        return value
    copy = list(content) if isinstance(content, list) else dict(content)
    copy[way[0]] = changed(content[way[0]], way[1:], value)
    return copy


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(leaves(VM)), STRANGE)
def test_whatever_shape_a_pod_has_it_is_decided_and_explained_or_refused(way: tuple[str | int, ...], odd: Any) -> None:
    with TemporaryDirectory() as folder:
        cluster, path = (
            file(Path(folder), "cluster.yaml", *CLUSTER),
            file(Path(folder), "pod.yaml", changed(VM, way, odd)),
        )
        for command in (["inject"], ["inject", "-o", "diff"], ["explain"]):
            result = invoked(*command, "-f", path, "--snapshot", cluster)
            assert result.exit_code in (0, 2)
            assert result.exit_code == 0 or len(result.stderr.splitlines()) == 1


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(leaves(CLUSTER)[1:]), STRANGE)
def test_whatever_shape_the_cluster_has_it_is_decided_and_explained_or_refused(
    way: tuple[str | int, ...], odd: Any
) -> None:
    with TemporaryDirectory() as folder:
        cluster = file(Path(folder), "cluster.yaml", *changed(CLUSTER, way, odd))
        for received in (VM, share_manager_pod()):
            path = file(Path(folder), "pod.yaml", received)
            for command in ("inject", "explain"):
                assert invoked(command, "-f", path, "--snapshot", cluster).exit_code in (0, 2)


# The process as a whole, because a runner in this one hides what a shell would see.


def shell(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{SCRIPT.parent}:{os.environ['PATH']}"}
    command = ["bash", "-c", f"set -o pipefail; {script}"]
    return subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a pod and a cluster in it, and with many pods."""
    file(tmp_path, "pod.yaml", virt_launcher())
    file(tmp_path, "many.yaml", *[virt_launcher()] * 500)
    file(tmp_path, "cluster.yaml", *storage())
    return tmp_path


def test_the_process_decides_and_exits_with_0(folder: Path) -> None:
    done = shell("cat pod.yaml | kubevirt-scheduler inject -f - --snapshot cluster.yaml", folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert next(documents(done.stdout))["metadata"]["annotations"]["kubevirt-scheduler/co-scheduled-node"] == "node-a"


def test_the_process_refuses_with_2_and_one_line(folder: Path) -> None:
    done = shell("head -c 300 /dev/zero | kubevirt-scheduler inject -f - --snapshot cluster.yaml", folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "Error: standard input: document 1: it is no YAML: control characters are not allowed\n"


def test_a_broken_pipe_is_no_news(folder: Path) -> None:
    done = shell("kubevirt-scheduler inject -f many.yaml --snapshot cluster.yaml | head -n 1", folder)
    assert done.stdout == "apiVersion: v1\n"
    assert done.stderr == ""


def test_a_full_disk_is_told_in_one_line(folder: Path) -> None:
    done = shell("kubevirt-scheduler inject -f pod.yaml --snapshot cluster.yaml > /dev/full", folder)
    assert (done.returncode, done.stderr) == (1, "Error: No space left on device\n")


@pytest.mark.parametrize("closed", ["<&-", "0</dev/null"])
def test_no_standard_input_is_told(folder: Path, closed: str) -> None:
    done = shell(f"kubevirt-scheduler inject -f - --snapshot cluster.yaml {closed}", folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: standard input: it is ")
    assert done.stderr.count("\n") == 1


def test_the_encoding_of_the_terminal_does_not_matter(folder: Path) -> None:
    file(folder, "pod.yaml", virt_launcher(annotations={"city": "Köln"}))
    command = "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 kubevirt-scheduler {} -f pod.yaml --snapshot cluster.yaml"
    assert "city: Köln\n" in shell(command.format("inject"), folder).stdout
    assert "✓ is it opted in?" in shell(command.format("explain"), folder).stdout


@pytest.mark.parametrize("output", ["yaml", "json", "patch", "diff"])
def test_inject_imports_no_library_that_it_does_not_need(folder: Path, output: str) -> None:
    options = "-f pod.yaml --snapshot cluster.yaml"
    done = shell(f"PYTHONPROFILEIMPORTTIME=1 kubevirt-scheduler inject {options} -o {output}", folder)
    assert done.returncode == 0
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "webhook" in imported
    assert not imported & HEAVY
