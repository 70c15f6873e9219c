"""The page about `recolocate` names each reason."""

import re

from tests.docs.test_commands import rows
from tests.support.paths import DOCS
from webhook.fleet.move import Hindrance


def test_each_reason_is_documented_and_no_other() -> None:
    documented = [cells[0] for cells in rows(DOCS / "guides/recolocate.md", "reason")]
    words = [found[1] for cell in documented if (found := re.fullmatch(r"`(\w+)`", cell))]
    assert sorted(words) == sorted(set(Hindrance) - {Hindrance.GUARD})  # the guard has the reasons of a decision
