"""How long the API server still waits."""

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
def test_a_go_duration_is_read(duration, expected):
    assert parse_timeout(duration) == pytest.approx(expected)


@pytest.mark.parametrize("duration", [None, "", "10", "s", "-3s", "3 s", "3s ", "ten seconds", "1e3s", "٣s", "3s\n"])
def test_what_is_no_duration_passes_for_the_default(duration):
    assert parse_timeout(duration) == DEFAULT_TIMEOUT


def test_a_request_is_sent_back_until_less_than_another_try_is_left():
    patience = RetryBudget()
    answers = [patience.may_retry("uid", 10.0, second + 100.0) for second in range(12)]
    assert answers == [True] * 9 + [False] * 3


def test_a_short_timeout_leaves_no_second_try():
    assert not RetryBudget().may_retry("uid", 1.0, 0.0)


def test_two_seconds_are_just_enough_for_a_second_try():
    patience = RetryBudget()
    assert patience.may_retry("uid", 2.0, 0.0)
    assert not patience.may_retry("uid", 2.0, 1.001)


def test_a_long_timeout_does_not_use_up_the_tries_of_the_api_server():
    patience, tries = RetryBudget(), 0
    while patience.may_retry("uid", 30.0, float(tries)):
        tries += 1
    assert tries < 10


def test_each_request_has_its_own_time():
    patience = RetryBudget()
    assert patience.may_retry("first", 3.0, 0.0)
    assert patience.may_retry("second", 3.0, 2.0)
    assert not patience.may_retry("first", 3.0, 2.0)


def test_the_memory_is_bounded_and_forgets_the_oldest_first():
    patience = RetryBudget(capacity=2)
    for uid in ("first", "second", "third"):
        patience.may_retry(uid, 3.0, 0.0)
    assert not patience.may_retry("second", 3.0, 2.0)
    assert not patience.may_retry("third", 3.0, 2.0)
    assert patience.may_retry("first", 3.0, 2.0)
