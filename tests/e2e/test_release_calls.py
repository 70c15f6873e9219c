"""The release's calls to a real API server: the Lease is held by one replica, and a pod that has changed is kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.builders import pinned_vm_pod
from tests.support.controlplane.plane import ControlPlane
from tests.support.fake_clock import FakeClock
from tests.support.webhook_process import NAMESPACE, RBAC, create_service_account
from webhook.cluster.client import ClusterClient
from webhook.cluster.election import LEASE_DURATION, Election
from webhook.cluster.releaser import Releaser, StuckPod
from webhook.placement.objects.facts import PendingPin
from webhook.placement.objects.pod import pod_facts

pytestmark = pytest.mark.controlplane

NAME = "release-calls"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"


@pytest.fixture(scope="module")
def client(plane: ControlPlane) -> ClusterClient:
    """A client with the documented rights, and the right to get and update one Lease."""
    token = create_service_account(plane, NAME)
    rule = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [NAME]}
    role = {"metadata": {"name": NAME}, "rules": [rule | {"verbs": ["get", "update"]}]}
    subject = {"kind": "ServiceAccount", "namespace": NAMESPACE, "name": NAME}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": NAME}
    roles = f"{RBAC}/namespaces/{NAMESPACE}"
    plane.request("POST", f"{roles}/roles", role)
    binding = {"metadata": {"name": NAME}, "roleRef": reference, "subjects": [subject]}
    plane.request("POST", f"{roles}/rolebindings", binding)
    return ClusterClient.connect(str(plane.write_kubeconfig(plane.folder / f"{NAME}-kubeconfig", token)))


@pytest.fixture
def lease(plane: ControlPlane) -> Iterator[str]:
    """An empty Lease, as the chart renders it."""
    plane.request("POST", LEASES, {"metadata": {"name": NAME, "labels": {"app": "webhook"}}})
    yield f"{LEASES}/{NAME}"
    plane.request("DELETE", f"{LEASES}/{NAME}")


def test_one_replica_holds_the_lease_and_the_next_one_takes_it_over(
    plane: ControlPlane, client: ClusterClient, lease: str
) -> None:
    clock = FakeClock()
    first, second = (Election(client, (NAMESPACE, NAME), clock) for _ in range(2))
    for _ in range(2):
        first.step()
        second.step()
        assert (first.leads(), second.leads()) == (True, False)
    stored = plane.request("GET", lease)
    assert (stored["spec"]["holderIdentity"], stored["metadata"]["labels"]) == (first.identity, {"app": "webhook"})
    clock.now += LEASE_DURATION
    second.step()
    first.step()
    assert (first.leads(), second.leads()) == (False, True)
    second.resign()
    first.step()
    assert (first.leads(), second.leads()) == (True, False)
    assert plane.request("GET", lease)["spec"]["leaseTransitions"] == 3


def test_a_pod_that_changed_since_it_was_read_is_not_deleted(plane: ControlPlane, client: ClusterClient) -> None:
    namespace = plane.create_namespace("release-calls")
    path = f"/api/v1/namespaces/{namespace}/pods"
    pod: dict[str, Any] = pinned_vm_pod("pinned", schedulerName="nobody")
    pod["spec"].pop("volumes")
    for field in ("uid", "creationTimestamp", "namespace", "ownerReferences"):
        pod["metadata"].pop(field, None)
    created = plane.request("POST", path, pod)
    cached = pod_facts(created, namespace, "pinned", "")
    releaser = make_releaser(client)
    read = releaser._read(cached)
    assert read
    assert read["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]

    binding = {"metadata": {"name": "pinned"}, "target": {"apiVersion": "v1", "kind": "Node", "name": "nowhere"}}
    plane.request("POST", f"{path}/pinned/binding", binding | {"apiVersion": "v1", "kind": "Binding"})
    obstacle: Any = None
    releaser._release(StuckPod(cached, PendingPin("node-a", "vm1", "uid-of-vm1"), 0.0), read, obstacle)
    assert not releaser.released
    assert plane.request("GET", f"{path}/pinned")["spec"]["nodeName"] == "nowhere"


def make_releaser(client: ClusterClient) -> Releaser:
    no_live: Any = None
    no_settings: Any = None
    return Releaser(client, no_live, no_settings, lambda: True, lambda *_: None)
