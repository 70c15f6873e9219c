"""Each call of the command line that a page shows names an existing command and existing options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import click
import pytest

from tests.docs.test_links import PAGES, name
from tests.docs.transcripts import transcripts
from tests.support.paths import ROOT
from webhook import cli

CALL = re.compile(r"(?:^|[|(] ?)(?:kubevirt-scheduler|kubectl coschedule) ([a-z].*)", re.DOTALL)
INLINE = re.compile(r"`((?:kubevirt-scheduler|kubectl coschedule) [a-z][^`]*)`")
CHANGELOG = ROOT / "CHANGELOG.md"  # names commands of older versions
SHELL = {"|", ">", "&&", "||"}


def calls(page: Path) -> Iterator[str]:
    """Yield the arguments of each call, in the console blocks and in the text."""
    shown = [each.command.replace("\\\n", "") for each in transcripts(page)] + INLINE.findall(page.read_text())
    yield from (found[1] for command in shown if (found := CALL.search(command)))


def unknown_words(arguments: str) -> list[str]:
    """Return the words that name no subcommand and no option."""
    words = list(takewhile(lambda word: word not in SHELL, shlex.split(arguments, comments=True)))
    command: click.Command = cli.commands
    while isinstance(command, click.Group) and words and words[0].islower():
        context = click.Context(command, info_name=cli.NAME)
        found = command.get_command(context, words[0])
        if found is None:
            return words[:1]
        command, words = found, words[1:]
    options = {"-h", "--help", "-"} | {option for each in command.params for option in each.opts + each.secondary_opts}
    return [word for word in words if word.startswith("-") and word.partition("=")[0] not in options]


@pytest.mark.parametrize("page", [page for page in PAGES if page != CHANGELOG and any(calls(page))], ids=name)
def test_each_call_in_a_page_names_existing_commands_and_options(page: Path) -> None:
    assert {call: unknown for call in calls(page) if (unknown := unknown_words(call))} == {}
