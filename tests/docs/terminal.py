"""The playground, and the terminal of a reader who types a page's commands into it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.docs.transcripts import Transcript, missing_part, strip_lines
from tests.support.paths import ROOT

READS = ("kubectl get", "kubevirt-scheduler")  # a person repeats such a command until the cluster has settled
SETTLED = 60  # seconds


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


class Terminal:
    """The reader's second terminal, in the checkout."""

    def __init__(self, variables: Path, home: Path) -> None:
        self._variables = variables
        self._environment = {"PATH": os.environ["PATH"], "HOME": str(home), "COLUMNS": "150"}

    def check(self, step: Transcript) -> None:
        """Run a step until it prints what the page shows. A command that changes the cluster runs once."""
        deadline = time.monotonic() + (SETTLED if step.command.startswith(READS) else 0)
        while problem := self._run(step):
            assert time.monotonic() < deadline, problem
            time.sleep(0.2)

    def _run(self, step: Transcript) -> str:
        """Run a step once, and return how it differs from the page; empty if it doesn't."""
        lines = f". {self._variables}\n{step.command}"
        result = subprocess.run(
            ["/bin/sh", "-ec", lines], cwd=ROOT, env=self._environment, capture_output=True, text=True, check=False
        )
        printed = strip_lines(result.stdout)
        shown = f"$ {step.command}\n{printed}"
        if result.returncode:
            return f"{shown}{result.stderr}exit status {result.returncode}"
        part = missing_part(printed, step.output) if step.output else ""
        return f"{shown}\nmissing:\n{part}" if part else ""
