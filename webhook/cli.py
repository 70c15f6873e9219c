"""The command line of `kubevirt-scheduler` and `kubectl coschedule`: its subcommands, error output and exit codes."""

import gc
import io
import os
import re
import signal
import sys
from importlib import import_module
from typing import Any

import click
from click.shell_completion import ShellComplete

from webhook import __version__
from webhook.placement.objects.fields import printable
from webhook.placement.settings import SettingsError
from webhook.reading.documents import BadInput

NAME, PLUGIN = "kubevirt-scheduler", "kubectl coschedule"
EXIT_INTERRUPTED = 128 + signal.SIGINT  # as a shell reports a program that the signal ended

# Module names, so that each command imports only its own libraries: `inject` takes a quarter of a second in total, and
# importing the server's libraries alone takes half a second.
COMMANDS = {  # in the order of an operator's work
    "doctor": "webhook.commands.doctor.command",  # check the cluster and the installed webhook
    "report": "webhook.commands.report.command",  # list the VMs that are apart from their storage
    "dashboard": "webhook.commands.report.dashboard",  # serve the report as a page that follows the cluster
    "explain": "webhook.commands.explain.command",  # explain where a pod is placed
    "opt-in": "webhook.commands.opt_in",  # opt VMs in: annotate their templates
    "opt-out": "webhook.commands.opt_in",  # opt VMs out
    "recolocate": "webhook.commands.recolocate.command",  # live-migrate VMs to the node of their storage
    "drain-check": "webhook.commands.drain_check",  # say what a drain of nodes would do to VMs
    "benchmark": "webhook.commands.benchmark.command",  # measure what a VM gains beside its share-manager
    "inject": "webhook.commands.inject",  # print pods as the webhook would patch them
    "snapshot": "webhook.commands.snapshot",  # write the objects that decisions read to a file
    "certs": "webhook.commands.certs",  # show and renew the certificates
    "help": "webhook.cli",  # print the help of a command
    "version": "webhook.commands.version",  # print the versions of this command and of the webhook
    "serve": "webhook.commands.serve",  # answer the API server's admission reviews
}


class InvalidInput(click.ClickException):
    """Report unusable input in one line, without a traceback."""

    exit_code = 2


class LazyGroup(click.Group):
    """A command group that imports a subcommand on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        """List the subcommands in the order of COMMANDS."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (as above)
        """Import a subcommand; None if it is unknown."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(COMMANDS[cmd_name])
        name = "help_" if cmd_name == "help" else cmd_name.replace("-", "_")  # `help` is a function of Python
        found: click.Command | None = getattr(module, name)
        return found

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand. Raises InvalidInput for unusable files and settings, and Exit after Ctrl-C."""
        try:
            return super().invoke(ctx)
        except (BadInput, SettingsError) as error:
            raise InvalidInput(printable(str(error))) from None
        except RecursionError:
            raise InvalidInput("an object of a file is nested too deeply") from None
        except KeyboardInterrupt:
            click.echo("Interrupted", err=True)
            raise click.exceptions.Exit(EXIT_INTERRUPTED) from None


# Click suggests the keys of `commands` for an unknown name.
@click.group(cls=LazyGroup, commands=dict.fromkeys(COMMANDS), context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name=NAME, message="%(prog)s %(version)s")
@click.pass_context
def commands(context: click.Context) -> None:
    """Place KubeVirt VMs on the node that serves their storage.

    \b
    Examples:
      kubevirt-scheduler doctor --pre
      kubevirt-scheduler report -A
      kubevirt-scheduler explain vm vm1 -n shop

    The commands use the settings of the installed webhook. Without one, set environment variables (CO_SCHEDULE_...).
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)
    # Otherwise, click colors a terminal (https://no-color.org).
    if os.environ.get("NO_COLOR"):
        context.color = False
    elif os.environ.get("FORCE_COLOR"):
        context.color = True


@click.command("help", short_help="print the help of a command")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def help_(context: click.Context, words: tuple[str, ...]) -> None:
    """Print the help of all commands, or of one, as --help does.

    \b
    Examples:
      kubevirt-scheduler help
      kubevirt-scheduler help report
      kubevirt-scheduler help certs status
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)
    above = context.find_root()
    for word in words:
        group = above.command
        command = group.get_command(above, word) if isinstance(group, click.Group) else None
        if command is None:
            raise click.UsageError(f"no command {' '.join(words)!r}; to list all: kubevirt-scheduler help")
        above = click.Context(command, info_name=word, parent=above)
    click.echo(above.get_help())


class PluginHelp(click.HelpFormatter):
    """The help of kubectl's plugin, whose examples call the plugin. Both names have the same length."""

    def getvalue(self) -> str:
        """Return the help."""
        return re.sub(rf"\b{NAME}(?=\s+({'|'.join(COMMANDS)})\b)", PLUGIN, super().getvalue())


def main() -> None:
    """Run the command line."""
    _run(NAME)


def kubectl_plugin() -> None:
    """Run the command line as a kubectl plugin."""
    click.Context.formatter_class = PluginHelp  # also of the subcommands, which have contexts of their own
    _run(PLUGIN)


def complete_kubectl_plugin() -> None:
    """Print the completions of the last argument for kubectl, which calls this as `kubectl_complete-coschedule`."""
    *complete, last = sys.argv[1:] or [""]
    items = ShellComplete(commands, {}, PLUGIN, "").get_completions(complete, last)
    lines = [f"{item.value}\t{item.help}" if item.help else str(item.value) for item in items if item.type == "plain"]
    # Cobra's directives: complete file names, or nothing else.
    click.echo("\n".join([*lines, ":0" if any(item.type != "plain" for item in items) else ":4"]))


def _run(name: str) -> None:
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):  # None if it is closed
            sys.stdout.reconfigure(encoding="utf-8")  # in any locale
        # Like Ctrl-C: a container's first process ignores it by default, and a run of `recolocate` would go on.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        commands(prog_name=name)
    except OSError as error:
        # Standard output can't be written: the disk is full, for example. Redirect it, because Python flushes the rest
        # again at exit and would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        click.echo(f"Error: {error.strerror or error}", err=True)
        raise SystemExit(1) from None
    finally:
        gc.freeze()  # the interpreter's last collection would look at the whole fleet: 4 % of a report's time
