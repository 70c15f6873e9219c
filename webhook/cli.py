"""The `kubevirt-scheduler` command line: its subcommands, error output and exit codes."""

import os
from importlib import import_module
from typing import Any

import click

from webhook import __version__
from webhook.cluster.documents import BadInput, printable
from webhook.placement.settings import SettingsError

# Module names, so that each command imports only its own libraries: `inject` takes a quarter of a second in total, and
# importing the server's libraries alone takes half a second.
COMMANDS = {
    "inject": "webhook.commands.inject",  # print pods as the webhook would patch them
    "explain": "webhook.commands.explain",  # explain where a pod is placed
    "report": "webhook.commands.report",  # list the VMs that are away from their storage
    "snapshot": "webhook.commands.snapshot",  # write what decisions read of a cluster to a file
    "serve": "webhook.commands.serve",  # answer the API server's admission reviews
    "certs": "webhook.commands.certs",  # show and renew the certificates
    "check": "webhook.commands.check",  # test whether the API server calls the webhook
}


class InvalidInput(click.ClickException):
    """Report unusable input in one line, without a traceback."""

    exit_code = 2


class LazyGroup(click.Group):
    """A command group that imports a subcommand on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        """List the subcommands in the order of COMMANDS."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click's signature)
        """Import a subcommand; None if it is unknown."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(COMMANDS[cmd_name]), cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand. Raises InvalidInput for unusable files and settings."""
        try:
            return super().invoke(ctx)
        except (BadInput, SettingsError) as error:
            raise InvalidInput(printable(str(error))) from None


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kubevirt-scheduler", message="%(prog)s %(version)s")
def commands() -> None:
    """Put KubeVirt VMs on the node that serves their storage.

    \b
    Examples:
      kubevirt-scheduler snapshot -o cluster.json
      kubevirt-scheduler inject -f pod.yaml --snapshot cluster.json -o diff
      kubevirt-scheduler explain -f pod.yaml --snapshot cluster.json

    What can be set is read from the environment (CO_SCHEDULE_...).
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)


def main() -> None:
    """Run the command line."""
    try:
        commands(prog_name="kubevirt-scheduler")
    except OSError as error:
        # Standard output can't be written: the disk is full, for example. Redirect it, because Python flushes the rest
        # again at exit and would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        click.echo(f"Error: {error.strerror or error}", err=True)
        raise SystemExit(1) from None
