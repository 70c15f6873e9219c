"""What is not ours to place reaches the cluster byte for byte as it was sent."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.longhorn import Longhorn
from tests.support.scenario import World
from tests.support.webhook_process import Webhook

pytestmark = pytest.mark.controlplane


@pytest.fixture
def unserved(plane: ControlPlane, longhorn: Longhorn) -> Iterator[World]:
    """A namespace that no webhook sees."""
    world = World(plane, longhorn, None)
    yield world
    world.close()


def as_stored(pod: Object) -> str:
    """A pod as the API server gave it, but for what differs from one creation to the next."""
    for key in "name", "namespace", "uid", "creationTimestamp", "resourceVersion", "managedFields":
        pod["metadata"].pop(key, None)
    return json.dumps(pod)


def reason_logged(webhook: Webhook, plane: ControlPlane, vm: str) -> str:
    """Why the webhook left the pod of a VM alone: it was asked."""

    def reason() -> str:
        return next((str(line["reason"]) for line in webhook.log() if line.get("vm") == vm), "")

    return plane.wait(reason, 20, f"a line in the log about {vm}")


@pytest.mark.parametrize(
    ("review", "opt_in", "annotations", "reason"),
    [
        ("migration-target", "true", {}, "MigrationTarget"),
        # KubeVirt's newer versions set the annotation; the recorded pod is older.
        ("provisioning", "true", {"kubevirt.io/ephemeral-provisioning": "true"}, "EphemeralProvisioning"),
        ("vm-start", None, {}, "NotOptedIn"),
    ],
    ids=["migration target", "provisioning pod", "not opted in"],
)
def test_byte_for_byte_as_sent(
    world: World,
    unserved: World,
    plane: ControlPlane,
    webhook: Webhook,
    *,
    review: str,
    opt_in: str | None,
    annotations: Object,
    reason: str,
) -> None:
    world.add_nodes(3)
    world.warm_volume()
    vm = f"vm-{world.namespace}"
    pod = world.vm_pod(vm, "disk1", review=review, opt_in=opt_in)
    pod["metadata"]["annotations"] |= annotations
    plane.wait(lambda: world.node_meant("disk1"), 20, "a decision for any other VM")
    assert as_stored(world.tried(pod)) == as_stored(unserved.tried(pod))
    assert reason_logged(webhook, plane, vm) == reason
    assert world.running(world.create(pod))


def test_a_migration_target_goes_where_the_scheduler_puts_it_and_not_to_the_share_manager(world: World) -> None:
    world.add_nodes(3)
    _, node = world.warm_volume()
    source = world.get(world.start_vm("vm1", "disk1"))
    assert source["spec"]["nodeName"] == node
    target = world.vm_pod("vm1", "disk1", review="migration-target")
    uid = source["metadata"]["labels"]["kubevirt.io/created-by"]
    target["metadata"]["labels"]["kubevirt.io/created-by"] = uid
    (term,) = target["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    term["labelSelector"]["matchLabels"]["kubevirt.io/created-by"] = uid
    assert world.running(world.create(target)) != node
