"""The page about reasons lists each reason of the program, with the program's advice."""

from tests.support import reasons_table
from webhook.placement.reasons import Reason


def test_each_reason_is_documented_and_no_other() -> None:
    assert reasons_table.documented_reasons() == list(Reason)


def test_the_advice_on_the_page_is_up_to_date() -> None:
    """`make docs` updates it."""
    assert reasons_table.PAGE.read_text() == reasons_table.render()
