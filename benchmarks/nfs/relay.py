"""Relay in front of a server on loopback: adds a round-trip time, and limits the bandwidth of each direction.

The relay runs in a process of its own. While bytes flow, it busy-waits on one core, because a process that sleeps wakes
up to 0.1 ms late. It busy-waits without a delay too, so that the undelayed run differs in nothing else. It doesn't
simulate packet loss or congestion.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

LOOPBACK = "127.0.0.1"
CHUNK = 256 * 1024  # bytes
BUSY = 0.02  # seconds after the last byte in which the relay busy-waits
TIMEOUT = 10.0  # seconds for an answer of the relay's process


@dataclass(slots=True)
class Direction:
    """One direction of the connection: received bytes wait in a queue until they are due."""

    source: socket.socket
    target: socket.socket
    delay: float = 0.0  # seconds
    seconds_per_byte: float = 0.0
    idle_at: float = 0.0  # when the simulated link has transmitted everything that it was given
    queue: deque[tuple[float, memoryview]] = field(default_factory=deque)

    def receive(self) -> bool:
        """Queue what has arrived. Returns False once the source has closed the connection."""
        data = self.source.recv(CHUNK)
        # The delay begins only now. Otherwise it would hide the time that recv took, which an undelayed run pays too.
        self.idle_at = max(self.idle_at, time.perf_counter()) + len(data) * self.seconds_per_byte
        self.queue.append((self.idle_at + self.delay, memoryview(data)))
        return bool(data)

    def send(self) -> None:
        """Send what is due, as far as the target accepts it."""
        while self.queue and self.queue[0][0] <= time.perf_counter():
            due, data = self.queue.popleft()
            try:
                sent = self.target.send(data)
            except BlockingIOError:
                sent = 0
            if sent < len(data):
                self.queue.appendleft((due, data[sent:]))
                return


class Relay:
    """The relay's process. It serves one connection at a time."""

    def __init__(self, server_port: int) -> None:
        self._server = LOOPBACK, server_port
        self._listener = socket.create_server((LOOPBACK, 0))
        self._directions: list[Direction] = []
        self._delay = self._seconds_per_byte = 0.0

    def run(self) -> None:
        """Print the port, and relay until standard input is closed."""
        print(self._listener.getsockname()[1], flush=True)
        busy_until = 0.0
        while True:
            waiting = any(direction.queue for direction in self._directions) or time.perf_counter() < busy_until
            readable, _, _ = select.select(self._sources(), [], [], 0 if waiting else None)
            if sys.stdin in readable and not self._configure():
                return
            if self._listener in readable:
                self._connect()
            for direction in self._directions:
                if direction.source in readable:
                    busy_until = time.perf_counter() + BUSY
                    if not direction.receive():
                        self._disconnect()
                        break
                direction.send()

    def _sources(self) -> list[TextIO | socket.socket]:
        return [sys.stdin, self._listener, *(direction.source for direction in self._directions)]

    def _configure(self) -> bool:
        line = sys.stdin.readline()
        if line:
            self._delay, self._seconds_per_byte = json.loads(line)
            self._apply()
            print("configured", flush=True)
        return bool(line)

    def _connect(self) -> None:
        self._disconnect()
        client, _ = self._listener.accept()
        server = socket.create_connection(self._server)
        for end in client, server:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.setblocking(False)
        self._directions = [Direction(client, server), Direction(server, client)]
        self._apply()

    def _disconnect(self) -> None:
        for direction in self._directions:
            direction.source.close()
        self._directions = []

    def _apply(self) -> None:
        for direction in self._directions:
            direction.delay, direction.seconds_per_byte = self._delay, self._seconds_per_byte


@dataclass(frozen=True, slots=True)
class RunningRelay:
    """A relay's process, as the benchmark sees it."""

    port: int
    child: subprocess.Popen[str]

    def configure(self, round_trip: float, bandwidth: float | None) -> None:
        """Set the added round-trip time in seconds, and the bandwidth in bit/s of each direction. None is no limit."""
        assert self.child.stdin
        self.child.stdin.write(json.dumps([round_trip / 2, 8 / bandwidth if bandwidth else 0.0]) + "\n")
        self.child.stdin.flush()
        _read_line(self.child)


def _read_line(child: subprocess.Popen[str]) -> str:
    assert child.stdout
    if not select.select([child.stdout], [], [], TIMEOUT)[0] or not (line := child.stdout.readline()):
        raise TimeoutError(f"the relay, process {child.pid}, does not answer")
    return line


@contextmanager
def running_relay(server_port: int) -> Iterator[RunningRelay]:
    """Run a relay in front of a port of loopback during the block. It exits by itself if this process dies."""
    command = [sys.executable, "-I", str(Path(__file__)), str(server_port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield RunningRelay(int(_read_line(child)), child)
        finally:
            child.kill()


if __name__ == "__main__":
    Relay(int(sys.argv[1])).run()
