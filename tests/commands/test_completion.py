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

SCRIPTS = Path(sys.executable).parent


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program of a shell or of kubectl, with the installed commands on the PATH."""
    variables = {**os.environ, "PATH": f"{SCRIPTS}:{os.environ['PATH']}", **environment}
    program = shutil.which(command[0], path=variables["PATH"])
    assert program, f"{command[0]} is not on the PATH"
    return subprocess.run(
        [program, *command[1:]], check=False, capture_output=True, text=True, timeout=60, env=variables
    )


def test_a_shell_gets_a_script_that_completes_the_command_line() -> None:
    assert "COMP_WORDS" in run("kubevirt-scheduler", _KUBEVIRT_SCHEDULER_COMPLETE="bash_source").stdout
    words = {"COMP_WORDS": "kubevirt-scheduler inj", "COMP_CWORD": "1"}
    found = run("kubevirt-scheduler", _KUBEVIRT_SCHEDULER_COMPLETE="bash_complete", **words).stdout
    assert found == "plain,inject\n"


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ([], ["doctor\tcheck the cluster and the installed webhook"]),
        (["inj"], ["inject\tprint pods as the webhook would patch them", ":4"]),
        (["certs", "st"], ["status\tshow the certificates, the next renewal, and the webhooks that trust them", ":4"]),
        (["inject", "-o", ""], ["yaml", "json", "diff", ":4"]),
        (["inject", "-f", ""], [":0"]),
        (["nothing-like-this"], [":4"]),
    ],
)
def test_the_completion_program_prints_what_kubectl_expects(arguments: list[str], lines: list[str]) -> None:
    result = run("kubectl_complete-coschedule", *arguments)
    assert (result.stdout.splitlines()[: len(lines)], result.stderr) == (lines, "")


def test_the_plugin_uses_its_own_name_in_usage() -> None:
    assert run("kubectl-coschedule", "certs", "status", "--help").stdout.startswith(
        "Usage: kubectl coschedule certs status [OPTIONS]"
    )
    assert "Try 'kubectl coschedule inject --help' for help." in run("kubectl-coschedule", "inject", "--guess").stderr


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["report", "--context", ""], ["x"]),
        (["report", "-n", "s"], ["shop"]),
        (["explain", ""], ["pod", "vm", "vmi"]),
        (["explain", "-n", "shop", "vm", ""], ["db-1"]),
        (["opt-in", ""], ["db-2"]),
        (["recolocate", "-n", "shop", "x"], []),
        (["recolocate", "--exclude", "s"], ["shop"]),
        (["explain", "--context", "gone", "vm", ""], []),
    ],
)
def test_names_are_completed_from_the_kubeconfig_and_the_cluster(
    tmp_path: Path, arguments: list[str], found: list[str]
) -> None:
    with ApiServer() as server:
        first, second = virtual_machine("db-1"), virtual_machine("db-2")
        first["metadata"]["namespace"] = "shop"
        server.put(labeled_namespace("shop"), labeled_namespace("default"), first, second)
        result = run("kubectl_complete-coschedule", *arguments, KUBECONFIG=server.kubeconfig(tmp_path))
    assert (result.stdout.splitlines(), result.stderr) == ([*found, ":4"], "")


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
