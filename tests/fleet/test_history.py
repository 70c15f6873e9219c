"""The last day of the VMs that were apart is read from a range query, whatever a Prometheus answers."""

from typing import Any

import pytest

from webhook.fleet.history import DAY, STEP, read_history


def test_each_point_of_the_answer_is_a_time_and_a_number_of_vms() -> None:
    values = [[1_700_000_000, "3"], [1_700_000_900.5, "4"]]
    assert read_history([{"metric": {}, "values": values}]) == [(1_700_000_000, 3), (1_700_000_900, 4)]
    assert DAY // STEP < 11_000  # the most points of one query


@pytest.mark.parametrize(
    "values", [None, "text", 7, {}, [None], [[]], [["now", "3"]], [[1, "NaN"]], [["Infinity", "3"]], [{"a": 1}], [[1]]]
)
def test_what_is_no_point_is_ignored(values: Any) -> None:
    assert read_history([{"values": values}, {"values": [[5, "6"]]}, {}]) == [(5, 6)]
