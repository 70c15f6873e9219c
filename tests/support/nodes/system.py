"""The nodes' kernel and root file system, from Debian's packages: built once into the user's cache folder.

Run as a program, it builds them: `python -m tests.support.nodes.system`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

# The kernel of Debian 12 crashes on processors with AMX. The newest one needs the C library of its own release.
# A mirror of sid may be older than the week for which its index is valid.
STALE = "--aptopt=Acquire::Check-Valid-Until false"
KERNEL = ["--variant=extract", STALE, "--include=user-mode-linux,libgcc-s1", "sid"]
# One system for the nodes and for the containers in their pods.
NODE = "containernetworking-plugins conntrack iproute2 ipset kmod mount nbd-client nfs-common procps runc socat".split()
POD = "e2fsprogs nbd-server nfs-ganesha nfs-ganesha-vfs python3".split()
EXCLUDED = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "locale", "man")]
SYSTEM = ["--variant=minbase", *EXCLUDED, f"--include={','.join(NODE + POD)}", "--skip=output/dev", "trixie"]
# QEMU for guests, with a kernel and one static program for them.
QEMU = ["--variant=extract", "--include=qemu-system-x86,busybox-static,linux-image-cloud-amd64", "trixie"]
SIZE = "8G"  # of the root file system, which is sparse
# The kernel has neither iptables nor nftables for IP. kube-proxy's mode `ipvs` works if these programs succeed.
STUBS = [f"{name}{suffix}" for name in ("iptables", "ip6tables") for suffix in ("", "-save", "-restore")]
# Process 1: the host's folder /share has everything else.
INIT = "#!/bin/sh\nmount -t hostfs none /share -o hostfs=/share\nexec /bin/bash /share/guest/init.sh\n"


class SystemBuildError(RuntimeError):
    """The system can't be built; the message has the end of the failed program's output."""


@dataclass(frozen=True, slots=True)
class System:
    """The folder of the kernel with its C library, and the nodes' system: a file system and a tar archive."""

    kernel: Path
    root: Path
    archive: Path


def system() -> System:
    """Return the system, and build it if it isn't in the user's cache. Raises SystemBuildError."""
    folder = cached("nodes", (KERNEL, SYSTEM, SIZE, STUBS, INIT), _build)
    return System(folder / "kernel", folder / "root.ext4", folder / "system.tar")


def cached(name: str, parts: object, write: Callable[[Path], None]) -> Path:
    """Return a folder of the user's cache that depends on these parts. What it lacks is written first."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    folder = home / "kubevirt-scheduler" / f"{name}-{key}"
    if not folder.exists():
        started = time.monotonic()
        _print_progress(f"building {name} from Debian's packages, once:", end=" ")
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Renamed when complete: an interrupted build leaves nothing that looks complete.
        with TemporaryDirectory(dir=folder.parent, prefix="unfinished-") as unfinished:
            write(Path(unfinished, name))
            try:
                Path(unfinished, name).rename(folder)
            except OSError:  # another run was faster
                if not folder.exists():
                    raise
        _print_progress(f"{time.monotonic() - started:.0f} s")
    return folder


def qemu() -> Path:
    """Return the folder with QEMU, the guests' kernel and their program, and build it if it isn't in the cache."""
    return cached("qemu", QEMU, lambda folder: call("mmdebstrap", "--quiet", *QEMU, str(folder)))


def _build(folder: Path) -> None:
    folder.mkdir()
    kernel, root, archive = folder / "kernel", folder / "root", folder / "system.tar"
    call("mmdebstrap", "--quiet", "--format=directory", *KERNEL, str(kernel))
    _print_progress("kernel,", end=" ")
    call("mmdebstrap", "--quiet", *SYSTEM, str(archive))
    _print_progress("packages,", end=" ")
    root.mkdir()
    call("tar", "--directory", str(root), "--extract", "--preserve-permissions", "--file", str(archive))
    for name in "dev", "proc", "share", "sys", "tmp":
        (root / name).mkdir(exist_ok=True)
    (root / "usr/lib/modules").mkdir(exist_ok=True)
    for version in (kernel / "usr/lib/uml/modules").iterdir():
        version.rename(root / "usr/lib/modules" / version.name)
    scripts = {"init": INIT} | {f"usr/local/sbin/{name}": "#!/bin/sh\n" for name in STUBS}
    for path, text in scripts.items():
        (root / path).write_text(text)
        (root / path).chmod(0o755)
    image = folder / "root.ext4"
    call("truncate", "--size", SIZE, str(image))
    call("mkfs.ext4", "-q", "-d", str(root), str(image))
    shutil.rmtree(root)


def call(*command: str) -> None:
    """Run a program of the build. Raises SystemBuildError with the end of its output."""
    result = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if result.returncode:
        last = "\n".join((result.stdout + result.stderr).splitlines()[-25:])
        raise SystemBuildError(f"{' '.join(command[:3])} ended with status {result.returncode}\n{last}")


def _print_progress(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        print(system().root.parent, qemu())
    except SystemBuildError as error:
        sys.exit(f"system.py: {error}")
