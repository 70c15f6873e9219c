"""Parsing the webhook timeout, and the retry budget within it."""

import pytest

from webhook.serving.deadline import DEFAULT_TIMEOUT, RetryBudget, parse_timeout


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        ("10s", 10.0),
        ("3s", 3.0),
        ("1500ms", 1.5),
        ("1m30s", 90.0),
        ("1h0m0s", 3600.0),
        ("0.5s", 0.5),
        (".5s", 0.5),
        ("2.s", 2.0),
        ("250us", 0.00025),
        ("250µs", 0.00025),
        ("0s", 0.0),
        ("9" * 400 + "s", float("inf")),
    ],
)
def test_a_go_duration_is_parsed(duration, expected):
    assert parse_timeout(duration) == pytest.approx(expected)


@pytest.mark.parametrize("duration", [None, "", "10", "s", "-3s", "3 s", "3s ", "ten seconds", "1e3s", "٣s", "3s\n"])
def test_an_invalid_duration_yields_the_default(duration):
    assert parse_timeout(duration) == DEFAULT_TIMEOUT


@pytest.mark.parametrize(
    ("timeout", "retries"), [(1.0, 0), (2.0, 0), (3.0, 1), (5.0, 1), (6.0, 2), (10.0, 3), (20.0, 6), (30.0, 8)]
)
def test_all_waits_of_a_call_take_at_most_a_third_of_its_timeout(timeout, retries):
    budget = RetryBudget()
    allowed = [budget.may_retry("uid", timeout, 100 + second * 1.01) for second in range(20)]
    assert allowed == [True] * retries + [False] * (20 - retries)
    assert retries <= timeout / 3


@pytest.mark.parametrize(("age", "allowed"), [(0, True), (1, False), (2, False)])
def test_a_call_that_has_waited_at_another_replica_does_not_wait_again(age, allowed):
    assert RetryBudget().may_retry("uid", 3.0, 0.0, age) is allowed


def test_a_call_that_waits_once_does_not_wait_for_a_second_time():
    budget = RetryBudget()
    assert budget.may_retry("uid", 30.0, 0.0, once=True)
    assert not budget.may_retry("uid", 30.0, 1.0, once=True)
    assert not RetryBudget().may_retry("uid", 30.0, 0.0, age=1.0, once=True)


def test_each_request_has_its_own_budget():
    budget = RetryBudget()
    assert budget.may_retry("first", 3.0, 0.0)
    assert budget.may_retry("second", 3.0, 2.0)
    assert not budget.may_retry("first", 3.0, 2.0)


def test_the_capacity_is_bounded_and_evicts_the_oldest_request():
    budget = RetryBudget(capacity=2)
    for uid in ("first", "second", "third"):
        budget.may_retry(uid, 3.0, 0.0)
    assert not budget.may_retry("second", 3.0, 2.0)
    assert not budget.may_retry("third", 3.0, 2.0)
    assert budget.may_retry("first", 3.0, 2.0)
