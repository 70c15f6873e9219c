"""One node: a Linux kernel in user mode, with a disk, a network link and a shell. It is a process of this machine."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support.controlplane.process import LAUNCHER
from tests.support.nodes.system import System
from tests.support.paths import ROOT

MEMORY = "1536M"
STATE = Path("/run/nodes")  # the folder in which the kernels run, and a tmpfs
NAMES = ("node-1", "node-2", "node-3")  # `enter` has a link for each
GUEST = Path(__file__).with_name("guest")
BENCHMARK = ROOT / "webhook/commands/benchmark"  # for guests
SHELL_PORT = 2222
CONNECT_TIMEOUT = 5.0


def prepare(system: System, folder: Path) -> None:
    """Prepare the folder STATE: the kernel, its devices, the machines' disks, and the folder /share that they share.

    All mounts are below STATE, which only these namespaces have: no clean-up of another folder can reach into one.
    `folder` gets the changes of the disks, and the logs.
    """
    for name in "dev", "disks", "proc", "system", "tmp", "usr":
        (STATE / name).mkdir(parents=True)
    for name in "bin", "lib", "lib64":
        (STATE / name).symlink_to(f"usr/{name}")
    for name in "bin", "benchmark", "guest", "volumes", "work", *NAMES:
        (STATE / "share" / name).mkdir(parents=True)
    (folder / "disks").mkdir()
    mount("--rbind", "/dev", STATE / "dev")
    mount("-t", "proc", "proc", STATE / "proc")
    mount("-t", "tmpfs", "-o", "size=80%", "memory", STATE / "tmp")
    mount("-t", "tmpfs", "-o", "size=4G", "volumes", STATE / "share/volumes")
    mount("--bind", folder / "disks", STATE / "disks")
    for name in NAMES:
        (folder / name).mkdir()
        mount("--bind", folder / name, STATE / "share" / name)
    show(system.kernel / "usr", STATE / "usr")
    show(system.root.parent, STATE / "system")
    show(GUEST, STATE / "share/guest")
    show(BENCHMARK, STATE / "share/benchmark")


def show(source: Path, target: Path) -> None:
    """Mount a folder, so that it can't be changed there."""
    mount("--bind", source, target)
    mount("-o", "remount,bind,ro", target)


def mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True)


class NodeCommandError(RuntimeError):
    """A command in a node that failed; the message has its output."""


class Machine:
    """A machine with a number from 1 to 3. `start` boots it, `cut_power` ends it at once."""

    def __init__(
        self, number: int, disks: dict[str, Path], folder: Path, programs: Iterable[str] = (), memory: str = MEMORY
    ) -> None:
        """It starts these programs of programs.sh. Its disks' paths are paths in STATE; `folder` is `prepare`'s."""
        self.number, self.memory, self.programs = number, memory, ",".join(programs)
        self.name, self.link = f"node-{number}", f"tap{number}"
        self.address, self.pods = f"10.77.0.1{number}", f"10.244.{number}.0/24"
        self.console = folder / self.name / "console.log"
        self._disks = {name: (Path(f"/disks/{self.name}-{name}"), base) for name, base in disks.items()}
        self._kernel: subprocess.Popen[bytes] | None = None
        self._console: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> bool:
        return self._kernel is not None and self._kernel.poll() is None

    def start(self) -> None:
        """Switch the machine on, with its disks as they are. Return before it has booted."""
        shutil.rmtree(STATE / "tmp" / self.name, ignore_errors=True)  # what a killed kernel has left
        routes = ",".join(f"10.244.{each}.0/24=10.77.0.1{each}" for each in (1, 2, 3) if each != self.number)
        # Linux makes parameters that it doesn't know the environment of process 1.
        variables = {"NODE": self.name, "ADDRESS": self.address, "GATEWAY": "10.77.0.1", "ROUTES": routes}
        variables |= {"PROGRAMS": self.programs} if self.programs else {}
        command = [
            "/usr/sbin/chroot",
            str(STATE),
            "/usr/bin/linux.uml",
            f"umid={self.name}",
            "uml_dir=/tmp/",
            "seccomp=on",
            f"mem={self.memory}",
            *(f"{disk}={changes},{base}" for disk, (changes, base) in self._disks.items()),
            *("root=/dev/ubda", "rw", "init=/init", "con=null", "con0=null,fd:1"),
            f"vec0:transport=tap,ifname={self.link},depth=128,gro=1,mac=02:00:00:00:00:1{self.number}",
            *(f"{name}={value}" for name, value in variables.items()),
        ]
        launcher = [sys.executable, "-I", "-S", "-c", LAUNCHER, str(os.getpid()), *command]
        # The console must be a pipe, for UML waits for it with epoll, which refuses files.
        with self.console.open("ab") as log:
            self._kernel = subprocess.Popen(
                launcher,
                env={"TMPDIR": "/tmp", "HOME": "/", "PATH": "/usr/bin"},  # its memory is a file in TMPDIR
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._console = subprocess.Popen(["cat"], stdin=self._kernel.stdout, stdout=log)
        if self._kernel.stdout:
            self._kernel.stdout.close()

    def cut_power(self) -> None:
        """Kill the kernel, and with it all of its programs. What it had not written to its disks is lost."""
        if self._kernel is not None and self.runs:
            os.killpg(self._kernel.pid, signal.SIGKILL)
            self._kernel.wait()
            if self._console is not None:
                self._console.wait()

    def wait_until_booted(self, seconds: float = 120) -> None:
        """Return when the machine has a shell."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                self.run("true")
            except OSError as error:
                if not self.runs or time.monotonic() > deadline:
                    last = "\n".join(self.console.read_text(errors="replace").splitlines()[-30:])
                    raise RuntimeError(f"{self.name} has not booted: {error}\n{last}") from None
                time.sleep(0.3)
            else:
                return

    def run(self, command: str, seconds: float = 120) -> str:
        """Run a command of the shell in the machine, and return its output. Raises NodeCommandError, or OSError."""
        script = f"{{ . /share/guest/programs.sh\n{command}\n}} 2>&1\nprintf '\\n%s\\0' $?\n"
        output = b""
        with socket.create_connection((self.address, SHELL_PORT), CONNECT_TIMEOUT) as shell:
            shell.settimeout(seconds)
            shell.sendall(script.encode())
            # Not until the end of the stream: what the command has started in the background may hold it open.
            while not output.endswith(b"\0"):
                received = shell.recv(1 << 16)
                if not received:
                    raise ConnectionError(f"{self.name}: `{command}` ended without a status: {output!r}")
                output += received
        text, _, status = output.decode(errors="replace").removesuffix("\0").rpartition("\n")
        if status != "0":
            raise NodeCommandError(f"{self.name}: `{command}` ended with status {status}:\n{text}")
        return text.removesuffix("\n")

    def run_python(self, source: str, *arguments: str, seconds: float = 120) -> str:
        """Run a program of Python in the machine, and return its output."""
        return self.run(f"python3 -c {shlex.quote(source)} {shlex.join(arguments)}", seconds)

    def pids(self, uid: str) -> list[int]:
        """Return the processes of a pod, in the order of their start: by its UID in the path of their cgroup."""
        found = self.run(f"grep -l {uid} /proc/[0-9]*/cgroup 2>/dev/null || true")
        return sorted(int(line.split("/")[2]) for line in found.splitlines())

    def cut_network(self) -> None:
        """Take the machine's link out of the bridge. User-mode Linux can't cope with a link that goes down."""
        _ip("link", "set", self.link, "nomaster")

    def restore_network(self) -> None:
        _ip("link", "set", self.link, "master", "br0")

    def link_bytes(self) -> int:
        """Return how many bytes have passed the machine's link so far, in both directions."""
        found = json.loads(_ip("-json", "-statistics", "link", "show", "dev", self.link))[0]["stats64"]
        return int(found["rx"]["bytes"] + found["tx"]["bytes"])


class Guest:
    """The program guest.py, which measures what it is asked: on a machine, or where the command `enter` leads."""

    def __init__(self, machine: Machine, enter: str = "") -> None:
        self._shell = socket.create_connection((machine.address, SHELL_PORT), CONNECT_TIMEOUT)
        self._shell.settimeout(600)
        self._lines = self._shell.makefile("r")
        self._shell.sendall(f"exec {enter} python3 /share/guest/guest.py answer\n".encode())

    def ask(self, *arguments: str) -> dict[str, Any]:
        """Return the result of a measurement."""
        self._shell.sendall(f"{shlex.join(arguments)}\n".encode())
        line = self._lines.readline()
        try:
            return dict(json.loads(line))
        except ValueError:
            raise RuntimeError(f"{arguments}: {line + self._lines.read()}") from None

    def close(self) -> None:
        """End the program."""
        self._lines.close()
        self._shell.close()


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=30).stdout
