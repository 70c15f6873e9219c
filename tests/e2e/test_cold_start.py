"""Cold start: no share-manager runs, so the VM goes to any node, and the share-manager pod follows the VM."""

from __future__ import annotations

import pytest

from tests.support.scenario import CO_SCHEDULED, Scenario

pytestmark = pytest.mark.controlplane


def test_share_managers_follow_their_vms_after_a_cold_start(scenario: Scenario) -> None:
    scenario.add_nodes(12)
    claims = [f"disk{number}" for number in range(6)]
    # Without a StorageClass that restricts nodes, only the webhook steers the share-managers.
    volumes = [scenario.add_volume(claim, isolated=False) for claim in claims]
    scenario.wait_bound(*claims)
    pods = [scenario.create(scenario.vm_pod(f"vm-{claim}", claim)) for claim in claims]
    vms = [scenario.wait_running(pod) for pod in pods]
    assert [scenario.longhorn.wait_running(volume) for volume in volumes] == vms
    pod = scenario.longhorn.pod(volumes[0]) or {}
    assert pod["metadata"]["annotations"][CO_SCHEDULED] == vms[0]
    assert "requiredDuringSchedulingIgnoredDuringExecution" not in pod["spec"]["affinity"]["nodeAffinity"]
