"""benchmarks/io.py: its relay delays and limits what it forwards.

No test runs nfs-ganesha.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from threading import Thread

import pytest

from benchmarks.nfs.relay import RunningRelay, running_relay
from benchmarks.nfs.results import UNDELAYED, Network, Results
from benchmarks.nfs.workload import SMALL, Result, Workload
from tests.support.paths import ROOT

LOOPBACK, TIMEOUT = "127.0.0.1", 20.0
MEGABYTE = 1_000_000


def echo(listener: socket.socket) -> None:
    """Send each connection's bytes back, one connection after the other, until the listener is closed."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            while data := connection.recv(65536):
                connection.sendall(data)


@pytest.fixture
def relay() -> Iterator[RunningRelay]:
    """A relay in front of a server that sends everything back."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        thread = Thread(target=echo, args=(listener,))
        thread.start()
        with running_relay(listener.getsockname()[1]) as relay:
            yield relay
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(TIMEOUT)


@pytest.fixture
def client(relay: RunningRelay) -> Iterator[socket.socket]:
    with socket.create_connection((LOOPBACK, relay.port), TIMEOUT) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield client


def exchange(client: socket.socket, data: bytes) -> tuple[bytes, float]:
    """Send bytes, and return those that come back with the seconds that all of it took."""
    begin = time.perf_counter()
    sender = Thread(target=client.sendall, args=(data,))
    sender.start()
    received = bytearray()
    while len(received) < len(data):
        received += client.recv(65536)
    sender.join(TIMEOUT)
    return bytes(received), time.perf_counter() - begin


def fastest(client: socket.socket, data: bytes, times: int) -> float:
    return min(exchange(client, data)[1] for _ in range(times))


def test_the_relay_adds_the_round_trip_time_and_limits_the_bandwidth(
    relay: RunningRelay, client: socket.socket
) -> None:
    """Only lower bounds: the tests share the machine with others."""
    relay.configure(0.05, None)
    assert fastest(client, b"x", times=2) >= 0.05
    relay.configure(0.0001, None)
    assert 0.0001 <= fastest(client, b"x", times=200) < 0.05
    relay.configure(0, 80e6)  # one megabyte takes 0.1 s in each direction, and both directions overlap
    assert fastest(client, bytes(MEGABYTE), times=1) >= 0.1


def test_delayed_bytes_of_each_connection_arrive_unchanged_and_in_order(relay: RunningRelay) -> None:
    relay.configure(0.01, 1e9)
    for data in (os.urandom(MEGABYTE), b"x"):
        with socket.create_connection((LOOPBACK, relay.port), TIMEOUT) as client:
            assert exchange(client, data)[0] == data


def test_the_relay_exits_when_the_benchmark_is_gone(relay: RunningRelay) -> None:
    assert relay.child.stdin
    relay.child.stdin.close()
    assert relay.child.wait(TIMEOUT) == 0


def test_a_ratio_compares_the_best_rounds() -> None:
    results, workload, delayed = Results(), Workload(True, SMALL, 1), Network(0.001)
    for undelayed_rate, rate in (1000, 100), (400, 250):
        results.add(workload, UNDELAYED, Result(undelayed_rate, 1 / undelayed_rate, 1))
        results.add(workload, delayed, Result(rate, 1 / rate, 1))
    assert results.ratio(workload, delayed) == pytest.approx(0.25)
    assert results.added(workload, delayed) == pytest.approx(0.003)


def test_the_benchmark_runs_only_with_a_duration() -> None:
    command = [sys.executable, "benchmarks/io.py"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.startswith("not run: ")
