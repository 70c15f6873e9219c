"""The chart's policy: only the controllers of KubeVirt and Longhorn may write the webhook's annotations on pods.

The chart is installed by a real Helm. No replica runs. Users have all rights, so only the policy can refuse a request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.accounts import KUBEVIRT, LONGHORN
from tests.support.controlplane import build
from tests.support.controlplane.plane import ControlPlane
from tests.support.helm_chart import Object
from tests.support.helm_release import Release
from webhook.placement.affinity import CO_SCHEDULED_NODE, DECISION

pytestmark = pytest.mark.controlplane

NAMESPACE = "chart-annotations-vms"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
TENANT = "alice"
OWN_CONTROLLER = f"system:serviceaccount:{NAMESPACE}:virt-controller-of-a-fork"
PINNED: Object = {CO_SCHEDULED_NODE: "node-a", DECISION: "CoScheduled: node-a serves the claim."}
MESSAGE = "Only the controllers of KubeVirt and Longhorn may create pods with them."


@pytest.fixture(scope="module")
def release(plane: ControlPlane) -> Iterator[Release]:
    plane.create_namespace(NAMESPACE)
    release = Release(plane, "chart-annotations").install(f"--set=settings.kubevirtAccounts={{{OWN_CONTROLLER}}}")
    # The API server learns of the policy through a watch.
    plane.wait(lambda: refusal(plane, "POST", PODS, pod("probe", PINNED)), 20, "a refusal by the policy")
    yield release
    release.uninstall()
    plane.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}")


def pod(name: str, annotations: Object | None) -> Object:
    metadata = {"name": name, "labels": {"kubevirt.io": "virt-launcher"}, "annotations": annotations}
    return {"metadata": metadata, "spec": {"schedulerName": "none", "containers": [{"name": "compute", "image": "x"}]}}


def create(plane: ControlPlane, name: str, annotations: Object | None, user: str = KUBEVIRT) -> str:
    """Create a pod and return its path."""
    plane.request("POST", PODS, pod(name, annotations), user=user)
    return f"{PODS}/{name}"


def refusal(plane: ControlPlane, method: str, path: str, body: object, user: str = TENANT) -> str:
    """Return the API server's message if it refuses a dry run, otherwise an empty string."""
    return plane.error(method, f"{path}?dryRun=All", body, user=user)


def binding(name: str, annotations: Any) -> Object:
    return {"metadata": {"name": name, "annotations": annotations}, "target": {"kind": "Node", "name": "node-a"}}


@pytest.mark.usefixtures("release")
def test_a_tenant_may_not_create_change_or_remove_the_annotations_by_any_resource(plane: ControlPlane) -> None:
    pinned, plain = create(plane, "pinned", PINNED), create(plane, "plain", None)
    for key in PINNED:
        for user in TENANT, "", "system:serviceaccount:kube-system:replicaset-controller":
            assert MESSAGE in refusal(plane, "POST", PODS, pod("created", {key: "node-b"}), user)
        for path in pinned, f"{pinned}/status":
            for value in "node-b", "", None:
                assert MESSAGE in refusal(plane, "PATCH", path, {"metadata": {"annotations": {key: value}}})
            assert MESSAGE in refusal(plane, "PATCH", path, {"metadata": {"annotations": None}})
        for path in plain, f"{plain}/status":
            assert MESSAGE in refusal(plane, "PATCH", path, {"metadata": {"annotations": {key: "node-b"}}})
        # The API server copies a Binding's annotations to the pod.
        assert MESSAGE in refusal(plane, "POST", f"{plain}/binding", binding("plain", {key: "node-b"}))
        collection = f"/api/v1/namespaces/{NAMESPACE}/bindings"
        assert MESSAGE in refusal(plane, "POST", collection, binding("plain", {key: "node-b"}))


@pytest.mark.usefixtures("release")
# Kubernetes 1.30 has no subresource `resize`.
@pytest.mark.parametrize(
    "subresource", ["ephemeralcontainers"] if build.is_oldest() else ["resize", "ephemeralcontainers"]
)
def test_other_subresources_keep_a_pods_annotations(plane: ControlPlane, subresource: str) -> None:
    path = create(plane, f"sub-{subresource}", PINNED)
    changed = {"metadata": {"annotations": dict.fromkeys(PINNED, "node-b")}}
    plane.request("PATCH", f"{path}/{subresource}", changed, user=TENANT)
    assert plane.request("GET", path)["metadata"]["annotations"] == PINNED


@pytest.mark.usefixtures("release")
def test_the_controllers_of_kubevirt_and_longhorn_may_write_the_annotations_in_any_namespace(
    plane: ControlPlane,
) -> None:
    elsewhere = "system:serviceaccount:virtualization:kubevirt-controller"
    for number, user in enumerate((KUBEVIRT, LONGHORN, elsewhere, OWN_CONTROLLER)):
        path = create(plane, f"controller-{number}", PINNED, user)
        for target in path, f"{path}/status":
            plane.request("PATCH", target, {"metadata": {"annotations": {DECISION: "NodeFull"}}}, user=user)
    for user in "kubevirt-controller", "system:serviceaccount:a:b:kubevirt-controller", f"{KUBEVIRT}-2":
        assert MESSAGE in refusal(plane, "POST", PODS, pod("impostor", PINNED), user)


@pytest.mark.usefixtures("release")
def test_requests_that_keep_the_annotations_pass(plane: ControlPlane) -> None:
    path = create(plane, "kept", PINNED)
    own = {"metadata": {"labels": {"team": "a"}, "annotations": {"kubevirt-scheduler/co-schedule": "true"}}}
    assert not refusal(plane, "POST", PODS, pod("own", own["metadata"]["annotations"]))
    assert not refusal(plane, "POST", PODS, pod("none", None))
    plane.request("PATCH", path, own, user=TENANT)
    # A CNI plugin writes its annotation, and the kubelet the status. A scheduler binds the pod.
    plane.request("PATCH", f"{path}/status", {"metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "[]"}}})
    conditions = [{"type": "Ready", "status": "False"}]
    read = plane.request("GET", path)
    replaced = read | {"status": read["status"] | {"conditions": conditions}}
    plane.request("PUT", f"{path}/status", replaced, user="system:node:node-a")
    plane.request("POST", f"{path}/binding", binding("kept", {"scheduler/score": "1"}), user="system:kube-scheduler")
    bound = plane.request("GET", path)
    assert bound["spec"]["nodeName"] == "node-a"
    assert PINNED.items() <= bound["metadata"]["annotations"].items()
