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
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = hashlib.sha256(repr((KERNEL, SYSTEM, SIZE, STUBS, INIT)).encode()).hexdigest()[:16]
    folder = home / "kubevirt-scheduler" / f"nodes-{key}"
    if not folder.exists():
        started = time.monotonic()
        _print_progress("building the nodes' system from Debian's packages, once:", end=" ")
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Renamed when complete: an interrupted build leaves nothing that looks complete.
        with TemporaryDirectory(dir=folder.parent, prefix="unfinished-nodes-") as unfinished:
            _build(Path(unfinished, "nodes"))
            try:
                Path(unfinished, "nodes").rename(folder)
            except OSError:  # another run was faster
                if not folder.exists():
                    raise
        _print_progress(f"{time.monotonic() - started:.0f} s")
    return System(folder / "kernel", folder / "root.ext4", folder / "system.tar")


def _build(folder: Path) -> None:
    folder.mkdir()
    kernel, root, archive = folder / "kernel", folder / "root", folder / "system.tar"
    _call("mmdebstrap", "--quiet", "--format=directory", *KERNEL, str(kernel))
    _print_progress("kernel,", end=" ")
    _call("mmdebstrap", "--quiet", *SYSTEM, str(archive))
    _print_progress("packages,", end=" ")
    root.mkdir()
    _call("tar", "--directory", str(root), "--extract", "--preserve-permissions", "--file", str(archive))
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
    _call("truncate", "--size", SIZE, str(image))
    _call("mkfs.ext4", "-q", "-d", str(root), str(image))
    shutil.rmtree(root)


def _call(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if result.returncode:
        last = "\n".join((result.stdout + result.stderr).splitlines()[-25:])
        raise SystemBuildError(f"{' '.join(command[:3])} ended with status {result.returncode}\n{last}")


def _print_progress(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        print(system().root.parent)
    except SystemBuildError as error:
        sys.exit(f"system.py: {error}")
