"""The commands of each page for the playground run verbatim, from the first to the last, and print what it shows."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.transcripts import Transcript, missing_part, strip_lines, transcripts
from tests.support.command_line import run_line
from tests.support.helm_chart import NAME, NAMESPACE
from tests.support.paths import DOCS, ROOT
from tests.support.playground.process import environment_of, playground
from webhook.fleet import release

READS = ("kubectl get", "kubevirt-scheduler")  # a person repeats such a command until the cluster has settled
SETTLED = 60  # seconds
# The commands at the start of each page that come before those on the playground. commands/test_demo.py runs the demo.
PAGES = {
    "tutorial.md": ["make demo", "make playground", ". .cache/playground"],
    "guides/existing-cluster.md": ["make venv && . .venv/bin/activate"],
    "guides/rehearse.md": [],
}
# Each page begins with a new playground: these remove what the page before has left.
AS_NEW = (
    f"helm uninstall {NAME} -n {NAMESPACE} --ignore-not-found",
    "kubectl delete vm,pod,pvc --all",
    "kubectl uncordon node-a node-b node-c",
    "kubectl wait pv --all --for=delete --timeout=60s",
)


class Terminal:
    """The reader's second terminal, in the checkout."""

    def __init__(self, variables: Path) -> None:
        self.variables = variables
        self._environment = environment_of(variables) | {"COLUMNS": "150", "GOGC": "off"}

    def run(self, command: str) -> tuple[int, str, str]:
        """Run a command; return its exit code, its output and its errors."""
        return run_line(command, self._environment, ROOT)

    def check(self, step: Transcript) -> None:
        """Run a step until it prints what the page shows. A command that changes the cluster runs once."""
        deadline = time.monotonic() + (SETTLED if step.command.startswith(READS) else 0)
        while problem := self._run(step):
            assert time.monotonic() < deadline, problem
            time.sleep(0.2)

    def _run(self, step: Transcript) -> str:
        """Run a step once, and return how it differs from the page; empty if it doesn't."""
        code, output, errors = self.run(step.command)
        printed = strip_lines(output)
        shown = f"$ {step.command}\n{printed}"
        if code:
            return f"{shown}{errors}exit status {code}"
        part = missing_part(printed, step.output) if step.output else ""
        return f"{shown}\nmissing:\n{part}" if part else ""


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    variables = tmp_path_factory.mktemp("playground") / "variables"
    with playground(variables) as printed:
        assert f"    . {variables}\n" in printed
        yield Terminal(variables)
    assert not variables.exists()


@pytest.mark.controlplane
def test_the_playground_has_the_plugin_and_a_second_one_leaves_its_files(terminal: Terminal) -> None:
    code, output, _ = terminal.run("kubectl coschedule version")
    assert (code, output.startswith("command")) == (0, True)
    written = terminal.variables.read_text()
    code, _, errors = terminal.run(f"timeout 120 {sys.executable} -m tests.support.playground {terminal.variables}")
    assert (code, "A playground of this folder already runs" in errors) == (1, True)
    assert terminal.variables.read_text() == written


@pytest.mark.controlplane
@pytest.mark.parametrize("page", PAGES)
def test_each_command_of_a_page_prints_what_the_page_shows(
    terminal: Terminal, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "UNSCHEDULED_AFTER", 2)  # seconds, instead of 30: tests/fleet has those
    setup, steps = PAGES[page], transcripts(DOCS / page)
    assert [each.command for each in steps[: len(setup)]] == setup
    for command, output in [*(Transcript(each, "") for each in AS_NEW), *steps[len(setup) :]]:
        faster = command.replace("--settle 60", "--settle 1").replace("--settle 5", "--settle 1")
        terminal.check(Transcript(faster, output))
