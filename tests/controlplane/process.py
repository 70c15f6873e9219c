"""One program of the control plane: started so that it can't outlive us, known by its health page, ended by its pid."""

from __future__ import annotations

import os
import random
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from http import HTTPStatus
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
        self.wanted = True
        with self.log.open("ab") as log:
            # A session of its own keeps Ctrl-C for the test run, which then ends its programs in good order.
            self._child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=self.log.parent
            )

    def wait_until_healthy(self, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not _answers(self._health):
            if not self.alive:
                raise ProcessError(self.obituary())
            if time.monotonic() > deadline:
                raise ProcessError(f"{self.name} is not healthy after {seconds:.0f} s\n{self.tail()}")
            time.sleep(0.05)

    def kill(self) -> None:
        """End it at once, if it runs: nothing that it holds is worth a graceful end. Return when it is gone."""
        self.wanted = False
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def obituary(self) -> str:
        code = self._child.poll() if self._child else None
        return f"{self.name} ended with status {code}\n{self.tail()}"

    def tail(self, lines: int = 25) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join([f"last lines of {self.log}:", *text.splitlines()[-lines:]])


def _answers(url: str) -> bool:
    # As the kubelet's probes: each program signs its own certificate, so there is nothing to verify it with. And never
    # through a proxy that the environment may name.
    trusting = ssl.create_default_context()
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusting))
    try:
        with opener.open(url, timeout=2) as answer:
            return bool(answer.status == HTTPStatus.OK)
    except OSError:
        return False


def free_ports(count: int) -> list[int]:
    # From below those that Linux gives to outgoing connections (32768 and up): while the API server is away for a test,
    # a client that dials it could be given that very port, would connect to itself, and keep the API server from it.
    ports = list(islice(filter(_is_free, random.sample(range(20000, 32000), 1000)), count))
    if len(ports) < count:
        raise ProcessError("no free port between 20000 and 32000")
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
