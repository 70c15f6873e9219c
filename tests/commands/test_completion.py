"""Each shell and kubectl complete the command line, and the kubectl plugin uses its own name."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.builders import labeled_namespace, virtual_machine
from tests.support.controlplane import build
from tests.support.fake_api_server import ApiServer
from webhook.cli import complete_kubectl_plugin

SCRIPTS = Path(sys.executable).parent


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program of a shell or of kubectl, with the installed commands on the PATH."""
    variables = {**os.environ, "PATH": f"{SCRIPTS}:{os.environ['PATH']}", **environment}
    program = shutil.which(command[0], path=variables["PATH"])
    assert program, f"{command[0]} is not on the PATH"
    return subprocess.run(
        [program, *command[1:]], check=False, capture_output=True, text=True, timeout=60, env=variables
    )


def test_a_shell_gets_a_script_that_completes_the_command_line_and_kubectl_has_a_program(tmp_path: Path) -> None:
    assert "COMP_WORDS" in run("kubevirt-scheduler", _KUBEVIRT_SCHEDULER_COMPLETE="bash_source").stdout
    words = {"COMP_WORDS": "kubevirt-scheduler inj", "COMP_CWORD": "1"}
    found = run("kubevirt-scheduler", _KUBEVIRT_SCHEDULER_COMPLETE="bash_complete", **words).stdout
    assert found == "plain,inject\n"
    with ApiServer() as server:
        kubeconfig = server.kubeconfig(tmp_path)
        contexts = run("kubectl_complete-coschedule", "report", "--context", "", KUBECONFIG=kubeconfig)
    assert (contexts.stdout, contexts.stderr) == ("x\n:4\n", "")


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ([], ["doctor\tcheck the cluster and the installed webhook"]),
        (["certs", "st"], ["status\tshow the certificates, the next renewal, and the webhooks that trust them", ":4"]),
        (["inject", "-o", ""], ["yaml", "json", "diff", ":4"]),
        (["inject", "-f", ""], [":0"]),
        (["nothing-like-this"], [":4"]),
        (["report", "-n", "s"], ["shop", ":4"]),
        (["explain", ""], ["node", "pod", "pvc", "vm", "vmi", ":4"]),
        (["explain", "-n", "shop", "vm", ""], ["db-1", ":4"]),
        (["opt-in", ""], ["db-2", ":4"]),
        (["recolocate", "-n", "shop", "x"], [":4"]),
        (["recolocate", "--exclude", "s"], ["shop", ":4"]),
        (["explain", "--context", "gone", "vm", ""], [":4"]),
    ],
)
def test_commands_options_and_names_of_the_cluster_are_completed_as_kubectl_expects(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    lines: list[str],
) -> None:
    with ApiServer() as server:
        first, second = virtual_machine("db-1"), virtual_machine("db-2")
        first["metadata"]["namespace"] = "shop"
        server.put(labeled_namespace("shop"), labeled_namespace("default"), first, second)
        monkeypatch.setenv("KUBECONFIG", server.kubeconfig(tmp_path))
        monkeypatch.setattr(sys, "argv", ["kubectl_complete-coschedule", *arguments])
        complete_kubectl_plugin()
    printed = capsys.readouterr()
    assert (printed.out.splitlines()[: len(lines)], printed.err) == (lines, "")


@pytest.mark.controlplane
def test_kubectl_runs_the_plugin_and_completes_its_arguments() -> None:
    kubectl = str(build.binaries()["kubectl"])
    assert run(kubectl, "coschedule", "--help").stdout.startswith("Usage: kubectl coschedule [OPTIONS] COMMAND")
    listed = run(kubectl, "plugin", "list", "--name-only").stdout.splitlines()
    assert "kubectl-coschedule" in listed
    completed = run(kubectl, "__complete", "coschedule", "inject", "-o", "").stdout.splitlines()
    assert completed == ["yaml", "json", "diff", ":4"]
    (found,) = [line for line in run(kubectl, "__complete", "coschedule", "inj").stdout.splitlines() if line[0] != ":"]
    assert found.startswith("inject\t")
