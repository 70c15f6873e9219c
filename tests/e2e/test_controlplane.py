"""The control plane that other tests use: its programs are built, and stop.

Every other test of this folder shows that it behaves like a cluster.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
