"""The demo prints the decisions that scenes.yaml expects, and fails if the server decides differently."""

import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import yaml

from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples"
SCENES = yaml.safe_load(EXAMPLES.joinpath("scenes.yaml").read_text())


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / "demo.py"), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def test_an_unexpected_decision_fails_the_demo(tmp_path: Path) -> None:
    cluster = yaml.safe_load(EXAMPLES.joinpath("cluster.yaml").read_text())
    for item in cluster["items"]:
        if item["metadata"]["name"] == "share-manager-vol-disk1":
            item["spec"]["nodeName"] = "node-c"
    changed = tmp_path / "cluster.yaml"
    changed.write_text(yaml.safe_dump(cluster))
    result = run_demo(str(changed))
    assert result.returncode == 1
    assert result.stderr == (
        "vm-start.json: expected pinned CoScheduled node-a, got pinned CoScheduled node-c, and the pod is pinned\n"
    )


def test_a_server_that_starts_slowly_ends_the_demo_with_a_word(tmp_path: Path) -> None:
    spec = spec_from_file_location("demo", EXAMPLES / "demo.py")
    assert spec
    assert spec.loader
    demo = module_from_spec(spec)
    spec.loader.exec_module(demo)
    with (
        tmp_path.joinpath("log").open("w") as log,
        pytest.raises(SystemExit, match="the server did not start within 0 s"),
        demo.running_server(str(EXAMPLES / "cluster.yaml"), log, 0),
    ):
        pass


def test_the_commands_that_the_demo_shows_run_without_an_activated_environment() -> None:
    result = run_demo()
    assert result.returncode == 0, result.stderr
    shown = re.findall(r"(\S*)kubevirt-scheduler (explain|report) ", result.stdout)
    assert shown == [(".venv/bin/", "explain"), (".venv/bin/", "report")]


def test_each_review_has_a_scene_and_the_unmodified_ones_equal_their_recording() -> None:
    assert {scene["review"] for scene in SCENES} == {path.stem for path in EXAMPLES.glob("reviews/*.json")}
    for name in ("vm-start.json", "migration-target.json"):
        recorded = ROOT / "tests" / "data" / "reviews" / name
        assert EXAMPLES.joinpath("reviews", name).read_bytes() == recorded.read_bytes()
