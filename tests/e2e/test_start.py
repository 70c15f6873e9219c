"""A VM starts beside its running share-manager. At a cold start, the share-manager follows the VM."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support.command_line import run_cli
from tests.support.controlplane.plane import ControlPlane
from tests.support.measured import Measured
from tests.support.scenario import CO_SCHEDULED, DECISION, Scenario, reason_of

pytestmark = pytest.mark.controlplane

NODES, VMS, ISO = 6, 12, "drivers"
PODS = 6  # that are opted in and run no VM
LONGEST_NAME = "disk." + "a" * 248  # 253 characters


def test_vms_with_a_cold_disk_and_a_shared_iso_start_on_any_node_and_their_share_managers_follow(
    scenario: Scenario, measured: Measured
) -> None:
    scenario.add_nodes(NODES)
    iso, claims = scenario.add_volume(ISO), [f"disk-{number}" for number in range(VMS)]
    data = [f"data-{number}" for number in range(PODS)]
    # Without a StorageClass that restricts nodes, only the webhook steers the share-managers.
    volumes = {claim: scenario.add_volume(claim, isolated=False) for claim in [*claims, *data]}
    scenario.wait_bound(ISO, *volumes)
    first = scenario.wait_running(scenario.start_vm("first", ISO))
    assert scenario.longhorn.wait_running(iso) == first
    pods = [scenario.create(scenario.vm_pod(claim, claim, ISO)) for claim in claims]
    nodes = [scenario.wait_running(pod) for pod in pods]
    spread = Counter(nodes)
    measured(f"{VMS} VMs with one ISO on {NODES} nodes: {sorted(spread.values())}")
    # The scheduler chooses at random between equal nodes. With a preference, all VMs ran on one node.
    assert max(spread.values()) <= VMS / 2
    assert {reason_of(scenario.get(pod)) for pod in pods} == {"ColdStart"}
    assert [scenario.longhorn.wait_running(volumes[claim]) for claim in claims] == nodes
    server = scenario.longhorn.pod(volumes[claims[0]]) or {}
    assert server["metadata"]["annotations"][CO_SCHEDULED] == nodes[0]
    assert "requiredDuringSchedulingIgnoredDuringExecution" not in server["spec"]["affinity"]["nodeAffinity"]
    options = "-o", "json", "--kubeconfig", scenario.plane.kubeconfig
    report = json.loads(run_cli("report", "-n", scenario.namespace, *options).stdout)
    assert Counter(vm["state"] for vm in report["vms"]) == {"Together": VMS + 1}

    # The webhook isn't called for pods that run no VM, and changes none of them.
    pods = [scenario.create_consumer(claim, opt_in=True) for claim in data]
    nodes = [scenario.wait_running(pod) for pod in pods]
    assert [scenario.longhorn.wait_running(volumes[claim]) for claim in data] == nodes
    assert set(scenario.annotations(pods[0])) == {"kubevirt-scheduler/co-schedule"}
    assert "affinity" not in scenario.get(pods[0])["spec"]
    server = scenario.longhorn.pod(volumes[data[0]]) or {}
    assert server["metadata"]["annotations"][DECISION].endswith("which runs 1 pod of this volume")


def test_a_cold_start_goes_where_the_data_is(scenario: Scenario) -> None:
    """With `best-effort`, VM, server and a replica are together, and Longhorn copies no volume."""
    nodes = scenario.add_nodes(6)
    claims = {f"disk-{number}": node for number, node in enumerate(nodes[:3])}
    volumes = {claim: scenario.add_volume(claim, isolated=False) for claim in claims}
    scenario.wait_bound(*volumes)
    for claim, node in claims.items():
        scenario.longhorn.add_data(volumes[claim], "best-effort", [node])
    scenario.wait_cached("replicas", len(claims))
    pods = [scenario.create(scenario.vm_pod(claim, claim)) for claim in claims]
    assert [scenario.wait_running(pod) for pod in pods] == list(claims.values())
    assert [scenario.longhorn.wait_running(volume) for volume in volumes.values()] == list(claims.values())
    decision = scenario.annotations(pods[0])[DECISION]
    assert decision.startswith(f"ColdStart: the VM prefers {nodes[0]}, which has a replica of claim disk-0, and ")


@pytest.fixture
def my_scheduler(plane: ControlPlane) -> Iterator[str]:
    """The name of a second kube-scheduler, set up as in the guides of Kubernetes and KubeVirt."""
    yield plane.start_scheduler("my-scheduler", leader_elect=True).name
    plane.processes.pop("my-scheduler").kill()


def test_the_default_and_a_second_scheduler_bind_vms_to_the_nodes_of_their_share_managers(
    scenario: Scenario, plane: ControlPlane, my_scheduler: str
) -> None:
    """Also with the longest names, names with dots, and nodes whose label `hostname` names another node."""
    names = [scenario.add_node(f"{scenario.namespace}.rack-{number}.example.com") for number in range(6)]
    scenario.wait_ready(names)
    for name, hostname in zip(names, [*names[1:], names[0]], strict=True):
        scenario.change_node(name, {"metadata": {"labels": {"kubernetes.io/hostname": hostname}}})
    schedulers = {"disk1": "default-scheduler", LONGEST_NAME: my_scheduler}
    # A label holds the volume's name, so the name has at most 63 characters.
    longest = f"vol-{scenario.namespace}-".ljust(63, "x")
    volumes = {"disk1": scenario.add_volume(), LONGEST_NAME: scenario.add_volume(LONGEST_NAME, longest)}
    scenario.wait_bound(*volumes)
    for claim in volumes:
        scenario.create_consumer(claim)
    nodes = {claim: scenario.wait_share_manager(volume, claim) for claim, volume in volumes.items()}
    for claim, scheduler in schedulers.items():
        pod = scenario.create(scenario.vm_pod("vm", claim, schedulerName=scheduler))
        assert scenario.wait_running(pod) == nodes[claim]
        annotations = scenario.annotations(pod)
        assert annotations[CO_SCHEDULED] == nodes[claim]
        assert annotations[DECISION] == f"CoScheduled: pinned to {nodes[claim]}, which serves claim {claim}"
        assert scenario.scheduler_of(pod) == scheduler
    lease = plane.request("GET", f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{my_scheduler}")
    assert lease["spec"]["holderIdentity"]
