"""The token bucket allows a burst, then a rate; the property holds for every order of calls and pauses."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.fake_clock import FakeClock
from webhook.cluster.token_bucket import TokenBucket


def taken(bucket: TokenBucket, times: int) -> int:
    return sum(bucket.take() for _ in range(times))


def test_a_bucket_allows_its_burst_then_its_rate() -> None:
    clock = FakeClock()
    bucket = TokenBucket(10, 3, clock)
    assert taken(bucket, 5) == 3
    clock.now += 0.1
    assert taken(bucket, 5) == 1
    clock.now += 60
    assert taken(bucket, 5) == 3


def test_a_clock_that_is_set_back_takes_no_tokens_away() -> None:
    clock = FakeClock()
    bucket = TokenBucket(10, 3, clock)
    clock.now -= 3600
    assert taken(bucket, 5) == 3
    clock.now += 0.15
    assert taken(bucket, 5) == 1


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(0, 20)), max_size=20))
def test_a_bucket_never_allows_more_than_its_burst_and_its_rate(steps: list[tuple[float, int]]) -> None:
    clock = FakeClock()
    bucket, total, started = TokenBucket(5, 4, clock), 0, clock.now
    for pause, times in steps:
        clock.now += pause
        total += taken(bucket, times)
        assert total <= 4 + 5 * (clock.now - started) + 1e-6
