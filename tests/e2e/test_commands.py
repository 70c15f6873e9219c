"""`inject` and `explain` on a live cluster: what they read, and what they say of a VM that is there already."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.support.scenario import World
from webhook.cli import commands

pytestmark = pytest.mark.controlplane


@pytest.fixture
def run(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> Result:
        result = CliRunner().invoke(commands, [*arguments, "--kubeconfig", str(world.plane.kubeconfig)])
        assert "Traceback" not in result.output
        return result

    return run


def test_inject_decides_on_the_live_cluster(world: World, run, tmp_path: Path) -> None:
    world.add_nodes(2)
    _, node = world.warm_volume()
    pod = world.vm_pod("vm1", "disk1")
    pod["metadata"]["namespace"] = world.namespace
    file = tmp_path / "pod.json"
    file.write_text(json.dumps(pod))
    result = run("inject", "-f", str(file), "-o", "json")
    assert result.exit_code == 0, result.output
    decision = json.loads(result.stdout)["decision"]
    assert (decision["outcome"], decision["node"]) == ("pinned", node)


def test_a_vm_that_runs_is_explained(world: World, run) -> None:
    world.add_nodes(2)
    _, node = world.warm_volume()
    pod = world.create(world.vm_pod("vm1", "disk1"))
    world.running(pod)
    for subject in (("vm", "vm1"), ("pod", pod)):
        result = run("explain", *subject, "-n", world.namespace)
        assert result.exit_code == 0, result.output
        assert f"on {node}" in result.stdout
        assert f"decided when it was created: CoScheduled: pinned to {node}" in result.stdout
        # Its own pod takes no room from itself, and its own pin is not in the way.
        assert f"pinned, CoScheduled: pinned to {node}, which serves claim disk1" in result.stdout


def test_what_is_not_there_is_said_in_one_line(world: World, run) -> None:
    for subject, sentence in (("vm", "VM none in namespace"), ("pod", "there is no pod none")):
        result = run("explain", subject, "none", "-n", world.namespace)
        assert (result.exit_code, result.stdout) == (2, "")
        assert sentence in result.stderr
        assert result.stderr.count("\n") == 1


def test_a_cluster_that_can_not_be_asked_is_no_decision(world: World, tmp_path: Path) -> None:
    config = json.loads(world.plane.kubeconfig.read_text())
    config["users"][0]["user"]["token"] = "not-a-token"
    file, pod = tmp_path / "kubeconfig", tmp_path / "pod.json"
    file.write_text(json.dumps(config))
    pod.write_text(json.dumps(world.vm_pod("vm1", "disk1")))
    result = CliRunner().invoke(commands, ["inject", "-f", str(pod), "--kubeconfig", str(file)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "the cluster does not answer" in result.stderr
