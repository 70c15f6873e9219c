"""The documents say what is so: commands, links, settings, reasons, and the output that they show."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.paths import ROOT
from tests.support.webhook_process import RIGHTS
from webhook.placement.decision import Reason
from webhook.placement.settings import OPT_IN_ANNOTATIONS, Settings, read_settings, variables

README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
LEFT_OUT = "[...]\n"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def rows(page: Path, heading: str) -> list[list[str]]:
    """The rows, cell by cell, of the table below a heading of its first column."""
    _, _, rest = page.read_text().partition(f"\n| {heading} |")
    table = rest.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table]


def examples() -> list[tuple[str, str]]:
    """Each command that the README shows with its output."""
    start = re.compile(r"^\$ ", re.MULTILINE)
    shown = [block.replace("\\\n", "") for block in blocks(README, "console")]
    transcripts = [part for block in shown for part in start.split(block) if part]
    pairs = [transcript.split("\n", 1) for transcript in transcripts]
    return [(command.partition("  #")[0].strip(), output) for command, output in pairs if output.strip()]


def tidy(output: str) -> str:
    """Without trailing blanks, and without the milliseconds at the end of a line of the demo."""
    return "".join(re.sub(r"\s+\d+\.\d$", "", line.rstrip()) + "\n" for line in output.splitlines())


def run(command: str) -> str:
    words = shlex.split(command)
    if words == ["make", "demo"]:  # the environment is there, or this test would not run
        words = ["python", "examples/demo.py"]
    words[0] = str(Path(sys.executable).with_name(words[0]))
    environment = {**os.environ, "COLUMNS": "100"}
    done = subprocess.run(words, cwd=ROOT, env=environment, check=True, capture_output=True, text=True, timeout=60)
    return done.stdout


def test_the_rights_are_those_that_the_tests_run_with() -> None:
    (role,) = (yaml.safe_load(block) for block in blocks(ROOT / "docs" / "live-cluster.md", "yaml"))
    written = [(rule["apiGroups"][0], rule["resources"][0], tuple(rule["verbs"])) for rule in role["rules"]]
    assert written == list(RIGHTS)


@pytest.mark.parametrize(("command", "shown"), examples(), ids=[command for command, _ in examples()])
def test_the_readme_shows_what_a_command_prints(command: str, shown: str) -> None:
    printed, (first, *others) = tidy(run(command)), tidy(shown).split(LEFT_OUT)
    assert printed.startswith(first)
    position = len(first)
    for part in others:
        position = printed.find(part, position) + len(part)
        assert position >= len(part), f"not printed, or not in this order:\n{part}"
    assert printed[position:] == "" or shown.endswith(LEFT_OUT)


def test_the_readme_shows_the_demo_and_both_commands() -> None:
    shown = [shlex.split(command) for command, _ in examples()]
    assert ["make", "demo"] in shown
    assert {words[1] for words in shown if words[0] == "kubevirt-scheduler"} == {"explain", "inject"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_make_command_in_a_page_is_a_target(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", ROOT.joinpath("Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|^|\$ )make ([a-z-]+)", page.read_text(), re.MULTILINE)) <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_inside_the_project_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    inner = [link for link in links if "://" not in link]
    assert [link for link in inner if not page.parent.joinpath(link).exists()] == []


def test_the_readme_installs_it_by_the_commands_that_are_followed_word_for_word() -> None:
    """By tests/docs/test_install.py."""
    followed = blocks(ROOT / "docs" / "install.md", "console")
    (installing,) = [block for block in blocks(README, "console") if "helm install" in block]
    commands = re.split(r"^(?=\$ )", installing, flags=re.MULTILINE)[1:]
    assert len(commands) == 4
    assert [command for command in commands if not any(command in block for block in followed)] == []


def test_the_readme_opts_a_vm_in_with_the_annotation_that_counts() -> None:
    (vm,) = [yaml.safe_load(block) for block in blocks(README, "yaml")]
    assert vm["spec"]["template"]["metadata"]["annotations"] == {OPT_IN_ANNOTATIONS[0]: "true"}


def test_the_example_vm_is_opted_in_and_its_claim_has_a_share_manager() -> None:
    claim, vm = yaml.safe_load_all(ROOT.joinpath("examples/vm.yaml").read_text())
    assert vm["spec"]["template"]["metadata"]["annotations"] == {OPT_IN_ANNOTATIONS[0]: "true"}
    (volume,) = vm["spec"]["template"]["spec"]["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert (claim["spec"]["accessModes"], claim["spec"]["volumeMode"]) == (["ReadWriteMany"], "Filesystem")


def test_each_setting_is_described_with_its_default() -> None:
    described = {cells[0].strip("`"): cells[1].strip("`") for cells in rows(ROOT / "docs/settings.md", "variable")}
    assert set(described) == set(variables())
    for variable, default in described.items():
        assert read_settings({variable: default}) == Settings(), variable


def test_each_reason_is_described_and_none_else() -> None:
    words = [cells[0].strip("`") for cells in rows(ROOT / "docs/how-it-decides.md", "reason")]
    assert [word for word in words if word] == list(Reason)
