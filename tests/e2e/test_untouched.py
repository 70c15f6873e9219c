"""Pods that the webhook must not place: the API server stores them byte for byte as without the webhook."""

from __future__ import annotations

import json

import pytest

from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.scenario import Scenario
from tests.support.webhook_process import Webhook

pytestmark = pytest.mark.controlplane


def as_stored(pod: Object) -> str:
    """Serialize a stored pod without the fields that differ between two creations."""
    for key in "name", "namespace", "uid", "creationTimestamp", "resourceVersion", "managedFields":
        pod["metadata"].pop(key, None)
    return json.dumps(pod)


def reason_logged(webhook: Webhook, plane: ControlPlane, vm: str) -> str:
    """Wait for the webhook's log line about a VM, and return the logged reason."""

    def reason() -> str:
        return next((str(line["reason"]) for line in webhook.log() if line.get("vm") == vm), "")

    return plane.wait(reason, 20, f"a line in the log about {vm}")


# By the expected reason: a recorded review, the opt-in, and more annotations.
PODS: dict[str, tuple[str, str | None, Object]] = {
    "MigrationTarget": ("migration-target", "true", {}),
    # Newer versions of KubeVirt set the annotation; the recorded pod is older.
    "EphemeralProvisioning": ("provisioning", "true", {"kubevirt.io/ephemeral-provisioning": "true"}),
    "NotOptedIn": ("vm-start", None, {}),
}


def test_the_webhook_leaves_the_pod_unchanged(
    scenario: Scenario, plain_scenario: Scenario, plane: ControlPlane, webhook: Webhook
) -> None:
    scenario.add_nodes(3)
    scenario.add_attached_volume()
    for reason, (review, opt_in, more) in PODS.items():
        vm = f"vm-{scenario.namespace}-{reason.lower()}"
        pod = scenario.vm_pod(vm, "disk1", review=review, opt_in=opt_in)
        pod["metadata"]["annotations"] |= more
        assert as_stored(scenario.dry_run(pod)) == as_stored(plain_scenario.dry_run(pod))
        assert reason_logged(webhook, plane, vm) == reason
        assert scenario.wait_running(scenario.create(pod))
