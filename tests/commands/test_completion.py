"""Each shell and kubectl complete the command line, and the kubectl plugin uses its own name."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.controlplane import build

SCRIPTS = Path(sys.executable).parent
# What each script prints for a word: the shells' own completion systems need a terminal, so these call the function.
BASH = """
source <(kubevirt-scheduler completion bash)
COMP_WORDS=({words}) COMP_CWORD={position}
$(complete -p kubevirt-scheduler | sed 's/.* -F //; s/ .*//') kubevirt-scheduler
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
ZSH = """
autoload -U compinit && compinit -u -D
source <(kubevirt-scheduler completion zsh)
_describe() {{ print -rl -- "${{(@P)3}}" }}
compadd() {{ print -rl -- "${{(@P)@[-1]}}" }}
words=({words}) CURRENT=$(({position} + 1))
$_comps[kubevirt-scheduler]
"""
SHELLS = ("bash", *(pytest.param(name, marks=pytest.mark.needs(name)) for name in ("zsh", "fish")))
FISH = """
kubevirt-scheduler completion fish | source
complete -C "{line}"
"""


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program of a shell or of kubectl, with the installed commands on the PATH."""
    variables = {**os.environ, "PATH": f"{SCRIPTS}:{os.environ['PATH']}", **environment}
    program = shutil.which(command[0], path=variables["PATH"])
    assert program, f"{command[0]} is not on the PATH"
    return subprocess.run(
        [program, *command[1:]], check=False, capture_output=True, text=True, timeout=60, env=variables
    )


def completions(shell: str, line: str, home: Path) -> set[str]:
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    scripts = {"bash": BASH, "zsh": ZSH, "fish": FISH}
    script = scripts[shell].format(words=quoted, position=len(words) - 1, line=line)
    result = run(shell, "-c", script, HOME=str(home), XDG_CONFIG_HOME=str(home), XDG_DATA_HOME=str(home))
    assert result.stderr == ""
    # zsh describes an item after a colon, fish after a tab.
    return {found.partition("\t")[0].partition(":")[0].rstrip("\\") for found in result.stdout.splitlines()}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("kubevirt-scheduler inj", {"inject"}),
        ("kubevirt-scheduler inject --sna", {"--snapshot"}),
        ("kubevirt-scheduler inject -o ", {"yaml", "json", "patch", "diff"}),
        ("kubevirt-scheduler certs st", {"status"}),
        ("kubevirt-scheduler completion ", {"bash", "zsh", "fish"}),
    ],
)
def test_a_shell_completes_commands_options_and_values(shell: str, line: str, found: set[str], tmp_path: Path) -> None:
    assert completions(shell, line, tmp_path) == found


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ([], ["doctor\tcheck the cluster and the installed webhook"]),
        (["inj"], ["inject\tprint pods as the webhook would patch them", ":4"]),
        (["certs", "st"], ["status\tshow the certificates, the next renewal, and the webhooks that trust them", ":4"]),
        (["inject", "-o", ""], ["yaml", "json", "patch", "diff", ":4"]),
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


@pytest.mark.controlplane
def test_kubectl_runs_the_plugin_and_completes_its_arguments() -> None:
    kubectl = str(build.binaries()["kubectl"])
    assert run(kubectl, "coschedule", "--help").stdout.startswith("Usage: kubectl coschedule [OPTIONS] COMMAND")
    listed = run(kubectl, "plugin", "list", "--name-only").stdout.splitlines()
    assert "kubectl-coschedule" in listed
    completed = run(kubectl, "__complete", "coschedule", "inject", "-o", "").stdout.splitlines()
    assert completed == ["yaml", "json", "patch", "diff", ":4"]
    (found,) = [line for line in run(kubectl, "__complete", "coschedule", "inj").stdout.splitlines() if line[0] != ":"]
    assert found.startswith("inject\t")
