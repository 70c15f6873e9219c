"""The command line: its table of contents, and how it ends."""

import os
from importlib import import_module
from typing import Any

import click

from webhook import __version__
from webhook.cluster.documents import BadInput, printable
from webhook.placement.settings import SettingsError

# By name and not by import: `inject` answers in a quarter of a second, the server's libraries take half a second alone.
COMMANDS = {
    "inject": "webhook.commands.inject",  # what would become of a pod
    "explain": "webhook.commands.explain",  # why a pod goes where it goes
    "serve": "webhook.commands.serve",  # answer the API server
    "certs": "webhook.commands.certs",  # the certificates that the API server trusts
    "check": "webhook.commands.check",  # whether the API server calls us
}


class Refused(click.ClickException):
    """Bad input: one line, and never a traceback."""

    exit_code = 2


class Commands(click.Group):
    """The subcommands, imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        """List their names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (the same)
        """Import one."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(COMMANDS[cmd_name]), cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run one, and say in one line what can't be used."""
        try:
            return super().invoke(ctx)
        except (BadInput, SettingsError) as error:
            raise Refused(printable(str(error))) from None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kubevirt-scheduler", message="%(prog)s %(version)s")
def commands() -> None:
    """Put KubeVirt VMs on the node that serves their storage.

    \b
    Examples:
      kubectl get pvc,pv,nodes,pods,sharemanagers.longhorn.io -A -o yaml > cluster.yaml
      kubevirt-scheduler inject -f pod.yaml --snapshot cluster.yaml -o diff
      kubevirt-scheduler explain -f pod.yaml --snapshot cluster.yaml

    What can be set is read from the environment (CO_SCHEDULE_...).
    """  # noqa: D301 (click's mark of a block that keeps its lines)


def main() -> None:
    """Run the command line."""
    try:
        commands(prog_name="kubevirt-scheduler")
    except OSError as error:
        # The disk behind standard output is full, say. Python would try to write the rest once more, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        click.echo(f"Error: {error.strerror or error}", err=True)
        raise SystemExit(1) from None
