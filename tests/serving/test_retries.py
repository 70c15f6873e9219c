"""The webhook timeout, and the retry budget within it."""

import pytest

from webhook.serving.review.retry_budget import DEFAULT_TIMEOUT, RetryBudget, Wait, timeout_of

VALUES = ["", "10", "s", "-3s", "3 s", "1m", "\u0663s", "3s\n"]
INVALID = ["", *(f"timeout={value}" for value in VALUES)]


@pytest.mark.parametrize(
    ("query", "seconds"),
    [("timeout=3s", 3), ("a=b&timeout=30s&c", 30), ("timeout=0s", 0), *((each, DEFAULT_TIMEOUT) for each in INVALID)],
    ids=repr,
)
def test_the_timeout_is_read_from_the_query(query, seconds):
    assert timeout_of(query) == seconds


@pytest.mark.parametrize("timeout", [3.0, 10.0, 30.0])
def test_each_reason_holds_a_review_up_once(timeout: float) -> None:
    for wait in Wait:
        budget = RetryBudget()
        assert [budget.may_retry("uid", wait, timeout, 100 + second) for second in range(3)] == [True, False, False]
        assert budget.may_retry("another uid", wait, timeout, 103)
    budget = RetryBudget()
    assert all(budget.may_retry("uid", wait, 10.0, 100.0 + each) for each, wait in enumerate(Wait))


@pytest.mark.parametrize(
    ("timeout", "waited", "allowed"),
    [
        (2.0, 0.0, {Wait.NOT_SEEN_YET}),  # one second is too much of two
        (3.0, 0.0, set(Wait)),
        (3.0, 0.2, {Wait.NOT_SEEN_YET}),
        (3.0, 1.1, set()),
        (10.0, 2.3, set(Wait)),
        (10.0, 2.5, {Wait.NOT_SEEN_YET}),
        (10.0, 3.4, set()),
    ],
)
def test_no_wait_leaves_less_than_two_thirds_of_the_timeout(timeout: float, waited: float, allowed: set[Wait]) -> None:
    def is_allowed(wait: Wait) -> bool:
        budget = RetryBudget()
        budget.may_retry("uid", Wait.NOT_SYNCED if wait is not Wait.NOT_SYNCED else Wait.NOT_SEEN_YET, 99.0, 0.0)
        return budget.may_retry("uid", wait, timeout, waited)

    assert {wait for wait in Wait if is_allowed(wait)} == allowed


@pytest.mark.parametrize(
    ("age", "timeout", "allowed"),
    [
        *((age, timeout, set(Wait)) for age in (0.0, 0.2) for timeout in (3.0, 10.0)),
        *((age, 10.0, {Wait.NOT_SEEN_YET}) for age in (0.3, 1.0, 2.0)),
        (1.1, 3.0, set()),
    ],
)
def test_a_call_that_has_waited_a_second_at_another_replica_waits_no_second_more(
    age: float, timeout: float, allowed: set[Wait]
) -> None:
    assert {wait for wait in Wait if RetryBudget().may_retry("uid", wait, timeout, 0.0, age)} == allowed


def test_the_capacity_is_bounded_and_evicts_the_oldest_review() -> None:
    budget = RetryBudget(capacity=2)
    for uid in ("first", "second", "third"):
        budget.may_retry(uid, Wait.NOT_SYNCED, 3.0, 0.0)
    assert [budget.may_retry(uid, Wait.NOT_SYNCED, 3.0, 0.0) for uid in ("third", "second", "first")] == [
        False,
        False,
        True,
    ]
