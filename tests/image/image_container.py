"""Runs the image as Kubernetes would, with plain namespaces and mounts instead of a container engine."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.image.image import Image
from tests.support.server_process import TIMEOUT, ServerProcess, parse_ready_line, write_cluster

# The root is read-only, /dev is as in a container runtime, /dev/shm is memory, and the user can't gain privileges.
# $1: the root; $2: the folder that is mounted at /mnt; $3: user and group; the command follows.
MOUNTS = """
set -e
mount --bind "$1" "$1"
mount --bind "$2" "$1/mnt"
mount -o remount,bind,ro "$1/mnt"
mount -t proc proc "$1/proc"
mount -t tmpfs -o mode=0755 dev "$1/dev"
for device in null zero urandom; do
    : > "$1/dev/$device"
    mount --bind "/dev/$device" "$1/dev/$device"
done
mkdir "$1/dev/shm"
mount -t tmpfs -o mode=1777,size=64m shm "$1/dev/shm"
mount -o remount,bind,ro "$1"
root=$1 user=$3
shift 3
exec setpriv --no-new-privs /usr/sbin/chroot --userspec="$user" "$root" "$@"
"""
# The program is process 1, as in a pod. It must die with the tests. A process that changes its user loses
# PR_SET_PDEATHSIG, so the outer PID namespace kills it: a PID namespace always ends with its first process.
OUTER = ["setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child"]
INNER = ["unshare", "--mount", "--pid", "--fork", "/bin/sh", "-c", MOUNTS, "mounts"]


def _command(image: Image, files: Path, *arguments: str) -> list[str]:
    return [*OUTER, *INNER, str(image.root), str(files), image.user, *arguments]


def run_command(image: Image, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a container and wait for its exit."""
    command = _command(image, image.root / "mnt", *arguments)
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT, env=image.environment)


@dataclass
class ContainerServer(ServerProcess):
    """A server in a container. `pid` is its process ID on the host; inside, it is process 1."""

    pid: int

    def stop(self) -> int:
        os.kill(self.pid, signal.SIGTERM)
        return self.process.wait(TIMEOUT)


@contextmanager
def run_container(image: Image, folder: Path) -> Iterator[ContainerServer]:
    """Run the image's default command on free loopback ports, and wait until it is ready."""
    files, log_file = folder / "files", folder / "log"
    files.mkdir()
    files.chmod(0o755)  # the container's user reads it
    options = [f"--snapshot=/mnt/{write_cluster(files).name}", "--bind=127.0.0.1", "--https-port=0", "--http-port=0"]
    command = _command(image, files, *image.config["Entrypoint"], *image.config["Cmd"], *options)
    with (
        log_file.open("w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=image.environment) as process,
    ):
        try:
            yield _ready(process, log_file)
        finally:
            process.kill()


def _ready(process: subprocess.Popen[str], log_file: Path) -> ContainerServer:
    assert process.stdout
    assert select.select([process.stdout], [], [], TIMEOUT)[0], f"not ready in time: {log_file.read_text()}"
    line = process.stdout.readline()
    assert line, f"the server did not start: {log_file.read_text()}"
    pid = _child(_child(process.pid))
    ready = json.loads(line)
    # The container has its own /dev/shm, which the host reads through /proc.
    ready_on_host = ready | {"ca": f"/proc/{pid}/root{ready['ca']}"}
    return ContainerServer(**vars(parse_ready_line(process, ready_on_host, log_file)), pid=pid)


def _child(pid: int) -> int:
    [child] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)
