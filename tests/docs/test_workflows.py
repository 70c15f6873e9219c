"""The workflows are thin: their steps call the project's own commands."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.command_line import run_cli
from tests.support.controlplane import build
from tests.support.paths import DOCS, ROOT

WORKFLOWS = CI, _, RELEASE = sorted(ROOT.glob(".github/workflows/*.yaml"))
DEPENDABOT = ROOT / ".github/dependabot.yml"
COMMIT = "0123456789" * 4


def steps(workflow: Path) -> list[dict[str, Any]]:
    return [step for job in yaml.safe_load(workflow.read_text())["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda workflow: workflow.stem)
def test_a_step_runs_one_command_or_an_action_that_is_pinned_to_a_commit_with_its_tag_beside_it(workflow: Path) -> None:
    assert all(len(step["run"].splitlines()) == 1 for step in steps(workflow) if "run" in step)
    references = re.findall(r"uses: (.*)", workflow.read_text())
    assert references
    assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", reference) for reference in references)


def test_a_pull_request_runs_privileged_without_secrets_and_with_a_token_that_only_reads() -> None:
    text = CI.read_text()
    workflow = yaml.safe_load(text)
    assert set(workflow[True]) == {"push", "pull_request"}  # YAML 1.1 reads `on` as true
    assert workflow["permissions"] == {"contents": "read"}
    assert not any("permissions" in job for job in workflow["jobs"].values())
    assert "secrets." not in text
    (checkout,) = (step for step in steps(CI) if step.get("uses", "").startswith("actions/checkout@"))
    assert checkout["with"]["persist-credentials"] is False


def test_a_first_push_and_a_first_tag_need_no_configuration() -> None:
    """Each variable and secret has a default, and no base image needs a digest that someone wrote."""
    settings = re.findall(r"\$\{\{ (?:vars|secrets)\.[^}]*", "".join(map(Path.read_text, WORKFLOWS)))
    assert len(set(settings)) == 3
    assert all("||" in setting for setting in settings)
    files = [*WORKFLOWS, ROOT / "Dockerfile"]
    assert not any(re.search("sha256:[0-9a-f]", file.read_text()) for file in files)


def provenance(base: str) -> subprocess.CompletedProcess[str]:
    ref = "refs/tags/v0.1.0"
    environment = {
        "GITHUB_SERVER_URL": "https://git.example",
        "GITHUB_REPOSITORY": "owner/name",
        "GITHUB_REF": ref,
        "GITHUB_SHA": COMMIT,
        "GITHUB_WORKFLOW_REF": f"owner/name/.github/workflows/release.yaml@{ref}",
        "GITHUB_RUN_ID": "7",
        "GITHUB_RUN_ATTEMPT": "1",
    }
    command = [sys.executable, ROOT / ".ci/provenance.py", base]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_provenance_names_the_commit_and_the_digest_of_the_base_image() -> None:
    predicate = json.loads(provenance(f"docker.io/library/python:3.13-slim-trixie@sha256:{COMMIT}").stdout)
    assert predicate["buildDefinition"]["resolvedDependencies"] == [
        {"uri": "git+https://git.example/owner/name@refs/tags/v0.1.0", "digest": {"gitCommit": COMMIT}},
        {"uri": "docker://docker.io/library/python:3.13-slim-trixie", "digest": {"sha256": COMMIT}},
    ]
    workflow = predicate["buildDefinition"]["externalParameters"]["workflow"]
    assert workflow["path"] == ".github/workflows/release.yaml"
    identity = "https://git.example/owner/name/.github/workflows/release.yaml@refs/tags/v0.1.0"
    assert predicate["runDetails"]["builder"]["id"] == identity


def test_there_is_no_provenance_of_a_base_image_without_a_digest() -> None:
    run = provenance("docker.io/library/python:3.13-slim-trixie")
    assert (run.returncode, run.stdout) == (1, "")
    assert "has no digest" in run.stderr


def test_dependabot_reads_the_base_image_and_the_folders_and_tools_of_all_test_programs() -> None:
    stages = re.findall(r"^FROM (.*)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert re.fullmatch(r"docker\.io/library/python:3\.\d+-slim-\w+ AS base", stages[0])  # without a variable
    updates = {entry["package-ecosystem"]: entry for entry in yaml.safe_load(DEPENDABOT.read_text())["updates"]}
    assert updates.keys() == {"docker", "github-actions", "gomod", "pip"}
    # A replaced module is never updated, and the oldest Kubernetes must stay.
    modules = set(ROOT.glob("tests/support/*/go.mod")) - {build.OLDEST_MODULE / "go.mod"}
    assert {ROOT / folder[1:] / "go.mod" for folder in updates["gomod"]["directories"]} == modules
    tools = {
        tool
        for module in modules
        for block in re.findall(r"^tool (\(.*?\)|\S+)", module.read_text(), re.MULTILINE | re.DOTALL)
        for tool in re.findall(r"[\w./-]+", block)
    }
    allowed = [entry.get("dependency-name", "direct") for entry in updates["gomod"]["allow"]]
    assert len(tools) > 8
    unknown = [tool for tool in tools if not any(fnmatch(tool, f"{name}*") for name in allowed)]
    assert all(tool.startswith("k8s.io/kubernetes/") for tool in unknown)
    assert not [name for name in allowed if name != "direct" and not any(fnmatch(tool, f"{name}*") for tool in tools)]


def test_the_issue_form_asks_for_commands_that_print_json_and_says_what_a_snapshot_contains() -> None:
    form = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/problem.yml").read_text())
    labels = [part["attributes"].get("label", "") for part in form["body"]]
    asked = [label.split()[1] for label in labels if label.startswith("kubevirt-scheduler ")]
    assert asked == ["version", "doctor", "explain"]
    assert all("json" in run_cli(name, "--help").output for name in asked)
    page = " ".join((DOCS / "reference/commands.md").read_text().split())
    description = " ".join(form["body"][-1]["attributes"]["description"].split())
    for kept in "names, labels, claims, scheduling constraints, resources and states", "no cloud-init data":
        assert kept in page
        assert kept in description


def test_only_the_step_that_uses_a_secret_gets_it() -> None:
    workflow = yaml.safe_load(RELEASE.read_text())
    assert "secrets." not in str(workflow["env"])
    users = [step for step in steps(RELEASE) if "secrets." in str(step)]
    assert users
    assert all(f"${name}" in step["run"] for step in users for name in step["env"])
