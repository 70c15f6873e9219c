"""The event loop, driven turn by turn on a fake clock, with real sockets: timeouts, requests, limits, draining."""

import gc
import os
import resource
import ssl
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path

import pytest

from tests.serving.loop_driver import OK, POST, drive_loop
from tests.support.log_capture import capture_logs
from tests.support.own_process import run_in_child_process
from tests.support.threads import own_threads
from tests.support.tls_client import client_hello, closed_by_server, read_available, reset, write_certificate_files
from tests.support.tls_records import ALERT, CLOSE_NOTIFY, handshake
from webhook.serving.telemetry.collectors import loop_metrics
from webhook.serving.telemetry.metrics import Metrics
from webhook.serving.worker.loop import (
    DRAIN_TIMEOUT,
    MAX_BUFFERED,
    MAX_HANDSHAKES,
    MAX_PER_TURN,
    QUIET_PERIOD,
    STALLED_AFTER,
)
from webhook.serving.worker.messages import Response
from webhook.serving.worker.parser import BODY_LIMIT
from webhook.serving.worker.tls_channel import MAX_USELESS_RECORDS, RECORDS_PER_TURN

HEAD = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
HEAD_WITH_LENGTH = HEAD + b"Content-Length: 100\r\n\r\n"
PARTIAL_LARGE_REQUEST = HEAD + b"Content-Length: 100000\r\n\r\n" + b" " * 20_000
OTHER_PEER = "127.0.0.2"  # another address of the loopback interface
CLOSE_HEADER = b"\r\nConnection: close\r\n"
# Larger than the socket buffers of a peer that does not read.
HUGE_RESPONSE = Response(HTTPStatus.OK, b"x" * 32 * 2**20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    write_certificate_files(folder)
    gc.collect()
    gc.freeze()  # the collection after each test then skips the objects of all other tests, which took 0.2 s
    yield folder
    gc.unfreeze()


@pytest.fixture
def driver(folder):
    with drive_loop(folder) as driver:
        yield driver
    gc.collect()  # a leaked socket raises its ResourceWarning here, in the test that leaked it


def status_of(response):
    """The status of the only HTTP response in these bytes."""
    assert response.count(b"HTTP/1.1 ") == 1, response
    return int(response.split()[1])


def is_served(driver, peer):
    """Whether the loop answers a request with 200 in the turn of its arrival."""
    peer.sendall(POST)
    driver.turn()
    return read_available(peer).startswith(b"HTTP/1.1 200 ")


# Stalled and slow peers


def stalled_peer(driver, stall_point):
    """A peer that sends data up to this point and then stalls."""
    if stall_point in ("no bytes", "incomplete ClientHello"):
        sock = driver.connect_tcp()
        sock.sendall(client_hello(driver.client_context)[:100] if stall_point == "incomplete ClientHello" else b"")
    else:
        sock = driver.connect_tls()
        sock.sendall(
            {"incomplete head": HEAD, "incomplete body": HEAD_WITH_LENGTH + b"{", "unread response": POST}[stall_point]
        )
    driver.turn()
    return sock


# The peer stalls, or sends another byte of the rest each second.
STALLS = [
    ("no bytes", b"", 3, {"handshake": 1}, {}),
    ("incomplete ClientHello", b"", 3, {"handshake": 1}, {}),
    ("incomplete ClientHello", b"x", 3, {"handshake": 1}, {}),
    ("incomplete head", b"", 10, {}, {408: 1}),
    ("incomplete head", b"x", 10, {}, {408: 1}),
    ("incomplete body", b"", 10, {}, {408: 1}),
    ("incomplete body", b" ", 10, {}, {408: 1}),
    ("unread response", b"", 10, {"writing": 1}, {200: 1}),
]


@pytest.mark.parametrize(("stall_point", "trickle", "limit", "dropped", "statuses"), STALLS)
def test_a_stalled_connection_uses_no_thread_and_trickling_bytes_do_not_extend_its_deadline(  # noqa: PLR0917 (columns)
    driver, stall_point, trickle, limit, dropped, statuses
):
    other_peer, before = driver.connect_tls(), own_threads()
    if stall_point == "unread response":
        driver.response = HUGE_RESPONSE
    with stalled_peer(driver, stall_point) as sock:
        driver.response = Response(HTTPStatus.OK, b"{}")
        for _ in range(limit - 1):
            sock.send(trickle)
            driver.advance_clock(1)
            assert is_served(driver, other_peer)
        assert driver.loop.connections() == 2
        assert own_threads() <= before
        driver.advance_clock(1)
        driver.statuses[200] -= limit - 1
        assert (driver.dropped, +driver.statuses) == (dropped, statuses)
        if statuses == {408: 1}:
            assert driver.receive(sock).startswith(b"HTTP/1.1 408 ")
        driver.advance_clock(2)  # after a 408, a peer has 2 s to close the connection
        assert driver.loop.connections() == 1
        assert closed_by_server(sock)
    assert is_served(driver, other_peer)
    other_peer.close()


def test_an_idle_connection_is_closed_after_95_seconds(driver):
    """The API server closes after 90 s, so it closes first."""
    with driver.connect_tls() as sock:
        assert status_of(driver.send_and_receive(sock)) == 200
        driver.advance_clock(94)
        assert status_of(driver.send_and_receive(sock)) == 200
        driver.advance_clock(95)
        assert closed_by_server(sock)
    driver.turn()
    assert driver.loop.connections() == 0
    assert driver.dropped == {}


# Requests


@pytest.mark.parametrize("rest", [POST, b"nonsense\r\n\r\n"], ids=["a request", "invalid bytes"])
def test_bytes_after_a_request_are_not_read_and_its_response_ends_the_connection(driver, rest):
    with driver.connect_tls() as sock:
        response = driver.send_and_receive(sock, POST + rest)
        assert status_of(response) == 200
        assert CLOSE_HEADER in response
        assert closed_by_server(sock)
        assert driver.loop.connections()  # the peer may still send, and a reset would overtake the response
    assert len(driver.requests) == 1


@pytest.mark.parametrize("response", [OK, HUGE_RESPONSE], ids=["small", "huge"])
def test_a_connection_whose_client_asks_for_close_ends_with_the_response(driver, response):
    driver.response = response
    with driver.connect_tls() as sock:
        driver.send(sock, POST.replace(b"\r\n\r\n", CLOSE_HEADER + b"\r\n"))
        received = b""
        while driver.loop.connections():
            driver.turn()
            received += read_available(sock)
        received += read_available(sock)
        assert received.endswith(response.body)
        assert sock.recv(100) == b""  # close_notify; without it, recv would raise
    assert driver.dropped == {}


def test_a_response_to_head_has_no_body(driver):
    with driver.connect_tls() as sock:
        response = driver.send_and_receive(sock, POST.replace(b"POST", b"HEAD"))
        assert response.endswith(b"\r\n\r\n")
        assert b"Content-Length: 2\r\n" in response
        assert is_served(driver, sock)


def test_a_peer_that_continues_to_send_after_a_413_can_read_it(driver):
    """After an immediate close, the peer's data would cause a reset, and the peer might never read the 413."""
    with driver.connect_tls() as sock:
        driver.send(sock, HEAD + b"Content-Length: %d\r\n\r\n" % (2 * BODY_LIMIT))
        for _ in range(5):
            sock.sendall(b"x" * 10000)
            driver.turn(2)
        assert driver.loop.connections() == 1
        assert status_of(read_available(sock)) == 413
    driver.turn()
    assert driver.loop.connections() == 0


def test_a_close_inside_a_body_gets_400(driver):
    with driver.connect_tls() as sock:
        driver.send(sock, HEAD_WITH_LENGTH + b"{")
        with suppress(ssl.SSLWantReadError):
            sock.unwrap()
        driver.turn(2)
    assert +driver.statuses == {400: 1}


def test_an_exception_drops_only_its_connection(driver):
    with driver.connect_tls() as failing, driver.connect_tls() as other_peer, capture_logs() as lines:
        driver.send(failing, POST.replace(b"/mutate", b"/bug"))
        assert closed_by_server(failing)
        assert is_served(driver, other_peer)
    assert driver.dropped == {"error": 1}
    assert "connection failed" in {line["event"] for line in lines}


# TLS records


@pytest.fixture
def record_peer(driver, tmp_path):
    """A peer that encrypts its own TLS records, and its record writer."""
    with driver.connect_tcp() as sock:
        yield sock, handshake(sock, driver.client_context, tmp_path, driver.turn)
        driver.client_context.keylog_filename = None


def one_byte_records(writer, data):
    return b"".join(writer.record(data[index : index + 1]) for index in range(len(data)))


def test_key_updates_between_requests_are_accepted(driver, record_peer):
    sock, writer = record_peer
    for _ in range(3):
        driver.send(sock, writer.key_updates(MAX_USELESS_RECORDS) + writer.record(POST))
        driver.turn(MAX_USELESS_RECORDS)
    assert +driver.statuses == {200: 3}


@pytest.mark.parametrize("after_each", [b"", b"\n"], ids=["alone", "beside single bytes"])
def test_a_key_update_flood_ends_the_connection(driver, record_peer, after_each):
    """OpenSSL works off all KeyUpdate records in one read: 5 MB of them stopped the loop for 5 s."""
    sock, writer = record_peer
    sock.sendall(writer.key_updates(500, after_each))
    driver.turn(2 * MAX_USELESS_RECORDS)
    assert driver.dropped == {"tls": 1}
    assert driver.loop._table.bytes == 0


def test_a_request_that_comes_with_the_end_of_the_handshake_is_served_at_once(driver):
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = driver.client_context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with driver.connect_tcp() as sock:
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        driver.send(sock, outgoing.read())
        incoming.write(read_available(sock))
        tls.do_handshake()
        tls.write(POST)
        driver.send(sock, outgoing.read())
        assert +driver.statuses == {200: 1}


def test_records_after_close_notify_are_not_read(driver, record_peer):
    """While records follow, OpenSSL reports the end at each read: one segment stopped the loop for ever."""
    sock, writer = record_peer
    driver.send(sock, writer.record(POST) + writer.record(CLOSE_NOTIFY, ALERT) + writer.record(POST))
    driver.turn(2)
    assert +driver.statuses == {200: 1}
    assert (driver.loop.connections(), driver.loop._table.bytes, driver.dropped) == (0, 0, {})


def test_a_request_in_records_of_one_byte_takes_many_turns(driver, record_peer):
    sock, writer = record_peer
    sock.sendall(one_byte_records(writer, POST))
    for _ in range(len(POST) // RECORDS_PER_TURN):
        driver.turn()
        assert driver.requests == []
    driver.loop.run_once()  # without an event: the rest is in memory
    assert +driver.statuses == {200: 1}


@pytest.mark.parametrize("cut", [1, 4, 5, 30])
def test_a_record_in_two_segments_is_read_as_a_whole(driver, record_peer, cut):
    sock, writer = record_peer
    record = writer.record(POST)
    driver.send(sock, record[:cut])
    assert driver.loop._table.bytes == cut
    driver.send(sock, record[cut:])
    assert +driver.statuses == {200: 1}


# A header of another protocol, a length that no record has, an unknown version, and a record that was changed.
BAD_RECORDS = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x17\x03\x03\xff\xff",
    b"\x17\x02\x00\x00\x05",
    b"\x17\x03\x03\x00\x14" + b"x" * 20,
]


@pytest.mark.parametrize("record", BAD_RECORDS, ids=range(4))
def test_an_invalid_record_ends_the_connection(driver, record_peer, record):
    driver.send(record_peer[0], record)
    assert driver.dropped == {"tls": 1}


# The budget of a turn


@pytest.fixture
def slow_decisions(driver):
    """Each decision takes 4 ms of the loop's clock."""
    respond = driver.handler.respond

    def decide(request):
        driver.now += 0.004
        return respond(request)

    driver.handler.respond = decide


@pytest.mark.usefixtures("slow_decisions")
def test_requests_over_the_budget_wait_for_the_next_turn_in_the_order_of_their_waiting(driver):
    with ExitStack() as stack:
        peers = [stack.enter_context(driver.connect_tls()) for _ in range(10)]
        for sock in peers:
            sock.sendall(POST)
        served = []
        for _ in range(4):
            driver.turn()
            served.append(driver.statuses[200])
        assert served == [3, 6, 9, 10]
        assert all(status_of(read_available(sock)) == 200 for sock in peers)


@pytest.mark.usefixtures("slow_decisions")
def test_a_small_request_overtakes_large_ones(driver):
    large = POST.replace(b"Length: 2\r\n\r\n{}", b"Length: 30000\r\n\r\n")
    with ExitStack() as stack:
        peers = [stack.enter_context(driver.connect_tls()) for _ in range(8)]
        for sock in peers:
            driver.send(sock, large + b" " * 29_999)
        other_peer = stack.enter_context(driver.connect_tls())
        for sock in peers:
            sock.sendall(b" ")
        assert is_served(driver, other_peer)
        assert driver.statuses[200] < 4


@pytest.mark.usefixtures("slow_decisions")
@pytest.mark.parametrize("size", [2, 30_000], ids=["small", "large"])
def test_a_peer_with_many_connections_delays_no_request_of_another_peer(driver, size):
    """A flood of small requests stopped all large ones."""
    with ExitStack() as stack:
        crowd = [stack.enter_context(driver.connect_tls()) for _ in range(20)]
        other = stack.enter_context(driver.connect_tls(OTHER_PEER))
        for _ in range(3):
            driver.send(other, HEAD + b"Content-Length: %d\r\n\r\n" % size + b" " * (size - 1))
            for sock in crowd:
                sock.sendall(POST)
            other.sendall(b" ")
            driver.turn()
            assert status_of(read_available(other)) == 200
        assert driver.statuses[200] == 15  # 3 in each of 5 turns; the first turn only reads


# Counts


def scan_port(driver):
    """Connect and disconnect in each way in which a port scan does."""
    driver.connect_tcp().close()
    reset(driver.connect_tcp())
    reset(driver.connect_unaccepted())  # before the accept
    garbage = driver.connect_tcp()
    garbage.sendall(b"GET / HTTP/1.0\r\n\r\n")
    driver.turn(2)
    garbage.close()
    aborted = driver.connect_tcp()
    aborted.sendall(client_hello(driver.client_context))
    driver.turn()
    aborted.close()
    reset(driver.connect_tls())  # between two requests, neither a reset nor a close is counted
    driver.connect_tls().close()


def test_a_port_scan_is_counted_by_cause_and_leaves_no_connection(driver):
    """The workers of gunicorn 26.1 and 27.0.1 count some of these down twice, and then never exit."""
    metrics = Metrics()
    metrics.add(partial(loop_metrics, driver.loop.connections, driver.loop.dropped, driver.loop.take_longest_turn))
    with driver.connect_tls() as other_peer:
        for _ in range(5):
            scan_port(driver)
            driver.turn(3)
            assert driver.loop.connections() == 1
        assert is_served(driver, other_peer)
        exposition = metrics.exposition().decode()
        assert "\nkubevirt_scheduler_connections 1.0\n" in exposition
    driver.turn(2)
    assert driver.loop.connections() == 0
    assert driver.dropped == {"tls": 5, "reset": 20}
    assert 'kubevirt_scheduler_connections_dropped_total{cause="tls"} 5.0\n' in metrics.exposition().decode()
    assert driver.loop._table.bytes == 0
    assert len(driver.loop._registered) == 2


def test_without_a_certificate_a_connection_is_closed_and_counted(driver):
    context, driver.server_context = driver.server_context, None
    with driver.connect_tcp() as sock:
        assert closed_by_server(sock)
    assert driver.dropped == {"tls": 1}
    driver.server_context = context
    with driver.connect_tls() as sock:
        assert is_served(driver, sock)


# Limits


def test_the_peer_with_the_most_connections_loses_one_first(driver):
    """A flood of connections closed those of the API server, which waits for longer between two reviews."""
    driver.loop.max_connections = 5
    with ExitStack() as stack:
        other = stack.enter_context(driver.connect_tls(OTHER_PEER))
        assert driver.send_and_receive(other)
        crowd = []
        for _ in range(20):
            driver.advance_clock(0.1)
            crowd.append(stack.enter_context(driver.connect_tls()))
            assert driver.send_and_receive(crowd[-1])
        assert driver.dropped == {"evicted": 16}
        assert [closed_by_server(sock) for sock in crowd] == [True] * 16 + [False] * 4
        assert is_served(driver, other)
        stack.enter_context(driver.connect_tls(OTHER_PEER))
        assert driver.loop.connections() == 5


@pytest.mark.usefixtures("raised_file_limit")
def test_a_handshake_over_the_limit_evicts_the_longest_waiting_one(driver):
    """A handshake takes more memory than an idle connection."""
    with ExitStack() as stack:
        idle = stack.enter_context(driver.connect_tls())
        driver.advance_clock(1)
        first = stack.enter_context(driver.connect_tcp())
        for _ in range(MAX_HANDSHAKES - 1):
            stack.enter_context(driver.connect_tcp())
        assert (driver.loop.connections(), driver.dropped) == (MAX_HANDSHAKES + 1, {})
        newest = stack.enter_context(driver.connect_tls())
        assert (driver.loop.connections(), driver.dropped) == (MAX_HANDSHAKES + 1, {"evicted": 1})
        assert closed_by_server(first)
        assert is_served(driver, idle)
        assert is_served(driver, newest)


@contextmanager
def no_free_descriptor():
    """Open all file descriptors, and close at the end those that are still in the list."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2, hard))
    descriptors = []
    with suppress(OSError):
        while True:
            descriptors.append(os.dup(0))
    yield descriptors
    for descriptor in descriptors:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def check_new_connection_without_descriptor(folder):
    """With an idle connection, and then without one."""
    with drive_loop(folder) as driver, driver.connect_tls() as idle, driver.connect_unaccepted(), no_free_descriptor():
        driver.turn(3)
        assert closed_by_server(idle)
        assert driver.dropped == {"evicted": 1}
        assert driver.loop.connections() == 1
    with drive_loop(folder) as driver, driver.connect_unaccepted(), no_free_descriptor() as descriptors:
        driver.turn(3)
        assert (driver.loop.connections(), driver.dropped) == (0, {})
        os.close(descriptors.pop())
        driver.turn()
        assert driver.loop.connections() == 1


def test_without_a_free_descriptor_a_new_connection_evicts_the_longest_idle_one_or_waits(folder):
    run_in_child_process(check_new_connection_without_descriptor, folder)


def test_new_connections_do_not_delay_a_request(driver):
    with ExitStack() as stack:
        other_peer = stack.enter_context(driver.connect_tls())
        for _ in range(3 * MAX_PER_TURN):
            stack.enter_context(driver.connect_unaccepted())
        assert is_served(driver, other_peer)
        assert driver.loop.connections() == 1 + MAX_PER_TURN
        driver.turn(2)
        assert driver.loop.connections() == 1 + 3 * MAX_PER_TURN


def test_simultaneous_timeouts_do_not_delay_a_request(driver):
    with ExitStack() as stack:
        for _ in range(3 * MAX_PER_TURN):
            stack.enter_context(driver.connect_tls()).sendall(HEAD)
        driver.turn(2)
        other_peer = stack.enter_context(driver.connect_tls())
        driver.advance_clock(10)
        assert driver.statuses[408] == MAX_PER_TURN
        assert is_served(driver, other_peer)
        driver.loop.run_once()  # without a wake-up, because the poll does not wait while timeouts are due
        assert driver.statuses[408] == 3 * MAX_PER_TURN


def fill_buffers(driver, stack, peer):
    """Send incomplete bodies until nearly MAX_BUFFERED bytes are buffered; the connections, the largest body first."""
    found = []
    for index in range(MAX_BUFFERED // BODY_LIMIT):
        found.append(stack.enter_context(driver.connect_tls(peer)))
        driver.send(found[-1], HEAD + b"Content-Length: %d\r\n\r\n" % BODY_LIMIT)
        driver.send(found[-1], b" " * (BODY_LIMIT - 1000 - index))
        driver.turn(160)
    return found


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.0.0.2"], ids=["of the same peer", "of another peer"])
def test_an_overloaded_loop_rejects_the_largest_unfinished_request(driver, peer):
    with ExitStack() as stack:
        large, small = (stack.enter_context(driver.connect_tls()) for _ in range(2))
        largest, *others = fill_buffers(driver, stack, peer)
        driver.send(small, HEAD_WITH_LENGTH)
        assert +driver.statuses == {}
        driver.send(large, PARTIAL_LARGE_REQUEST)
        response = driver.receive(largest)
        assert status_of(response) == 503
        assert b"\r\nRetry-After: 1\r\n" in response
        assert driver.loop._table.bytes < MAX_BUFFERED - BODY_LIMIT // 2
        assert status_of(driver.send_and_receive(large, b" " * 80_000)) == 200
        assert status_of(driver.send_and_receive(small, b" " * 100)) == 200
        assert [driver.receive(other) for other in others] == [b""] * len(others)
    driver.turn(5)
    assert (driver.loop.connections(), driver.loop._table.bytes) == (0, 0)


def test_a_peer_with_many_large_requests_loses_one_before_a_peer_with_the_largest(driver):
    with ExitStack() as stack:
        single = stack.enter_context(driver.connect_tls())
        driver.send(single, HEAD + b"Content-Length: %d\r\n\r\n" % BODY_LIMIT + b" " * (BODY_LIMIT - 1))
        driver.turn(160)
        crowd = fill_buffers(driver, stack, "127.0.0.2")
        assert status_of(driver.send_and_receive(single, b" ")) == 200
        assert [bool(driver.receive(each)) for each in crowd].count(True) == 1


# Liveness


def test_a_hanging_loop_is_reported_as_stalled_and_a_busy_one_is_not(driver):
    reported = []

    def hang():
        driver.now += STALLED_AFTER + 0.1
        reported.append(driver.loop.stalled_seconds())
        reported.append(driver.loop.take_longest_turn())  # before its end

    with driver.connect_tls() as sock:
        for _ in range(100):
            driver.advance_clock(0.5)
            assert is_served(driver, sock)
            assert driver.loop.stalled_seconds() == 0
        driver.on_turn = hang
        driver.turn()
        assert reported == [pytest.approx(STALLED_AFTER + 0.1)] * 2
        driver.on_turn = lambda: None
        driver.turn()
        assert driver.loop.stalled_seconds() == 0


@pytest.mark.usefixtures("slow_decisions")
def test_the_longest_turn_is_reported_once(driver):
    with driver.connect_tls() as sock:
        assert is_served(driver, sock)
        driver.turn()
        assert driver.loop.take_longest_turn() == pytest.approx(0.004)
        assert driver.loop.take_longest_turn() == 0


# Draining


def test_a_new_connection_while_draining_is_served_and_restarts_the_quiet_period(driver):
    """Clients learn late that a replica shuts down: a real API server had its next call refused."""
    with driver.connect_tls() as sock:
        driver.loop.drain()
        assert CLOSE_HEADER in driver.send_and_receive(sock)
    for _ in range(3):
        driver.turn(3)
        assert driver.loop.connections() == 0
        driver.advance_clock(0.9 * QUIET_PERIOD)
        assert not driver.loop._is_drained()
        with driver.connect_tls() as new:
            assert CLOSE_HEADER in driver.send_and_receive(new)
    driver.turn(3)
    driver.advance_clock(1.1 * QUIET_PERIOD)
    assert driver.loop._is_drained()


def test_an_idle_peer_receives_close_notify_after_the_quiet_period(driver):
    with driver.connect_tls() as sock:
        driver.loop.drain()
        assert driver.run_until_drained() == pytest.approx(QUIET_PERIOD, abs=0.5)
        assert sock.recv(100) == b""  # close_notify; without it, recv would raise
        assert driver.loop.connections() == 0
    assert driver.dropped == {}


def test_frequent_requests_are_answered_for_15_seconds_while_draining(driver):
    with ExitStack() as stack:
        peers = [stack.enter_context(driver.connect_tls()) for _ in range(40)]
        idle_peers = iter(peers)

        def send_request():
            if driver.turns % 5 == 0:
                next(idle_peers).sendall(POST)

        driver.on_turn = send_request
        driver.loop.drain()
        took = driver.run_until_drained()
        assert took == pytest.approx(DRAIN_TIMEOUT, abs=1)
        assert driver.statuses[200] == pytest.approx(2 * took, abs=3)
        assert all(closed_by_server(sock) for sock in peers)


@pytest.mark.parametrize("sent", [HEAD, HEAD_WITH_LENGTH + b"{"], ids=["incomplete head", "incomplete body"])
def test_a_request_without_a_response_at_the_end_of_draining_gets_503(driver, sent):
    with driver.connect_tls() as sock:
        driver.send(sock, sent)
        driver.loop.drain()
        took = driver.run_until_drained()
        response = read_available(sock)
        assert status_of(response) == 503
        assert CLOSE_HEADER in response
        assert b"\r\nRetry-After: 0\r\n" in response
        assert took == pytest.approx(QUIET_PERIOD, abs=1)
    assert +driver.statuses == {503: 1}


@pytest.mark.parametrize("sent", [b"", HEAD], ids=["no request", "incomplete head"])
def test_two_drains_end_the_loop_immediately_and_still_send_503(driver, sent):
    with driver.connect_tls() as sock:
        driver.send(sock, sent)
        driver.loop.drain()
        driver.loop.drain()
        assert driver.run_until_drained() < QUIET_PERIOD
        assert read_available(sock).startswith(b"HTTP/1.1 503 ") == bool(sent)
