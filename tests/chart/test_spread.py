"""The replicas of both charts run on different nodes, placed by the real scheduler and Deployment controller."""

from __future__ import annotations

import json

import pytest

from tests.support.controlplane.plane import ControlPlane
from tests.support.helm_chart import Object
from tests.support.paths import CHART, SECONDARY_CHART
from tests.support.scenario import POOL, Scenario

pytestmark = pytest.mark.controlplane

ZONE = "topology.kubernetes.io/zone"
ROLLOUTS = 3
# For each case, the zone of each node. Without a zone, a node has no such label.
NODES: dict[str, list[str]] = {
    "two nodes without zones": ["", ""],
    "four nodes in two zones": ["a", "a", "b", "b"],
}


def running_pods(plane: ControlPlane, namespace: str, release: str) -> list[Object]:
    path = f"/api/v1/namespaces/{namespace}/pods?labelSelector=app.kubernetes.io/instance%3D{release}"
    found = plane.request("GET", path)["items"]
    return [pod["spec"] for pod in found if "deletionTimestamp" not in pod["metadata"]]


@pytest.mark.parametrize("zones", NODES.values(), ids=NODES)
def test_each_of_three_rollouts_ends_on_two_nodes_and_in_two_zones(
    plane: ControlPlane, plain_scenario: Scenario, zones: list[str]
) -> None:
    namespace = plain_scenario.namespace
    zone_of = {}
    for number, zone in enumerate(zones):
        (node,) = plain_scenario.add_nodes(1, f"replica-{number}", {ZONE: zone} if zone else {})
        if number:  # all nodes but the first are nearly full, so that the scheduler prefers the first one
            plain_scenario.fill(node, cpu="13", memory="52Gi")
        zone_of[node] = zone or node
    releases = {f"{namespace}-webhook": CHART, f"{namespace}-second": SECONDARY_CHART}
    selector = f"nodeSelector={json.dumps({POOL: namespace})}"
    namespaced = f"--namespace={namespace}"
    try:
        for release, chart in releases.items():
            plane.helm("install", release, str(chart), namespaced, "--set-json", selector)
        for number in range(ROLLOUTS):
            # `rollout restart` fails within a second of the last one.
            plane.kubectl("set", "env", "deployment", "--all", f"ROLLOUT={number}", namespaced)
            for release in releases:
                selected = f"--selector=app.kubernetes.io/instance={release}"
                plane.kubectl("rollout", "status", "deployment", selected, namespaced, "--timeout=180s")
                nodes = [spec["nodeName"] for spec in running_pods(plane, namespace, release)]
                assert (len(nodes), len({zone_of[node] for node in nodes})) == (2, 2), (release, nodes)
    finally:
        for release in releases:
            plane.helm("uninstall", release, namespaced, "--ignore-not-found")
