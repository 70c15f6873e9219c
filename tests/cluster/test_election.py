"""Tests of the election: one replica at a time holds the Lease, by whatever clock, and gives it up in time."""

from typing import Any

import pytest

from tests.cluster.stop_event import StopAfterWaits
from tests.support.builders import Object
from tests.support.fake_api_server import ApiServer, body, error_response, forbidden, status
from tests.support.fake_clock import FakeClock
from tests.support.log_capture import capture_logs
from webhook.cluster.client import ClusterClient
from webhook.cluster.credentials import Api
from webhook.cluster.election import LEASE_DURATION, RENEW_DEADLINE, RETRY_INTERVAL, Election
from webhook.cluster.releaser import DELETE_TIMEOUT

LEASE = ("kubevirt-scheduler", "webhook")
# As the chart renders it: without a spec.
MANIFEST = {
    "apiVersion": "coordination.k8s.io/v1",
    "kind": "Lease",
    "metadata": {"namespace": LEASE[0], "name": LEASE[1], "labels": {"app": "webhook"}},
}


@pytest.fixture
def server(server: ApiServer) -> ApiServer:
    server.put(MANIFEST)
    return server


def replica(server: ApiServer, clock: Any) -> Election:
    return Election(ClusterClient(Api(server.url)), LEASE, clock)


def stored(server: ApiServer) -> Object:
    return server.stored("leases", LEASE)


def test_the_first_replica_acquires_an_empty_lease_and_another_one_waits_while_it_renews(
    server: ApiServer, clock: FakeClock
) -> None:
    first, second = replica(server, clock), replica(server, clock)
    assert not first.leads()
    for _ in range(30):
        first.step()
        second.step()
        assert (first.leads(), second.leads()) == (True, False)
        clock.now += RETRY_INTERVAL
    lease = stored(server)
    assert lease["metadata"]["labels"] == {"app": "webhook"}
    assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseDurationSeconds"]) == (first.identity, LEASE_DURATION)
    assert len(lease["spec"]["renewTime"]) == len("2026-08-01T12:00:00.000000Z")  # a MicroTime


def test_a_replica_waits_for_the_whole_duration_whatever_times_the_lease_names(
    server: ApiServer, clock: FakeClock
) -> None:
    """The holder's wall clock may be hours behind."""
    spec = {"holderIdentity": "another", "leaseDurationSeconds": 1, "renewTime": "2020-01-01T00:00:00.000000Z"}
    server.put(MANIFEST | {"spec": spec})
    second = replica(server, clock)
    second.step()
    clock.now += LEASE_DURATION - 0.1
    second.step()
    assert not second.leads()
    clock.now += 0.1
    second.step()
    assert second.leads()


def test_the_lease_counts_its_leaders_and_keeps_nothing_that_another_client_wrote(
    server: ApiServer, clock: FakeClock
) -> None:
    first, second = replica(server, clock), replica(server, clock)
    transitions = []
    for leader in first, first, second, second, first:
        leader.step()
        clock.now += LEASE_DURATION
        leader.step()
        spec = stored(server)["spec"]
        assert spec["holderIdentity"] == leader.identity
        assert spec["acquireTime"] <= spec["renewTime"]
        transitions.append(spec["leaseTransitions"])
    assert transitions == [0, 0, 1, 1, 2]
    forged = {"acquireTime": "2099-01-01T00:00:00.000000Z", "preferredHolder": "thief", "leaseTransitions": 2**31 - 1}
    server.put(stored(server) | {"spec": spec | forged})
    first.step()
    assert stored(server)["spec"]["acquireTime"] == spec["acquireTime"]
    assert "preferredHolder" not in stored(server)["spec"]
    second.step()
    clock.now += LEASE_DURATION
    second.step()
    assert stored(server)["spec"]["leaseTransitions"] == 0  # the API server accepts no number above 2**31 - 1


def test_a_leader_that_can_not_renew_stops_before_another_replica_starts(server: ApiServer, clock: FakeClock) -> None:
    assert RENEW_DEADLINE + DELETE_TIMEOUT < LEASE_DURATION  # so a request that it has just sent ends before, too
    first = replica(server, clock)
    first.step()
    server.forbidden.add(("get", "leases"))
    with capture_logs() as lines:
        clock.now += RENEW_DEADLINE - 0.1
        first.step()
        assert first.leads()
        clock.now += 0.1
        assert not first.leads()
        first.step()
    message = forbidden("get", "leases")["message"]
    warned = {"event": "lease not renewed", "log_level": "warning", "resource": "leases", "code": 403, "error": message}
    assert lines == [warned]


def test_the_time_of_a_slow_renewal_counts_against_the_leader(server: ApiServer, clock: FakeClock) -> None:
    """The others may have seen the renewal when it was sent."""
    first, started = replica(server, clock), clock.now

    def answer_late(connection: Any) -> None:
        clock.now += 2.5
        body(stored(server))(connection)

    server.script("get", "leases", answer_late)
    first.step()
    clock.now = started + RENEW_DEADLINE - 0.1
    assert first.leads()
    clock.now += 0.1
    assert not first.leads()


def test_of_two_replicas_that_write_at_the_same_time_one_leads(server: ApiServer, clock: FakeClock) -> None:
    first, second = replica(server, clock), replica(server, clock)
    outdated = stored(server)
    second.step()
    server.script("get", "leases", body(outdated))
    with capture_logs() as lines:
        first.step()
    assert (first.leads(), second.leads()) == (False, True)
    assert lines == []


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (error_response(status(500, "no leader")), 500),
        (body(b"[]"), 0),
        (lambda connection: connection.end(cut=True), 0),
    ],
    ids=["500", "not an object", "no answer"],
)
def test_any_failed_request_is_logged_once_and_never_raises(
    server: ApiServer, clock: FakeClock, answer: Any, code: int
) -> None:
    first = replica(server, clock)
    server.script("get", "leases", answer, answer)
    with capture_logs() as lines:
        first.step()
        first.step()
    assert not first.leads()
    assert [line["code"] for line in lines if line["event"] == "lease not renewed"] == [code]


def test_after_the_leader_stops_another_replica_leads_15_seconds_later(server: ApiServer, clock: FakeClock) -> None:
    first, second = replica(server, clock), replica(server, clock)
    first.run(StopAfterWaits(1))
    second.step()
    assert not second.leads()
    clock.now += LEASE_DURATION
    assert not first.leads()
    second.step()
    assert second.leads()
