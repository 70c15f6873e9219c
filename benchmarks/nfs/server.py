"""nfs-ganesha on loopback, as in Longhorn's share-manager: NFS version 4 only, with the VFS back end."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.controlplane.process import LAUNCHER, free_ports

LOOPBACK, TIMEOUT = "127.0.0.1", 30.0  # seconds for the start
PROGRAM = "ganesha.nfsd"
EXPORT, FILE = "disk", "disk.img"  # KubeVirt's name for the file of a VM's disk
SLOW_DISK = Path(__file__).with_name("slow_disk.c")
# Debian's package of each file. The back end is a library that ganesha loads.
PACKAGES = {"nfs-ganesha": f"usr/bin/{PROGRAM}", "nfs-ganesha-vfs": "usr/lib/*/ganesha/libfsalvfs.so"}
# No portmapper, no lock or quota protocol, no grace period of 90 s after the start.
CONFIGURATION = """\
NFS_CORE_PARAM {{ Protocols = 4; NFS_Port = {port}; Bind_addr = 127.0.0.1;
    Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false; }}
NFSv4 {{ Graceless = true; RecoveryRoot = "{folder}/recovery"; Only_Numeric_Owners = true; }}
NFS_KRB5 {{ Active_krb5 = false; }}
"""
EXPORT_BLOCK = """\
EXPORT {{ Export_Id = 1; Path = "{path}"; Pseudo = "/{name}"; Access_Type = RW; Squash = No_Root_Squash;
    SecType = sys; Protocols = 4; Transports = TCP; FSAL {{ Name = VFS; }} }}
"""


def obstacles(root: Path = Path("/")) -> list[str]:
    """Return what keeps ganesha from running here, as sentences for the user."""
    missing = [package for package, file in PACKAGES.items() if not any(root.glob(file))]
    found = (
        [] if shutil.which("cc") else ["A C compiler is missing, for the slower disks: apt-get install gcc libc6-dev"]
    )
    if missing:
        found.append(
            f"Debian packages are missing: {' '.join(missing)}. Install them with:\n"
            f"  apt-get install --no-install-recommends {' '.join(missing)}\n"
            "With systemd, the package also starts a server on port 2049; stop it with:\n"
            "  systemctl disable --now nfs-ganesha"
        )
    if os.geteuid():
        found.append("Run the benchmark as root: ganesha opens files by handle, which needs CAP_DAC_READ_SEARCH.")
    return found


@contextmanager
def running_server(folder: Path, exported: Path, size: int, latency: float) -> Iterator[int]:
    """Serve the folder `exported`, with a file of `size` bytes, during the block. Yields the port.

    `folder` is for the server's own files. Each read and write of the file takes `latency` seconds longer.
    """
    (port,) = free_ports(1)
    (folder / "recovery").mkdir()
    (exported / FILE).write_bytes(bytes(size))  # so that the filesystem has allocated each block
    text = CONFIGURATION.format(port=port, folder=folder) + EXPORT_BLOCK.format(path=exported, name=EXPORT)
    (folder / "ganesha.conf").write_text(text)
    log = folder / "ganesha.log"
    options = ["-F", "-f", str(folder / "ganesha.conf"), "-L", str(log), "-p", str(folder / "ganesha.pid")]
    # The launcher lets the server die with this process.
    launcher = [sys.executable, "-I", "-S", "-c", LAUNCHER, str(os.getpid())]
    with subprocess.Popen(
        [*launcher, shutil.which(PROGRAM) or f"/usr/bin/{PROGRAM}", *options],
        stderr=subprocess.DEVNULL,
        env={**os.environ, **_slower(folder, latency)},
    ) as child:
        try:
            _wait_until_listening(port, child, log)
            yield port
        finally:
            child.kill()


def _slower(folder: Path, latency: float) -> dict[str, str]:
    """Return the environment that makes the server's disk slower."""
    if not latency:
        return {}
    library = folder / "slow_disk.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, SLOW_DISK], check=True)
    return {"LD_PRELOAD": str(library), "DISK_LATENCY": str(round(latency * 1e9))}


def _wait_until_listening(port: int, child: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            socket.create_connection((LOOPBACK, port), 1).close()
        except OSError:
            if child.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{PROGRAM} did not start:\n{log.read_text()[-2000:] if log.exists() else 'no log'}")
            time.sleep(0.1)
        else:
            return
