"""The API server's clock, read from the Date header of its responses."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.support.fake_api_server import ApiServer
from webhook.cluster.client import ClusterClient
from webhook.cluster.credentials import Api
from webhook.cluster.server_clock import ServerClock

WEEKS = 21 * 86400.0
SLACK = timedelta(seconds=30)


@pytest.mark.parametrize(
    ("ahead", "problem"),
    [
        (0.0, ""),
        (50.0, ""),
        (WEEKS, " s behind the API server's; synchronize the clocks of both nodes"),
        (-WEEKS, " s ahead of the API server's; synchronize the clocks of both nodes"),
    ],
)
def test_the_time_is_the_api_servers_if_the_clocks_differ_by_more_than_a_minute(
    server: ApiServer, ahead: float, problem: str
) -> None:
    server.seconds_ahead = ahead
    cluster = ClusterClient(Api(server.url))
    assert cluster.clock.problem() == ""
    assert cluster.get("/api/v1/nodes/missing") is None  # an error counts as well
    expected = datetime.now(UTC) + timedelta(seconds=ahead if problem else 0)
    assert abs(cluster.clock.now() - expected) < SLACK
    assert cluster.clock.seconds_ahead == pytest.approx(-ahead, abs=30)
    assert cluster.clock.problem().endswith(problem)
    assert bool(cluster.clock.problem()) is bool(problem)


@pytest.mark.parametrize("date", [None, "", "yesterday", "Fri, 99 Nov 2026 18:00:00 GMT"])
def test_a_missing_or_malformed_date_changes_nothing(date: str | None) -> None:
    clock = ServerClock()
    clock.observe(date)
    assert (clock.seconds_ahead, clock.problem()) == (0.0, "")
