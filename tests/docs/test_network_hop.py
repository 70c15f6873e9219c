"""The page about the network hop: its calculated table is right, and its Jobs run where the page says."""

from __future__ import annotations

import json
import re
import shlex

import pytest
import yaml

from tests.docs.test_install import commands
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.paths import DOCS, EXAMPLES
from tests.support.scenario import POOL, Scenario

PAGE = DOCS / "explanation/network-hop.md"
MANIFESTS = EXAMPLES / "network-hop"
JOBS = {"together": "hop-together", "apart": "hop-apart"}


def documents(name: str) -> list[Object]:
    return list(yaml.safe_load_all((MANIFESTS / f"{name}.yaml").read_text()))


def jsonpaths() -> list[list[str]]:
    """The arguments of the two kubectl commands that find the volume's name, the inner one first."""
    (line,) = [each for each in commands(PAGE, "Measure your own cluster") if each.startswith("volume=")]
    inner = re.search(r'"\$\(kubectl (.*?)\)"', line)
    outer = re.fullmatch(r'volume=\$\(kubectl get pv ".*" (.*)\)', line)
    assert inner
    assert outer
    return [shlex.split(inner[1]), ["get", "pv", *shlex.split(outer[1])]]


@pytest.fixture
def scenario(plain_scenario: Scenario) -> Scenario:
    return plain_scenario


def test_the_table_of_operations_left_is_calculated_correctly() -> None:
    _, _, rest = PAGE.read_text().partition("\n| latency on the same node |")
    table = [
        [cell.split()[0] for cell in row.strip("|").split("|")] for row in rest.partition("\n\n")[0].splitlines()[2:]
    ]
    headings = re.findall(r"([\d.]+) ms", rest.splitlines()[0])
    assert [float(each) for each in headings] == [0.1, 0.25, 0.5, 1]
    for latency, *shares in table:
        expected = [f"{float(latency) / (float(latency) + float(each)):.0%}" for each in headings]
        assert [f"{share}%" for share in shares] == expected


@pytest.mark.controlplane
@pytest.mark.parametrize("name", ["disk", *JOBS])
def test_the_api_server_accepts_each_manifest_without_warnings_about_fields(
    plane: ControlPlane, scenario: Scenario, name: str
) -> None:
    file = str(MANIFESTS / f"{name}.yaml")
    plane.kubectl("create", "--dry-run=server", "--validate=strict", "-n", scenario.namespace, "-f", file)


@pytest.mark.controlplane
def test_one_job_runs_beside_the_share_manager_and_the_other_apart(plane: ControlPlane, scenario: Scenario) -> None:
    scenario.add_nodes(3)
    volume, share_manager_node = scenario.add_attached_volume("hop-disk")
    inner, outer = jsonpaths()
    pv = plane.kubectl(*inner, "-n", scenario.namespace)
    assert plane.kubectl(*outer, pv) == volume
    plane.kubectl("create", "-n", scenario.namespace, "-f", "-", input=json.dumps(documents("disk")[-1]))
    nodes = {}
    for place, job in JOBS.items():
        (manifest,) = yaml.safe_load_all((MANIFESTS / f"{place}.yaml").read_text().replace("VOLUME", volume))
        manifest["spec"]["template"]["spec"]["nodeSelector"] = {POOL: scenario.namespace}
        plane.kubectl("create", "-n", scenario.namespace, "-f", "-", input=json.dumps(manifest))
        plane.kubectl("wait", f"job/{job}", "--for=condition=Complete", "--timeout=60s", "-n", scenario.namespace)
        (pod,) = plane.request("GET", f"{scenario.pods}?labelSelector=job-name%3D{job}")["items"]
        nodes[place] = pod["spec"]["nodeName"]
    assert nodes["together"] == share_manager_node
    assert nodes["apart"] != share_manager_node
