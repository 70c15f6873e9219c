"""The API server's clock, read from the Date header of its responses."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from tests.support.fake_api_server import ApiServer
from webhook.cluster.client import ClusterClient
from webhook.cluster.credentials import Api
from webhook.cluster.server_clock import SAMPLES, TOLERANCE, ServerClock

WEEKS = 21 * 86400.0
SLACK = timedelta(seconds=30)
NOW = datetime(2026, 8, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("ahead", "problem"),
    [
        (0.0, ""),
        (50.0, ""),
        (WEEKS, " s behind the API server's; synchronize the clocks of both nodes"),
        (-WEEKS, " s ahead of the API server's; synchronize the clocks of both nodes"),
    ],
)
def test_the_time_is_the_api_servers_and_a_difference_of_more_than_a_minute_is_a_problem(
    server: ApiServer, ahead: float, problem: str
) -> None:
    server.seconds_ahead = ahead
    cluster = ClusterClient(Api(server.url))
    assert cluster.clock.problem() == ""
    assert cluster.get("/api/v1/nodes/missing") is None  # an error counts as well
    assert abs(cluster.clock.now() - datetime.now(UTC) - timedelta(seconds=ahead)) < SLACK
    assert cluster.clock.seconds_ahead == pytest.approx(-ahead, abs=30)
    assert cluster.clock.problem().endswith(problem)
    assert bool(cluster.clock.problem()) is bool(problem)


@pytest.mark.parametrize("date", [None, "", "yesterday", "Fri, 99 Nov 2026 18:00:00 GMT"])
def test_a_missing_or_malformed_date_changes_nothing(date: str | None) -> None:
    clock = ServerClock()
    clock.observe(date)
    assert (clock.seconds_ahead, clock.problem()) == (0.0, "")


@pytest.mark.parametrize(
    ("ahead", "seen"),
    [
        ([0.3], 0.3),
        ([0.9, 0.3, 40.0], 0.3),  # one response was slow
        ([5.2, 5.9], 5.2),
        ([-5.0, -4.1], -5.0),
        ([0.3, *[5.0] * SAMPLES], 5.0),  # the clock has drifted, or somebody has set it
        ([0.3, WEEKS], WEEKS),
        ([WEEKS, 0.3], 0.3),
    ],
)
def test_the_least_difference_of_the_last_responses_counts_until_a_clock_is_set(
    ahead: list[float], seen: float
) -> None:
    differences = iter([*ahead, seen])
    clock = ServerClock(lambda: NOW.timestamp() + next(differences))
    for _ in ahead:
        clock.observe(format_datetime(NOW, usegmt=True))
    assert clock.seconds_ahead == pytest.approx(seen)
    expected = NOW if abs(seen) > TOLERANCE else NOW + timedelta(seconds=seen)
    assert abs(clock.now() - expected) < timedelta(milliseconds=1)
