"""Run a program of the control plane: it dies with the test run, has a health URL, and is killed by its pid."""

from __future__ import annotations

import http.client
import os
import random
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from tests.support.log_capture import crashes

# Runs in the child and execs the program, under the same pid. Linux kills the program when the thread that started it
# ends, even if that thread was killed. So start programs from a thread that lasts: the main thread. (Not a preexec_fn:
# Python runs it after the fork, where a lock that another thread held stays locked forever.)
LAUNCHER = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
if hasattr(libc, "prctl"):
    libc.prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() != int(sys.argv[1]):
    sys.exit("the test run ended before this program began")
os.execv(sys.argv[2], sys.argv[2:])
"""


# Like the kubelet's probes, these do not verify certificates: each program signs its own. They also ignore a proxy from
# the environment. A default context would load the system's CAs, which takes 40 ms of CPU time.
UNVERIFIED = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
UNVERIFIED.check_hostname = False
UNVERIFIED.verify_mode = ssl.CERT_NONE
PROBES = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=UNVERIFIED))

# The programs of all planes and tests that were started and not killed. A failed wait reports their logs (plane.py).
STARTED: set[Process] = set()


class ProcessError(RuntimeError):
    """A program that did not start, is not healthy, or died. The message has the last lines of its log."""


class Process:
    def __init__(self, name: str, arguments: list[str], health: str, folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._arguments = arguments
        self._health = health
        self._child: subprocess.Popen[bytes] | None = None
        self.should_run = False

    @property
    def pid(self) -> int:
        if self._child is None:
            raise ProcessError(f"{self.name} was never started")
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def died(self) -> bool:
        """Whether the program exited although the test run did not stop it."""
        return self.should_run and not self.alive

    def start(self) -> None:
        """Start or restart the program. A restart appends to the log."""
        command = [sys.executable, "-I", "-S", "-c", LAUNCHER, str(os.getpid()), *self._arguments]
        with self.log.open("ab") as log:
            # In its own session the program gets no SIGINT at Ctrl-C. The test run gets it and kills the programs.
            self._child = subprocess.Popen(
                command,
                env={"GOGC": "300"} | os.environ,  # saves a tenth of the CPU time of kube-apiserver, for 75 MB
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.log.parent,
            )
        # Only now: otherwise another thread could see the previous child, which is dead, as a program that died.
        self.should_run = True
        STARTED.add(self)

    def wait_until_healthy(self, seconds: float = 180) -> None:
        deadline = time.monotonic() + seconds
        while not (answer := _probe(self._health)).startswith("200 "):
            if not self.alive:
                STARTED.discard(self)  # the error below reports it, so a failed wait need not
                raise ProcessError(self.exit_report())
            if time.monotonic() > deadline:
                raise ProcessError(f"{self.name} is not healthy after {seconds:.0f} s: {answer}\n{self.tail()}")
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill the program, if it runs, and return when it has exited. No program has state worth a graceful exit."""
        self.should_run = False
        STARTED.discard(self)
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            if found := crashes(self.log.read_text(errors="replace") if self.log.exists() else "", self._child.poll()):
                raise ProcessError(f"{self.name} crashed: {', '.join(found)}\n{self.tail()}")

    def wait_for_exit(self, seconds: float) -> int:
        """Wait until the program exits, after a signal from the caller, and return its exit status."""
        if self._child is None:
            raise ProcessError(f"{self.name} was never started")
        try:
            return self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            raise ProcessError(f"{self.name} has not exited within {seconds:g} s\n{self.tail()}") from None

    def exit_report(self) -> str:
        code = self._child.poll() if self._child else None
        return f"{self.name} exited with status {code}\n{self.tail()}"

    def tail(self, lines: int = 25) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join([f"last lines of {self.log}:", *text.splitlines()[-lines:]])


@contextmanager
def running(*programs: Process) -> Iterator[None]:
    """Run programs for the duration of the block, which begins once all of them are healthy."""
    try:
        for program in programs:
            program.start()
        for program in programs:
            program.wait_until_healthy()
        yield
    finally:
        for program in programs:
            program.kill()


def _probe(url: str) -> str:
    """Return the status and body of the health URL, or the connection error."""
    try:
        with PROBES.open(url, timeout=2) as answer:
            return f"{answer.status} {answer.read().decode(errors='replace')}"
    except urllib.error.HTTPError as error:
        with error:
            return f"{error.code} {error.read().decode(errors='replace')}"
    except (OSError, http.client.HTTPException) as error:
        return repr(error)


def _non_ephemeral_ports() -> list[int]:
    """Return, in random order, the ports outside Linux's ephemeral range, or some ephemeral ports if all are."""
    try:
        low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split())
    except OSError:
        low, high = 32768, 60999  # the default of Linux
    ports = [port for port in range(10000, 65536) if not low <= port <= high] or range(20000, 32000)
    return random.sample(ports, len(ports))


# Each port is chosen once, because a program binds its port seconds later and other choices happen in between. The
# ports are not ephemeral, because an outgoing connection could take one in those seconds. While a test stops the API
# server, a client that dials its port could even get it as the source port. The client would then connect to itself
# and block the port for the API server.
_PORTS = iter(_non_ephemeral_ports())


def free_ports(count: int) -> list[int]:
    """Return free ports that this process has not returned before."""
    ports = list(islice(filter(_is_free, _PORTS), count))
    if len(ports) < count:
        raise ProcessError("no free port is left outside the ephemeral range")
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
