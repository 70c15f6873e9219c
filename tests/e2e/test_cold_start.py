"""Cold start: no share-manager runs, so the VM goes to any node, and the share-manager pod follows the VM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.controlplane.plane import ControlPlane
from tests.support.longhorn import Longhorn
from tests.support.measured import Measured
from tests.support.scenario import CO_SCHEDULED, Scenario
from tests.support.webhook_process import Webhook

pytestmark = pytest.mark.controlplane

VMS = 10


def start_vms_on_unused_volumes(scenario: Scenario) -> tuple[list[str], list[str]]:
    """Start VMs on unattached volumes; return the nodes of the VMs and of their share-managers."""
    scenario.add_nodes(20)
    claims = [f"disk{number}" for number in range(VMS)]
    # Without a StorageClass that restricts nodes, only the webhook steers the share-managers.
    volumes = [scenario.add_volume(claim, isolated=False) for claim in claims]
    scenario.wait_bound(*claims)
    pods = [scenario.create(scenario.vm_pod(f"vm-{claim}", claim)) for claim in claims]
    return [scenario.wait_running(pod) for pod in pods], [scenario.longhorn.wait_running(volume) for volume in volumes]


def test_share_managers_follow_their_vms_after_a_cold_start(scenario: Scenario) -> None:
    vms, share_managers = start_vms_on_unused_volumes(scenario)
    assert share_managers == vms
    pod = scenario.longhorn.pod(scenario.volumes[0]) or {}
    assert pod["metadata"]["annotations"][CO_SCHEDULED] == vms[0]
    assert "requiredDuringSchedulingIgnoredDuringExecution" not in pod["spec"]["affinity"]["nodeAffinity"]


@pytest.fixture
def scenario_without_steering(plane: ControlPlane, kubeconfig: Path) -> Iterator[Scenario]:
    """A scenario whose webhook doesn't steer. No other webhook handles the share-managers of its Longhorn."""
    longhorn = Longhorn(plane, "longhorn-unsteered")
    longhorn.install()
    longhorn.start()
    settings = {"steering": "false", "longhorn_namespace": longhorn.namespace}
    with Webhook(plane, "unsteered", kubeconfig, settings) as webhook:
        scenario = Scenario(plane, longhorn, webhook.register())
        yield scenario
        scenario.close()
    longhorn.stop()


def test_without_steering_share_manager_pods_are_not_patched(
    scenario_without_steering: Scenario, measured: Measured
) -> None:
    vms, share_managers = start_vms_on_unused_volumes(scenario_without_steering)
    colocated = sum(vm == share_manager for vm, share_manager in zip(vms, share_managers, strict=True))
    measured(f"without steering {colocated} of {VMS} VMs share a node with their share-manager, of 20 nodes")
    longhorn, volumes = scenario_without_steering.longhorn, scenario_without_steering.volumes
    pods = [longhorn.pod(volume) or {} for volume in volumes]
    assert not any("affinity" in pod["spec"] for pod in pods)
