"""Pods that the webhook must not place: the API server stores them byte for byte as without the webhook."""

from __future__ import annotations

import json

import pytest

from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.scenario import DECISION, Scenario
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


@pytest.mark.parametrize(
    ("review", "opt_in", "annotations", "reason"),
    [
        ("migration-target", "true", {}, "MigrationTarget"),
        # Newer versions of KubeVirt set the annotation; the recorded pod is older.
        ("provisioning", "true", {"kubevirt.io/ephemeral-provisioning": "true"}, "EphemeralProvisioning"),
        ("vm-start", None, {}, "NotOptedIn"),
    ],
    ids=["migration target", "provisioning pod", "not opted in"],
)
def test_the_webhook_leaves_the_pod_unchanged(
    scenario: Scenario,
    plain_scenario: Scenario,
    plane: ControlPlane,
    webhook: Webhook,
    *,
    review: str,
    opt_in: str | None,
    annotations: Object,
    reason: str,
) -> None:
    scenario.add_nodes(3)
    scenario.add_attached_volume()
    vm = f"vm-{scenario.namespace}"
    pod = scenario.vm_pod(vm, "disk1", review=review, opt_in=opt_in)
    pod["metadata"]["annotations"] |= annotations
    plane.wait(lambda: scenario.target_node("disk1"), 20, "a decision for an opted-in VM")
    assert as_stored(scenario.dry_run(pod)) == as_stored(plain_scenario.dry_run(pod))
    assert reason_logged(webhook, plane, vm) == reason
    assert scenario.wait_running(scenario.create(pod))


def test_a_tenants_copy_of_a_vms_pod_is_unchanged_beside_the_pinned_vm(
    scenario: Scenario, plane: ControlPlane, webhook: Webhook
) -> None:
    scenario.add_nodes(3)
    _, node = scenario.add_attached_volume()
    plane.wait(lambda: scenario.target_node("disk1"), 20, "a decision for an opted-in VM")
    vm = f"copy-{scenario.namespace}"
    copy = plane.request("POST", scenario.pods, scenario.vm_pod(vm, "disk1"), user="alice")
    assert DECISION not in copy["metadata"]["annotations"]
    assert node not in json.dumps(copy["spec"]["affinity"])
    assert reason_logged(webhook, plane, vm) == "NotFromKubeVirt"
    assert scenario.get(scenario.start_vm("vm1", "disk1"))["spec"]["nodeName"] == node
