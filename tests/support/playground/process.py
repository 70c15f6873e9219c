"""`make playground` as a process of a test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.paths import ROOT


@contextmanager
def playground(variables: Path) -> Iterator[list[str]]:
    """Run the command of `make playground`; yield the lines that it prints. Ends with Ctrl-C, and expects success."""
    command = [sys.executable, "-m", "tests.support.playground", str(variables)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        printed = []
        try:
            for line in process.stdout:
                printed.append(line)
                if line.startswith("Ctrl-C"):
                    break
            yield printed
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert process.returncode == 0


def environment_of(variables: Path) -> dict[str, str]:
    """Return the environment of a terminal that has sourced the file."""
    shown = subprocess.run(["/bin/sh", "-ec", f". {variables}; env -0"], capture_output=True, text=True, check=True)
    return os.environ | dict(line.split("=", 1) for line in shown.stdout.split("\0") if line)
