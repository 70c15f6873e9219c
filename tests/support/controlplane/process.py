"""One program of the control plane: started so that it can't outlive us, known by its health page, ended by its pid."""

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

# Runs as the child and becomes the program, under the same pid. Linux then ends it with the thread that started it,
# even if that was killed: so start programs from a thread that lasts, the main one. (Not a preexec_fn: Python runs
# that after the fork, where a lock that another thread held stays locked for ever.)
LAUNCHER = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
if hasattr(libc, "prctl"):
    libc.prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() != int(sys.argv[1]):
    sys.exit("the test run ended before this program began")
os.execv(sys.argv[2], sys.argv[2:])
"""


# All that were started and not ended by us, of whichever plane or test: who waits in vain is told of them (plane.py).
STARTED: set[Process] = set()


class ProcessError(RuntimeError):
    """Name the program that did not start or stay, with the last lines of its log."""


class Process:
    def __init__(self, name: str, arguments: list[str], health: str, folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._arguments = arguments
        self._health = health
        self._child: subprocess.Popen[bytes] | None = None
        self.wanted = False

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
        """Whether it ended though nobody ended it."""
        return self.wanted and not self.alive

    def start(self) -> None:
        """Start, or start again: the log is continued."""
        command = [sys.executable, "-I", "-S", "-c", LAUNCHER, str(os.getpid()), *self._arguments]
        with self.log.open("ab") as log:
            # A session of its own keeps Ctrl-C for the test run, which then ends its programs in good order.
            self._child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=self.log.parent
            )
        # Not before: another thread's look would find the child before this one, dead and wanted.
        self.wanted = True
        STARTED.add(self)

    def wait_until_healthy(self, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not (answer := _answer(self._health)).startswith("200 "):
            if not self.alive:
                STARTED.discard(self)  # this is told here, once
                raise ProcessError(self.obituary())
            if time.monotonic() > deadline:
                raise ProcessError(f"{self.name} is not healthy after {seconds:.0f} s: {answer}\n{self.tail()}")
            time.sleep(0.05)

    def kill(self) -> None:
        """End it at once, if it runs: nothing that it holds is worth a graceful end. Return when it is gone."""
        self.wanted = False
        STARTED.discard(self)
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def ended(self, seconds: float) -> int:
        """Wait until it has ended, as somebody has asked it to, and return its status."""
        if self._child is None:
            raise ProcessError(f"{self.name} was never started")
        try:
            return self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            raise ProcessError(f"{self.name} has not ended within {seconds:g} s\n{self.tail()}") from None

    def obituary(self) -> str:
        code = self._child.poll() if self._child else None
        return f"{self.name} ended with status {code}\n{self.tail()}"

    def tail(self, lines: int = 25) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join([f"last lines of {self.log}:", *text.splitlines()[-lines:]])


@contextmanager
def running(*programs: Process) -> Iterator[None]:
    """Run programs until the block ends; it begins when all of them are healthy."""
    try:
        for each in programs:
            each.start()
        for each in programs:
            each.wait_until_healthy()
        yield
    finally:
        for each in programs:
            each.kill()


def _answer(url: str) -> str:
    """What its health page says, after the status, or why it says nothing."""
    # As the kubelet's probes: each program signs its own certificate, so there is nothing to verify it with. And never
    # through a proxy that the environment may name.
    trusting = ssl.create_default_context()
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusting))
    try:
        with opener.open(url, timeout=2) as answer:
            return f"{answer.status} {answer.read().decode(errors='replace')}"
    except urllib.error.HTTPError as error:
        with error:
            return f"{error.code} {error.read().decode(errors='replace')}"
    except (OSError, http.client.HTTPException) as error:
        return repr(error)


def _unassigned() -> list[int]:
    """In any order, the ports that Linux gives to no outgoing connection; some of them, where it may give all."""
    try:
        low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split())
    except OSError:
        low, high = 32768, 60999  # Linux's own default
    ports = [port for port in range(10000, 65536) if not low <= port <= high] or range(20000, 32000)
    return random.sample(ports, len(ports))


# Each of them once, for between a choice and the program that binds it lie seconds, in which others choose. And not
# from those of outgoing connections, one of which may have it by then; while the API server is away for a test, a
# client that dials it could even be given that very port, would connect to itself, and keep the API server from it.
_PORTS = iter(_unassigned())


def free_ports(count: int) -> list[int]:
    """Ports that nobody has, and that this process has never chosen before."""
    ports = list(islice(filter(_is_free, _PORTS), count))
    if len(ports) < count:
        raise ProcessError("no free port is left outside of those for outgoing connections")
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
