"""The tables in docs/reference/options.md. Run as a program, this module writes them.

They come from the help of each command, so that the page and `--help` say the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import click

from tests.support.generated_pages import Page
from tests.support.paths import DOCS
from webhook.cli import NAME, commands

NAMES = re.compile(r"--[a-z-]+")
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


def row(option: click.Option, context: click.Context) -> str:
    """Return an option's row of a table."""
    names, text = option.get_help_record(context) or ("", "")
    return "| `{}` | {} |".format(names.replace("|", r"\|"), text.replace("|", r"\|"))


def shared_rows() -> list[str]:
    """Return the rows that at least three commands have in common, in their first order."""
    found = Counter(row(option, context) for command, context in every_command() for option in options(command))
    return [each for each, commands in found.items() if commands >= 3]


def section(command: click.Command, context: click.Context, shared: list[str]) -> Iterator[str]:
    """Yield the lines of a command's section."""
    name = context.command_path.removeprefix(f"{NAME} ")
    usage = " ".join([NAME, name, *command.collect_usage_pieces(context)])
    yield from (f"## {name}", "", f"`{usage}`", "")
    rows = [row(option, context) for option in options(command)]
    if own := [each for each in rows if each not in shared]:
        yield from ("| option | what it does |", "| --- | --- |", *own, "")
    if common := [f"`{NAMES.findall(each)[0]}`" for each in rows if each in shared]:
        yield from (f"Also {', '.join(common)}.", "")


def tables() -> str:
    """Return the options that many commands share, and a section for each command."""
    shared = shared_rows()
    lines = ["## Shared options", "", "| option | what it does |", "| --- | --- |", *shared, ""]
    return "\n".join(
        [*lines, *(line for command, context in every_command() for line in section(command, context, shared))]
    )


PAGE = Page(DOCS / "reference/options.md", BEGIN, END, tables)

if __name__ == "__main__":
    PAGE.write()
