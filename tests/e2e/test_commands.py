"""The commands that read, on a live cluster: a snapshot decides as the cluster does, and the chart's role suffices."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.e2e.migrating_fleet import MigratingFleet, role_kubeconfig
from tests.support.controlplane.plane import ControlPlane
from tests.support.migration_controller import MigrationController
from tests.support.scenario import Scenario
from webhook.cli import commands

pytestmark = pytest.mark.controlplane


@pytest.fixture
def run(scenario: Scenario, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> Result:
        result = CliRunner().invoke(commands, [*arguments, "--kubeconfig", str(scenario.plane.kubeconfig)])
        assert "Traceback" not in result.output
        return result

    return run


def test_a_snapshot_of_the_cluster_has_no_secrets_and_gives_the_same_decision(
    scenario: Scenario, run, tmp_path: Path
) -> None:
    scenario.add_nodes(2)
    volume, node = scenario.add_attached_volume()
    pod = scenario.vm_pod("vm1", "disk1")
    pod["metadata"]["namespace"] = scenario.namespace
    pod["spec"]["containers"][0]["env"] = [{"name": "PASSPHRASE", "value": "open-sesame"}]
    created = scenario.create(pod)
    scenario.wait_running(created)
    file, cluster = tmp_path / "pod.json", tmp_path / "cluster.json"
    file.write_text(json.dumps(pod))
    result = run("snapshot", "-o", str(cluster))
    assert result.exit_code == 0, result.output
    assert "open-sesame" not in cluster.read_text()
    assert volume in cluster.read_text()
    live, offline = (
        run("inject", "-f", str(file), "-o", "json", *source) for source in ([], ["--snapshot", str(cluster)])
    )
    assert json.loads(live.stdout) == json.loads(offline.stdout)
    assert json.loads(live.stdout)[0]["decision"]["node"] == node


def test_the_report_role_of_the_chart_suffices_for_the_commands_that_read(
    plane: ControlPlane, plain_scenario: Scenario, tmp_path: Path
) -> None:
    kubeconfig = role_kubeconfig(plane, "report")
    with MigrationController(plain_scenario) as controller:
        fleet = MigratingFleet(plain_scenario, controller, kubeconfig)
        fleet.add({"vm1": (fleet.nodes[0], fleet.nodes[1])})
        assert fleet.states() == {"vm1": "Apart"}
        explained = fleet.run("explain", "vm", "vm1", "-n", plain_scenario.namespace)
        assert "you may not read" not in explained.stderr
        pod, file = tmp_path / "pod.json", tmp_path / "cluster.json"
        pod.write_text(json.dumps(plain_scenario.vm_pod("vm2", "vm1")))
        fleet.run("inject", "-f", str(pod))
        fleet.run("snapshot", "-o", str(file))  # it fails if a kind may not be listed
        assert "forbidden" in fleet.run("opt-out", "vm1", "-n", plain_scenario.namespace, "--yes", expected=1).stdout
