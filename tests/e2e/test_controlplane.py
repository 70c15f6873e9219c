"""The programs of the control plane that other tests use end with the test run.

Every other test of this folder shows that they behave like a cluster.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.controlplane.plane import ControlPlane
from tests.support.paths import ROOT

pytestmark = pytest.mark.controlplane

SCRIPT = """
import pathlib, shutil, sys
from tests.support.controlplane.process import Process
process = Process("program", [shutil.which("sleep"), "600"], "", pathlib.Path(sys.argv[1]))
process.start()
print(process.pid, flush=True)
sys.stdin.read()
"""


def is_running(pid: int) -> bool:
    # Not kill(pid, 0): in a container whose init does not reap, an exited orphan remains as a zombie.
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_killed_test_run_leaves_no_process(plane: ControlPlane, tmp_path: Path) -> None:
    command, pipe = [sys.executable, "-c", SCRIPT, str(tmp_path)], subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdout
        pid = int(child.stdout.readline())
        plane.wait(lambda: "sleep" in Path(f"/proc/{pid}/cmdline").read_text(), 20, "the program behind its launcher")
        child.kill()
    plane.wait(lambda: not is_running(pid), 20, "the exit of its program")
