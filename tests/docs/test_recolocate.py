"""The pages about `recolocate` name each reason, and their commands parse."""

import re
import shlex
from collections.abc import Iterator

import pytest

from tests.docs.test_commands import rows
from tests.docs.transcripts import blocks
from tests.support.paths import DOCS
from webhook.commands.recolocate.command import recolocate
from webhook.fleet.move import Hindrance

PAGE, GUIDE = DOCS / "guides/recolocate.md", DOCS / "guides/existing-cluster.md"


def shown() -> Iterator[str]:
    """Yield each call of `recolocate` in the pages."""
    for page in (PAGE, GUIDE):
        for block in blocks(page, "console"):
            yield from re.findall(r"^\$ kubevirt-scheduler recolocate ([^#>\n]*)", block, re.MULTILINE)


def test_each_reason_is_documented_and_no_other() -> None:
    documented = [cells[0] for cells in rows(PAGE, "reason")]
    words = [found[1] for cell in documented if (found := re.fullmatch(r"`(\w+)`", cell))]
    assert sorted(words) == sorted(set(Hindrance) - {Hindrance.GUARD})  # the guard has the reasons of a decision


@pytest.mark.parametrize("arguments", list(shown()))
def test_each_shown_call_parses(arguments: str) -> None:
    assert recolocate.make_context("recolocate", shlex.split(arguments))
