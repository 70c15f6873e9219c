"""VMs that share an ISO start where the scheduler puts them, and their share-managers follow."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from click.testing import CliRunner

from tests.support.measured import Measured
from tests.support.scenario import DECISION, Scenario
from webhook.cli import commands

pytestmark = pytest.mark.controlplane

NODES, VMS, ISO = 6, 12, "drivers"


def test_vms_with_a_cold_disk_and_a_shared_iso_do_not_all_start_beside_the_iso(
    scenario: Scenario, measured: Measured
) -> None:
    scenario.add_nodes(NODES)
    iso, claims = scenario.add_volume(ISO), [f"disk-{number}" for number in range(VMS)]
    for claim in claims:
        scenario.add_volume(claim)
    scenario.wait_bound(ISO, *claims)
    first = scenario.wait_running(scenario.start_vm("first", ISO))
    assert scenario.longhorn.wait_running(iso) == first
    pods = [scenario.create(scenario.vm_pod(claim, claim, ISO)) for claim in claims]
    spread = Counter(scenario.wait_running(pod) for pod in pods)
    measured(f"{VMS} VMs with one ISO on {NODES} nodes: {sorted(spread.values())}")
    # The scheduler chooses at random between equal nodes. With a preference, all VMs ran on one node.
    assert max(spread.values()) <= VMS / 2
    assert {scenario.annotations(pod)[DECISION].partition(":")[0] for pod in pods} == {"ColdStart"}
    for volume in scenario.volumes:
        scenario.longhorn.wait_running(volume)
    arguments = ["report", "-n", scenario.namespace, "-o", "json", "--kubeconfig", str(scenario.plane.kubeconfig)]
    report = json.loads(CliRunner().invoke(commands, arguments, catch_exceptions=False).stdout)
    assert Counter(vm["state"] for vm in report["vms"]) == {"Together": VMS + 1}
