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


def test_a_request_may_retry_while_its_timeout_leaves_time_for_another_attempt():
    budget = RetryBudget()
    allowed = [budget.may_retry("uid", 10.0, second + 100.0) for second in range(12)]
    assert allowed == [True] * 9 + [False] * 3


def test_a_one_second_timeout_allows_no_retry():
    assert not RetryBudget().may_retry("uid", 1.0, 0.0)


def test_a_retry_needs_two_seconds_of_remaining_time():
    budget = RetryBudget()
    assert budget.may_retry("uid", 2.0, 0.0)
    assert not budget.may_retry("uid", 2.0, 1.001)


def test_a_long_timeout_allows_fewer_retries_than_the_api_server_makes():
    budget, retries = RetryBudget(), 0
    while budget.may_retry("uid", 30.0, float(retries)):
        retries += 1
    assert retries < 10


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
