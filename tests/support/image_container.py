"""A container of the image, as Kubernetes would run it, but of bare namespaces and mounts: no container engine."""

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

from tests.support.image import Image
from tests.support.server_process import IN_TIME, Running, running, write_cluster

# The root is read-only, /dev is the runtime's, /dev/shm is memory, and the program's user can't become another.
# $1 is the root, $2 the files that are shown under /mnt, $3 the user and group; the command follows.
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
# The program is process 1, as in a pod. It ends with us because the outer namespace does: a process that has changed
# its user no longer ends with its parent (PR_SET_PDEATHSIG), but a namespace always ends with its first process.
OUTER = ["setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child"]
INNER = ["unshare", "--mount", "--pid", "--fork", "/bin/sh", "-c", MOUNTS, "mounts"]


def _command(image: Image, files: Path, *arguments: str) -> list[str]:
    return [*OUTER, *INNER, str(image.root), str(files), image.user, *arguments]


def run(image: Image, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a container, to its end."""
    command = _command(image, image.root / "mnt", *arguments)
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=IN_TIME, env=image.environment)


@dataclass
class Contained(Running):
    """A server in a container, where it is process 1; out here it has another number."""

    pid: int

    def stop(self) -> int:
        os.kill(self.pid, signal.SIGTERM)
        return self.process.wait(IN_TIME)


@contextmanager
def contained(image: Image, folder: Path) -> Iterator[Contained]:
    """Run what the image runs by itself, on free ports of the loopback, from the moment when it is ready."""
    files, log_file = folder / "files", folder / "log"
    files.mkdir()
    files.chmod(0o755)  # another user reads it
    ours = [f"--snapshot=/mnt/{write_cluster(files).name}", "--bind=127.0.0.1", "--https-port=0", "--http-port=0"]
    command = _command(image, files, *image.config["Entrypoint"], *image.config["Cmd"], *ours)
    with (
        log_file.open("w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=image.environment) as process,
    ):
        try:
            yield _ready(process, log_file)
        finally:
            process.kill()


def _ready(process: subprocess.Popen[str], log_file: Path) -> Contained:
    assert process.stdout
    assert select.select([process.stdout], [], [], IN_TIME)[0], f"not ready in time: {log_file.read_text()}"
    line = process.stdout.readline()
    assert line, f"it did not start: {log_file.read_text()}"
    pid = _child(_child(process.pid))
    said = json.loads(line)
    # Its files are seen through its process: /dev/shm is memory of its own.
    seen = said | {"ca": f"/proc/{pid}/root{said['ca']}"}
    return Contained(**vars(running(process, seen, log_file)), pid=pid)


def _child(pid: int) -> int:
    [child] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)
