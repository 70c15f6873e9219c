"""Runs the command line in this process, and writes the files that it reads."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner, Result

from webhook.cli import commands
from webhook.reading.kubernetes_yaml import to_yaml


def run_cli(*arguments: Any, env: Mapping[str, str | None] | None = None, stdin: str | bytes = "") -> Result:
    """Run `kubevirt-scheduler` with these arguments and environment variables. Fails the test on a traceback."""
    result = CliRunner().invoke(commands, list(map(str, arguments)), env=env, input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


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
