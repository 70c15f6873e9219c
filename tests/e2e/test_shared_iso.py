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

NODES, ISO = 6, "drivers"


def start_cold(
    scenario: Scenario, prefix: str, vms: int, opt_in: str | None = "true"
) -> tuple[list[str], Counter[str]]:
    """Start VMs with a cold disk each and the ISO; return their pods, and the number of VMs on each node."""
    claims = [f"{prefix}-{number}" for number in range(vms)]
    for claim in claims:
        scenario.add_volume(claim)
    scenario.wait_bound(*claims)
    pods = [scenario.create(scenario.vm_pod(claim, claim, ISO, opt_in=opt_in)) for claim in claims]
    return pods, Counter(scenario.wait_running(pod) for pod in pods)


@pytest.mark.parametrize("vms", [12, 60])
def test_vms_with_a_cold_disk_and_a_shared_iso_spread_as_without_the_webhook(
    scenario: Scenario, measured: Measured, vms: int
) -> None:
    scenario.add_nodes(NODES)
    iso = scenario.add_volume(ISO)
    scenario.wait_bound(ISO)
    first = scenario.wait_running(scenario.start_vm("first", ISO))
    assert scenario.longhorn.wait_running(iso) == first
    others, without = start_cold(scenario, "other", vms, opt_in=None)
    for pod in others:
        scenario.delete(pod)
    pods, spread = start_cold(scenario, "vm", vms)
    measured(f"{vms} VMs with one ISO on {NODES} nodes: {sorted(spread.values())}, without {sorted(without.values())}")
    # The scheduler chooses at random between equal nodes: without the webhook, the fullest node got 10 to 12 of 60 VMs.
    assert max(spread.values()) <= max(without.values()) + 1
    assert {scenario.annotations(pod)[DECISION].partition(":")[0] for pod in pods} == {"ColdStart"}
    for volume in scenario.volumes[-vms:]:
        scenario.longhorn.wait_running(volume)
    arguments = ["report", "-n", scenario.namespace, "-o", "json", "--kubeconfig", str(scenario.plane.kubeconfig)]
    report = json.loads(CliRunner().invoke(commands, arguments, catch_exceptions=False).stdout)
    assert Counter(vm["state"] for vm in report["vms"]) == {"Together": vms + 1}
