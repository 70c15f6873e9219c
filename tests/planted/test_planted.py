"""The planted bugs can be planted: each changes one place of the product."""

from collections import Counter

from tests.planted.__main__ import find, read_bugs
from tests.support.paths import ROOT


def test_at_least_150_bugs_can_be_planted() -> None:
    """A bug whose text is gone is no failure: the code has changed. With too few of them, plant others."""
    bugs = read_bugs()
    assert [bug.old for bug in bugs if bug.old == bug.new] == []
    assert [text for text, number in Counter((bug.old, bug.new) for bug in bugs).items() if number > 1] == []
    assert sum(find(bug, ROOT) is not None for bug in bugs) >= 150
