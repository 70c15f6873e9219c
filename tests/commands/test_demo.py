"""The demo: what a stranger sees first must be true, and must fail where it is not."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples"
SCENES = yaml.safe_load(EXAMPLES.joinpath("scenes.yaml").read_text())


def play(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / "demo.py"), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def played() -> subprocess.CompletedProcess[str]:
    return play()


def test_the_demo_passes(played: subprocess.CompletedProcess[str]) -> None:
    assert (played.returncode, played.stderr) == (0, "")


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene["review"])
def test_the_table_has_a_row_for_each_review(scene: dict[str, Any], played: subprocess.CompletedProcess[str]) -> None:
    lines = [line.split() for line in played.stdout.splitlines()]
    row = lines[lines.index(scene["situation"].split()) - 1]
    assert row[1:-1] == [word for word in scene["expected"] if word]


def test_the_demo_says_why_a_pin_was_softened_and_shows_what_changed(
    played: subprocess.CompletedProcess[str],
) -> None:
    assert "is not pinned: NodeFull: node-d serves claim builder-disk, but it is full" in " ".join(
        played.stdout.split()
    )
    added = {line[1:].strip() for line in played.stdout.splitlines() if line.startswith("+")}
    assert {"matchFields:", "preferredDuringSchedulingIgnoredDuringExecution:", "- node-a"} <= added


def test_an_answer_that_is_not_expected_fails_the_demo(tmp_path: Path) -> None:
    cluster = yaml.safe_load(EXAMPLES.joinpath("cluster.yaml").read_text())
    for item in cluster["items"]:
        if item["metadata"]["name"] == "share-manager-vol-disk1":
            item["spec"]["nodeName"] = "node-c"
    changed = tmp_path / "cluster.yaml"
    changed.write_text(yaml.safe_dump(cluster))
    played = play(str(changed))
    assert played.returncode == 1
    assert played.stderr == (
        "vm-start.json: expected pinned CoScheduled node-a, was told pinned CoScheduled node-c, and the pod is pinned\n"
    )


def test_a_server_that_does_not_start_fails_the_demo_with_its_own_words(tmp_path: Path) -> None:
    played = play(str(tmp_path / "nowhere.yaml"))
    assert played.returncode == 1
    assert played.stderr.startswith("the server did not start\n")
    assert "nowhere.yaml" in played.stderr
    assert "Traceback" not in played.stderr


def test_every_review_is_played() -> None:
    assert {scene["review"] for scene in SCENES} == {path.stem for path in EXAMPLES.glob("reviews/*.json")}


@pytest.mark.parametrize("name", ["vm-start.json", "migration-target.json"])
def test_a_review_that_is_said_to_be_as_recorded_is_so(name: str) -> None:
    recorded = ROOT / "tests" / "data" / "reviews" / name
    assert EXAMPLES.joinpath("reviews", name).read_bytes() == recorded.read_bytes()
