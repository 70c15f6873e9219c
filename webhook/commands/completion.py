"""`kubevirt-scheduler completion`: print the script that completes the command line in a shell."""

from collections.abc import Sequence

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
# Cobra's directives at the end of kubectl's completions: complete file names, or nothing else.
_FILES, _NO_FILES = ":0", ":4"


def complete_var(name: str) -> str:
    """Return the environment variable by which a completion script requests completions."""
    return f"_{name.replace('-', '_').replace(' ', '_').upper()}_COMPLETE"


@click.command(short_help="print the completion script of a shell")
@click.argument("shell", type=click.Choice(list(SHELLS)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes this command line in a shell.

    kubectl completes the plugin without this script if kubectl_complete-coschedule is on the PATH.

    \b
    Examples:
      source <(kubevirt-scheduler completion bash)
      source <(kubevirt-scheduler completion zsh)
      kubevirt-scheduler completion fish > ~/.config/fish/completions/kubevirt-scheduler.fish
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)
    root = context.find_root()
    # A shell completes a program by its name, and kubectl's plugin is a program of its own: kubectl-coschedule.
    name = str(root.info_name).replace(" ", "-")
    click.echo(SHELLS[shell](root.command, {}, name, complete_var(name)).source())


def kubectl_completions(commands: click.Command, name: str, arguments: Sequence[str]) -> str:
    """Return the completions of the last argument as kubectl expects them: one per line, and a directive."""
    *complete, last = arguments or [""]
    items = ShellComplete(commands, {}, name, complete_var(name)).get_completions(complete, last)
    lines = [f"{item.value}\t{item.help}" if item.help else str(item.value) for item in items if item.type == "plain"]
    return "\n".join([*lines, _FILES if any(item.type != "plain" for item in items) else _NO_FILES])
