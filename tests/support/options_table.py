"""The tables in docs/reference/options.md. Run as a program, this module writes them.

They come from the help of each command, so that the page and `--help` say the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import click

from tests.support.generated_pages import Page
from tests.support.paths import DOCS
from webhook.cli import NAME, commands

BEGIN, END = "<!-- options: generated from the commands' help by `make docs` -->\n", "<!-- end of options -->\n"


def every_command(
    command: click.Command = commands, parent: click.Context | None = None
) -> Iterator[tuple[click.Command, click.Context]]:
    """Yield each command that is no group, with its context."""
    context = click.Context(command, parent, command.name if parent else NAME)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if found := command.get_command(context, name):
                yield from every_command(found, context)
    else:
        yield command, context


def options(command: click.Command) -> list[click.Option]:
    """Return the options of a command."""
    return [each for each in command.params if isinstance(each, click.Option)]


def section(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the lines of a command's section."""
    name = context.command_path.removeprefix(f"{NAME} ")
    usage = " ".join([NAME, name, *command.collect_usage_pieces(context)])
    yield from (f"## {name}", "", f"`{usage}`", "")
    if options(command):
        yield from ("| option | what it does |", "| --- | --- |")
    for option in options(command):
        names, text = option.get_help_record(context) or ("", "")
        yield "| `{}` | {} |".format(names.replace("|", r"\|"), text.replace("|", r"\|"))
    yield ""


def tables() -> str:
    """Return a section for each command."""
    return "\n".join(line for command, context in every_command() for line in section(command, context))


PAGE = Page(DOCS / "reference/options.md", BEGIN, END, tables)

if __name__ == "__main__":
    PAGE.write()
