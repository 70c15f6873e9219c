"""The references: a row for each command and reason, and a description of each option."""

from __future__ import annotations

import re

import click

from tests.docs.test_commands import rows
from tests.support.command_line import all_commands
from tests.support.paths import DOCS
from webhook.catalog.kinds import kinds
from webhook.cli import COMMANDS
from webhook.cluster.live_catalog import GUARDING
from webhook.placement.objects.facts import Claim, Node, Pod, ShareManager, VirtualMachineInstance, Volume
from webhook.placement.reasons import Reason

PAGE = DOCS / "reference/commands.md"


def test_the_reference_lists_each_command() -> None:
    cells = " ".join(row[0] for row in rows(PAGE, "command"))
    assert set(re.findall(r"`([a-z-]+)`", cells)) == set(COMMANDS)


def test_each_option_has_a_description() -> None:
    """The help is the only reference of the options."""
    found = [(path, option) for path, command in all_commands()
             for option in command.params if isinstance(option, click.Option)]  # fmt: skip
    assert len(found) > 60
    assert [(path, option.name) for path, option in found if not option.help] == []


def test_the_kinds_whose_stale_caches_prevent_pins_are_documented() -> None:
    assert set(GUARDING) == {Claim, Volume, ShareManager, Node, Pod, VirtualMachineInstance}
    for page in "reasons.md", "doctor.md":
        text = " ".join((DOCS / "reference" / page).read_text().split())
        assert "update of claims, PVs, ShareManagers, nodes, pods or VMIs for" in text


def test_the_number_of_watched_kinds_is_documented() -> None:
    words = {10: "ten", 11: "eleven", 12: "twelve"}
    number = words[len(kinds("longhorn-system"))]
    assert f"each replica lists and watches {number} kinds" in (DOCS / "explanation/figures.md").read_text()
    assert f"lists and watches [{number} kinds](" in (DOCS / "development/live-cluster.md").read_text()


def test_each_reason_is_documented_and_no_other() -> None:
    page = (DOCS / "reference/reasons.md").read_text()
    assert re.findall(r"^- `([A-Z]\w+)`:", page, re.MULTILINE) == list(Reason)
