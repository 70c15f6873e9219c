"""Runs the command line in this process, and writes the files that it reads."""

import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click
from click.testing import CliRunner, Result

from webhook.cli import commands
from webhook.reading.kubernetes_yaml import to_yaml


def run_cli(*arguments: Any, env: Mapping[str, str | None] | None = None, stdin: str | bytes = "") -> Result:
    """Run `kubevirt-scheduler` with these arguments and environment variables. Fails the test on a traceback."""
    result = CliRunner().invoke(commands, list(map(str, arguments)), env=env, input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


class Shown(NamedTuple):
    """What a line of a page or of the help printed."""

    exit_code: int
    stdout: str
    stderr: str


def run_line(line: str, environment: Mapping[str, str], folder: Path) -> Shown:
    """Run a line as a shell does. A line that only calls the command runs in this process, in its working folder."""
    if line.startswith("kubevirt-scheduler ") and not set("|<>&\n") & set(line):
        found = CliRunner(env=environment).invoke(commands, shlex.split(line)[1:])
        return Shown(found.exit_code, found.stdout, found.stderr)
    command = ["bash", "-c", f"set -eo pipefail; {line}"]
    ended = subprocess.run(
        command, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=300
    )
    return Shown(ended.returncode, ended.stdout, ended.stderr)


def all_commands(command: click.Command = commands, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield each command that has no subcommands, with its path."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command, info_name="kubevirt-scheduler")
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found
        yield from all_commands(found, *path, name)


def write_manifests(folder: Path, *contents: Any, name: str = "cluster.yaml") -> Path:
    """Write objects to a file in YAML, one a document, and return the file."""
    path = folder / name
    path.write_text("---\n".join(map(to_yaml, contents)))
    return path
