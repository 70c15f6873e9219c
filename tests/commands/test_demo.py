"""The demo prints the decisions that scenes.yaml expects, and fails if the server decides differently."""

import subprocess
import sys
from pathlib import Path

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


def test_each_review_has_a_scene_and_the_unmodified_ones_equal_their_recording() -> None:
    assert {scene["review"] for scene in SCENES} == {path.stem for path in EXAMPLES.glob("reviews/*.json")}
    for name in ("vm-start.json", "migration-target.json"):
        recorded = ROOT / "tests" / "data" / "reviews" / name
        assert EXAMPLES.joinpath("reviews", name).read_bytes() == recorded.read_bytes()
