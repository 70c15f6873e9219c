"""The workflows are thin: their steps call the project's own commands."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.paths import ROOT

WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yaml"))


def steps(workflow: Path) -> list[dict[str, Any]]:
    return [step for job in yaml.safe_load(workflow.read_text())["jobs"].values() for step in job["steps"]]


def test_there_is_a_workflow_for_changes_and_one_for_releases() -> None:
    assert [workflow.stem for workflow in WORKFLOWS] == ["ci", "release"]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda workflow: workflow.stem)
def test_a_step_runs_one_command_and_each_make_target_exists(workflow: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = [step["run"] for step in steps(workflow) if "run" in step]
    assert all(len(command.splitlines()) == 1 for command in commands)
    assert {found for command in commands for found in re.findall(r"^make ([a-z-]+)", command)} <= targets


def test_the_workflow_for_changes_runs_what_must_pass_before_a_merge() -> None:
    assert steps(WORKFLOWS[0])[-1] == {"run": ".ci/run"}
    assert os.access(ROOT / ".ci/run", os.X_OK)
