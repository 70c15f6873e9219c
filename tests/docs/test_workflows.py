"""The workflows are thin: their steps call the project's own commands."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.paths import ROOT

CHECK = "python3 .ci/pins.py --check"
WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yaml"))


def steps(workflow: Path) -> list[dict[str, Any]]:
    return [step for job in yaml.safe_load(workflow.read_text())["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda workflow: workflow.stem)
def test_a_step_runs_one_command_and_each_make_target_exists(workflow: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = [step["run"] for step in steps(workflow) if "run" in step]
    assert all(len(command.splitlines()) == 1 for command in commands)
    assert {found for command in commands for found in re.findall(r"^make ([a-z-]+)", command)} <= targets


def pins() -> Any:
    spec = importlib.util.spec_from_file_location("pins", ROOT / ".ci/pins.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


COMMIT, DIGEST = "0123456789" * 4, f"sha256:{'0123456789abcdef' * 4}"
TAGS = "      - uses: owner/action/part@v1\n      image: debian:trixie\nARG BASE=registry.example:5000/python:3.13\n"
PINS = (
    f"      - uses: owner/action/part@{COMMIT} # v1\n      image: debian:trixie@{DIGEST}\n"
    f"ARG BASE=registry.example:5000/python:3.13@{DIGEST}\n"
)


def test_each_tag_is_found_and_pinned_and_a_pin_follows_its_tag() -> None:
    assert [line for line, _ in pins().unpinned(TAGS)] == [1, 2, 3]
    assert list(pins().unpinned(PINS)) == []
    asked: list[tuple[str, str]] = []
    commit_of, digest_of = (lambda *what, pin=pin: asked.append(what) or pin for pin in (COMMIT, DIGEST))
    assert pins().pinned(TAGS, commit_of, digest_of) == PINS
    assert asked == [("owner/action/part", "v1"), ("debian", "trixie"), ("registry.example:5000/python", "3.13")]
    older = PINS.replace("0123", "3210")
    assert pins().pinned(older, lambda *_: COMMIT, lambda *_: DIGEST) == PINS


def test_each_action_is_pinned_and_the_check_fails_on_each_image_that_is_not() -> None:
    unpinned = [what for file in pins().FILES for _, what in pins().unpinned(file.read_text())]
    assert [what for what in unpinned if what.startswith("uses")] == []
    run = subprocess.run(
        [sys.executable, ".ci/pins.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (run.returncode, len(run.stderr.splitlines())) == ((1, len(unpinned) + 1) if unpinned else (0, 0))
    assert all(what in run.stderr for what in unpinned)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda workflow: workflow.stem)
def test_a_workflow_checks_the_pins_before_it_runs_anything_of_an_image(workflow: Path) -> None:
    first_job = next(iter(yaml.safe_load(workflow.read_text())["jobs"].values()))
    assert next(step["run"] for step in first_job["steps"] if "run" in step) == CHECK


def test_only_the_step_that_uses_a_secret_gets_it() -> None:
    workflow = yaml.safe_load(WORKFLOWS[1].read_text())
    assert "secrets." not in str(workflow["env"])
    users = [step for step in steps(WORKFLOWS[1]) if "secrets." in str(step)]
    assert users
    assert all(f"${name}" in step["run"] for step in users for name in step["env"])
