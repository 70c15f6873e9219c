"""Cold start: no share-manager runs, so the VM goes to any node, and the share-manager pod follows the VM."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from click.testing import CliRunner

from tests.support.measured import Measured
from tests.support.scenario import CO_SCHEDULED, DECISION, Scenario
from webhook.cli import commands

pytestmark = pytest.mark.controlplane

NODES, VMS, ISO = 6, 12, "drivers"
PODS = 30  # that run no VM; the half of them is opted in


def test_share_managers_follow_opted_in_pods_that_run_no_vm(scenario: Scenario, measured: Measured) -> None:
    """The webhook isn't called for these pods and changes none of them."""
    scenario.add_nodes(10, cpu="64", pods="500")
    claims = {f"disk{number}": number % 2 == 0 for number in range(PODS)}
    volumes = {claim: scenario.add_volume(claim, isolated=False) for claim in claims}
    scenario.wait_bound(*claims)
    pods = {claim: scenario.create_consumer(claim, opt_in=opt_in) for claim, opt_in in claims.items()}
    together = Counter[bool]()
    for claim, opt_in in claims.items():
        node = scenario.wait_running(pods[claim], 60)
        together[opt_in] += scenario.longhorn.wait_running(volumes[claim]) == node
    measured(f"of {PODS // 2} pods each, beside their share-manager: {together[True]} opted in, {together[False]} not")
    assert together[True] == PODS / 2  # the nodes are empty
    assert together[False] < PODS / 4  # 1 of 10 by chance
    assert set(scenario.annotations(pods["disk0"])) == {"kubevirt-scheduler/co-schedule"}
    assert "affinity" not in scenario.get(pods["disk0"])["spec"]
    server = scenario.longhorn.pod(volumes["disk0"]) or {}
    assert server["metadata"]["annotations"][DECISION].endswith("which runs 1 pod of this volume")


def test_a_share_manager_that_dies_on_a_cordoned_node_pins_no_vm_to_its_next_owner(scenario: Scenario) -> None:
    scenario.add_nodes(2)
    volume, node = scenario.add_attached_volume()
    request, manager = scenario.plane.request, f"{scenario.longhorn.managers}/{volume}"
    server = f"{scenario.longhorn.pods}/share-manager-{volume}"
    scenario.change_node(node, {"spec": {"unschedulable": True}})
    scenario.plane.wait(lambda: request("GET", manager)["status"]["ownerID"] != node, 20, "another owner")
    with scenario.longhorn.paused():  # from then to the end of the pod, the state is `running`
        request("PATCH", server, {"metadata": {"finalizers": ["test/held"]}})
        scenario.plane.wait(
            lambda: scenario.decision("disk1").startswith("NodeCordoned"), 20, "the cordon in the caches"
        )
        request("DELETE", server)
        scenario.plane.wait(lambda: not scenario.target_node("disk1"), 20, "no node for the VM")
        assert scenario.decision("disk1").startswith(
            "NoShareManager: no node serves claim disk1 (ShareManagerStarting)"
        )
        assert request("GET", manager)["status"]["state"] == "running"
        request("PATCH", server, {"metadata": {"finalizers": None}})


def test_vms_with_a_cold_disk_and_a_shared_iso_start_on_any_node_and_their_share_managers_follow(
    scenario: Scenario, measured: Measured
) -> None:
    scenario.add_nodes(NODES)
    iso, claims = scenario.add_volume(ISO), [f"disk-{number}" for number in range(VMS)]
    for claim in claims:
        # Without a StorageClass that restricts nodes, only the webhook steers the share-managers.
        scenario.add_volume(claim, isolated=False)
    scenario.wait_bound(ISO, *claims)
    first = scenario.wait_running(scenario.start_vm("first", ISO))
    assert scenario.longhorn.wait_running(iso) == first
    pods = [scenario.create(scenario.vm_pod(claim, claim, ISO)) for claim in claims]
    nodes = [scenario.wait_running(pod) for pod in pods]
    spread = Counter(nodes)
    measured(f"{VMS} VMs with one ISO on {NODES} nodes: {sorted(spread.values())}")
    # The scheduler chooses at random between equal nodes. With a preference, all VMs ran on one node.
    assert max(spread.values()) <= VMS / 2
    assert {scenario.annotations(pod)[DECISION].partition(":")[0] for pod in pods} == {"ColdStart"}
    assert [scenario.longhorn.wait_running(volume) for volume in scenario.volumes[1:]] == nodes
    server = scenario.longhorn.pod(scenario.volumes[1]) or {}
    assert server["metadata"]["annotations"][CO_SCHEDULED] == nodes[0]
    assert "requiredDuringSchedulingIgnoredDuringExecution" not in server["spec"]["affinity"]["nodeAffinity"]
    arguments = ["report", "-n", scenario.namespace, "-o", "json", "--kubeconfig", str(scenario.plane.kubeconfig)]
    report = json.loads(CliRunner().invoke(commands, arguments, catch_exceptions=False).stdout)
    assert Counter(vm["state"] for vm in report["vms"]) == {"Together": VMS + 1}
