"""benchmarks/io.py: its relay delays and limits what it forwards, and the benchmark names what it needs.

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
from benchmarks.nfs.results import BANDWIDTHS, NETWORKS, UNDELAYED, Network, Results
from benchmarks.nfs.server import PACKAGES, obstacles
from benchmarks.nfs.workload import SMALL, Result, Workload, pace
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


def test_the_pace_ignores_a_pause_and_of_few_replies_is_that_of_all() -> None:
    steady = [number / 1000 for number in range(100)]
    paused = [at + 0.5 * (number > 40) for number, at in enumerate(steady)]
    assert pace(steady, batch=2) == pytest.approx(1000)
    assert pace(paused, batch=2) == pytest.approx(1000)
    assert pace([0.0, 0.5, 1.0], batch=16) == pytest.approx(2)


def test_a_ratio_compares_the_best_rounds() -> None:
    results, workload, delayed = Results(), Workload(True, SMALL, 1), Network(0.001)
    for undelayed_rate, rate in (1000, 100), (400, 250):
        results.add(workload, UNDELAYED, Result(undelayed_rate, 1 / undelayed_rate, 1))
        results.add(workload, delayed, Result(rate, 1 / rate, 1))
    assert results.ratio(workload, delayed) == pytest.approx(0.25)
    assert results.added(workload, delayed) == pytest.approx(0.003)


def test_the_networks_are_those_of_the_page() -> None:
    assert {network.round_trip * 1000 for network in NETWORKS} == {0, 0.1, 0.25, 0.5, 1}
    assert set(BANDWIDTHS.values()) == {None, 10e9, 1e9}


def test_the_benchmark_names_missing_packages_and_the_command_that_installs_them(tmp_path) -> None:
    assert f"apt-get install --no-install-recommends {' '.join(PACKAGES)}" in "\n".join(obstacles(root=tmp_path))
    for file in PACKAGES.values():
        path = tmp_path / file.replace("*", "x86_64-linux-gnu")
        path.parent.mkdir(parents=True)
        path.touch()
    assert not any("packages" in obstacle for obstacle in obstacles(root=tmp_path))


def test_the_benchmark_runs_only_with_a_duration() -> None:
    command = [sys.executable, "benchmarks/io.py"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.startswith("not run: ")
