"""The command line as a whole: help, exit codes, streams, and arbitrary input, which never causes a traceback."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.builders import (
    node,
    node_terms,
    pod_anti_affinity,
    pod_term,
    share_manager,
    share_manager_pod,
    storage,
    virt_launcher,
    volume,
)
from tests.support.command_line import run_cli, write_manifests
from tests.support.fake_api_server import ApiServer
from tests.support.malformed import MALFORMED, replaced, value_paths
from webhook import __version__
from webhook.cli import COMMANDS

SCRIPT = Path(sys.executable).with_name("kubevirt-scheduler")
PLUGIN = "kubectl-coschedule"
HEAVY_LIBRARIES = {"cryptography", "flask", "gunicorn", "kubernetes", "prometheus_client"}

# Arbitrary bytes, and arbitrary text, which may be valid YAML.
BYTES = st.binary() | st.text(st.characters(exclude_categories=["Cs"])).map(str.encode)


VM = virt_launcher(
    "vm",
    labels={"app": "vm"},
    requests={"cpu": "1"},
    nodeSelector={"disk": "ssd"},
    tolerations=[{"key": "a", "operator": "Exists"}],
    affinity=node_terms({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]})
    | pod_anti_affinity(pod_term({"app": "vm"}, matchLabelKeys=["app"], namespaces=["default"])),
)


CLUSTER = [
    *storage("disk1", "node-a"),
    node(taints=[{"key": "a", "effect": "NoSchedule"}], allocatable={"cpu": "8"}),
    share_manager(),
    volume(required={"nodeSelectorTerms": [{}]}),
    virt_launcher("consumer", node="node-a", affinity=VM["spec"]["affinity"]),
]


@pytest.mark.parametrize("words", ["", "report", "certs status"])
def test_help_prints_what_the_option_prints(words: str) -> None:
    assert run_cli("help", *words.split()).stdout == run_cli(*words.split(), "--help").stdout
    unknown = run_cli("help", *words.split(), "nope")
    assert (unknown.exit_code, "to list all: kubevirt-scheduler help" in unknown.stderr) == (2, True)


def test_help_lists_the_commands_and_examples_in_lines_and_an_unknown_command_is_corrected() -> None:
    lines = [line.strip() for line in run_cli("inject", "--help").stdout.splitlines()]
    assert "kubevirt-scheduler inject -f pod.yaml --snapshot cluster.json" in lines
    names = [line.split()[0] for line in run_cli("--help").stdout.split("Commands:\n")[1].splitlines()]
    assert names == list(COMMANDS)
    assert names[:3] == ["doctor", "report", "dashboard"]
    assert run_cli("--version").stdout == f"kubevirt-scheduler {__version__}\n"
    unknown = run_cli("raport")
    assert (unknown.exit_code, "Did you mean 'report'?" in unknown.stderr) == (2, True)


@pytest.mark.parametrize("words", ["--help", "certs status --help"])
def test_the_help_of_the_plugin_names_the_plugin(tmp_path: Path, words: str) -> None:
    shown = {name: shell(f"COLUMNS=100 {name} {words}", tmp_path).stdout for name in ("kubevirt-scheduler", PLUGIN)}
    assert "kubectl coschedule " in shown[PLUGIN]
    assert "kubevirt-scheduler report" not in shown[PLUGIN]
    assert "kubevirt-scheduler certs" not in shown[PLUGIN]
    assert "kubectl coschedule" not in shown["kubevirt-scheduler"]
    assert len(shown[PLUGIN]) == len(shown["kubevirt-scheduler"])


def test_as_and_as_group_impersonate_as_in_kubectl(tmp_path: Path) -> None:
    with ApiServer() as server:
        options = ["--kubeconfig", server.kubeconfig(tmp_path), "--as-group", "ops", "--as-group", "dev"]
        run_cli("report", *options, "--as", "jane")
        assert {each.headers["impersonate-user"] for each in server.requests} == {"jane"}
        assert {each.headers["impersonate-group"] for each in server.requests} == {"ops, dev"}
        refused = run_cli("report", *options)
    assert (refused.exit_code, "--as-group requires --as" in refused.stderr) == (2, True)
    with ApiServer() as server:
        run_cli("report", "--kubeconfig", server.kubeconfig(tmp_path, **{"as": "guest", "as-groups": ["guests"]}))
        assert {each.headers["impersonate-user"] for each in server.requests} == {"guest"}
        assert {each.headers["impersonate-group"] for each in server.requests} == {"guests"}


@settings(deadline=None, max_examples=50)
@given(BYTES, st.sampled_from(["yaml", "json", "diff"]))
def test_arbitrary_bytes_as_the_pod_are_decided_or_rejected_in_one_line(content: bytes, output: str) -> None:
    with TemporaryDirectory() as folder:
        cluster = write_manifests(Path(folder), *CLUSTER)
        for command in (["inject", "-o", output], ["explain"]):
            result = run_cli(*command, "-f", "-", "--snapshot", cluster, stdin=content)
            assert result.exit_code in (0, 2)
            assert len(result.stderr.splitlines()) == (1 if result.exit_code else 0)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([*value_paths([VM, *CLUSTER])][1:]), MALFORMED)
def test_a_malformed_object_is_decided_and_explained_or_rejected(path: tuple[str | int, ...], malformed: Any) -> None:
    with TemporaryDirectory() as folder:
        received, *objects = replaced([VM, *CLUSTER], path, malformed)
        cluster, pod = write_manifests(Path(folder), *objects), write_manifests(Path(folder), received, name="pod.yaml")
        server = write_manifests(Path(folder), share_manager_pod(), name="server.yaml")
        for command in (["inject", "-f", pod, "-o", "diff"], ["explain", "-f", pod], ["inject", "-f", server]):
            result = run_cli(*command, "--snapshot", cluster)
            assert result.exit_code in (0, 2)
            assert result.exit_code == 0 or len(result.stderr.splitlines()) <= 2  # a warning about the snapshot


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize(
    "content",
    [
        "[" * 200_000,
        "{a: " * 200_000,
        "- " * 2_000,
        f'{{"apiVersion": "v1", "kind": "ConfigMap", "data": {"[" * 2_000 + "]" * 2_000}}}',
    ],
    ids=["flow sequences", "flow mappings", "block sequences", "JSON"],
)
def test_a_deeply_nested_file_is_rejected_in_one_line(tmp_path: Path, content: str) -> None:
    cluster = write_manifests(tmp_path, *CLUSTER)
    result = run_cli("inject", "-f", "-", "--snapshot", cluster, stdin=content.encode())
    assert (result.exit_code, result.stderr) == (2, "Error: an object of a file is nested too deeply\n")


# These tests start a real process: click's CliRunner hides broken pipes, closed streams and encodings.


def shell(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{SCRIPT.parent}:{os.environ['PATH']}"}
    command = ["bash", "-c", f"set -o pipefail; {script}"]
    return subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a pod, a file of 500 pods, and a cluster."""
    write_manifests(tmp_path, virt_launcher(), name="pod.yaml")
    write_manifests(tmp_path, *[virt_launcher()] * 500, name="many.yaml")
    write_manifests(tmp_path, *storage())
    return tmp_path


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_exits_with_130_and_prints_one_line(folder: Path, signum: signal.Signals) -> None:
    # A background job of a shell ignores SIGINT, and so do its children, unless `env` restores the default.
    os.mkfifo(folder / "pipe")
    command = ["env", "--default-signal=INT", SCRIPT, "report", "--snapshot", folder / "pipe"]
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process,
        (folder / "pipe").open("wb"),  # waits until the command reads it
    ):
        process.send_signal(signum)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "Interrupted\n")


def test_a_broken_pipe_prints_no_error_and_a_full_disk_one_line(folder: Path) -> None:
    process = shell("kubevirt-scheduler inject -f many.yaml --snapshot cluster.yaml | head -n 1", folder)
    assert (process.stdout, process.stderr) == ("apiVersion: v1\n", "")
    process = shell("kubevirt-scheduler inject -f pod.yaml --snapshot cluster.yaml > /dev/full", folder)
    assert (process.returncode, process.stderr) == (1, "Error: No space left on device\n")


@pytest.mark.parametrize(("closed", "problem"), [("<&-", "closed"), ("0</dev/null", "empty file")])
def test_missing_standard_input_is_reported(folder: Path, closed: str, problem: str) -> None:
    process = shell(f"kubevirt-scheduler inject -f - --snapshot cluster.yaml {closed}", folder)
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr.startswith(f"Error: standard input: {problem}")
    assert process.stderr.count("\n") == 1


def test_output_is_utf_8_in_any_locale(folder: Path) -> None:
    write_manifests(folder, virt_launcher(annotations={"city": "Köln"}), name="pod.yaml")
    command = "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 kubevirt-scheduler {} -f pod.yaml --snapshot cluster.yaml"
    assert "city: Köln\n" in shell(command.format("inject"), folder).stdout
    assert "✓ opted in" in shell(command.format("explain"), folder).stdout


def test_inject_imports_no_heavy_library(folder: Path) -> None:
    options = "-f pod.yaml --snapshot cluster.yaml -o diff"
    process = shell(f"PYTHONPROFILEIMPORTTIME=1 kubevirt-scheduler inject {options}", folder)
    assert process.returncode == 0
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in process.stderr.splitlines()}
    assert "webhook" in imported
    assert not imported & HEAVY_LIBRARIES


@pytest.mark.parametrize("command", ["doctor", "certs status", "benchmark --yes"])
@pytest.mark.parametrize("name", ["", "?a", "a/b"])
def test_what_is_no_name_does_not_read_the_list_of_all_objects(command: str, name: str) -> None:
    option = "--storage-class" if command.startswith("benchmark") else "--webhook-configuration"
    result = run_cli(*command.split(), option, name)
    assert (result.exit_code, f"expected a name, got {name!r}" in result.stderr) == (2, True)
