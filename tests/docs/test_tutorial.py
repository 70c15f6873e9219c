"""The tutorial's commands run verbatim and print what the page shows, on the playground that its first step starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.transcripts import Transcript, missing_part, strip_lines, transcripts
from tests.support.paths import DOCS, ROOT

PAGE = DOCS / "tutorial.md"
SETUP = ["make demo", "make playground", ". .cache/playground"]  # the first one runs in test_commands.py
READS = ("kubectl get", "kubevirt-scheduler")  # a person repeats such a command until the cluster has settled
SETTLED = 30  # seconds


def steps() -> list[Transcript]:
    """Return the commands after those that start the cluster."""
    found = transcripts(PAGE)
    assert [each.command for each in found[: len(SETUP)]] == SETUP
    return found[len(SETUP) :]


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

    def run(self, command: str) -> str:
        """Run a command and return what it prints. Fails the test if the command fails."""
        lines = f". {self._variables}\n{command}"
        result = subprocess.run(
            ["/bin/sh", "-ec", lines], cwd=ROOT, env=self._environment, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, f"$ {command}\n{result.stdout}{result.stderr}"
        return strip_lines(result.stdout)

    def check(self, step: Transcript) -> None:
        """Run a step until it prints what the page shows. A command that changes the cluster runs once."""
        deadline = time.monotonic() + (SETTLED if step.command.startswith(READS) else 0)
        while True:
            printed = self.run(step.command)
            part = missing_part(printed, step.output) if step.output else ""
            if not part:
                return
            assert time.monotonic() < deadline, f"$ {step.command}\n{printed}\nmissing:\n{part}"
            time.sleep(0.5)


@pytest.mark.controlplane
def test_each_step_of_the_tutorial_prints_what_the_page_shows(tmp_path: Path) -> None:
    variables = tmp_path / "variables"
    with playground(variables) as printed:
        assert f"    . {variables}\n" in printed
        terminal = Terminal(variables, tmp_path)
        for step in steps():
            terminal.check(step)
    assert not variables.exists()
