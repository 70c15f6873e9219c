"""The accounts for which the webhook decides: Helm looks up the KubeVirt object, and `doctor` compares."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chart.test_doctor import run_doctor
from tests.support import crds
from tests.support.controlplane.plane import ControlPlane
from tests.support.helm_chart import container, env_values
from tests.support.helm_release import Release

pytestmark = pytest.mark.controlplane

NAMESPACE = "chart-accounts-virtualization"  # not one of the usual namespaces
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:kubevirt-controller"
KUBEVIRTS = "/apis/kubevirt.io/v1/namespaces/{}/kubevirts"


@pytest.fixture
def kubevirt(plane: ControlPlane) -> Iterator[None]:
    """A KubeVirt object and the pod of its controller."""
    plane.create_namespace(NAMESPACE)
    crds.install(plane, crds.crd("KubeVirt"))
    path = KUBEVIRTS.format(NAMESPACE)
    body = {"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "kubevirt"}}
    plane.request("POST", path, body)
    plane.request(
        "POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": "kubevirt-controller"}}
    )
    spec = {"serviceAccountName": "kubevirt-controller", "containers": [{"name": "c", "image": "x"}]}
    metadata = {"name": "virt-controller-1", "labels": {"kubevirt.io": "virt-controller"}}
    plane.request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", {"metadata": metadata, "spec": spec})
    yield
    plane.request("DELETE", f"{path}/kubevirt")
    plane.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}")


@pytest.mark.usefixtures("kubevirt")
def test_helm_looks_up_the_namespace_of_kubevirt_and_doctor_compares_the_account(plane: ControlPlane) -> None:
    release = Release(plane, "chart-accounts").install()
    try:
        options = ["--webhook-configuration", release.fullname]
        assert env_values(container(release.deployment()))["CO_SCHEDULE_KUBEVIRT_ACCOUNTS"] == ACCOUNT
        (condition, *_) = release.webhooks()[0]["matchConditions"]
        assert f"in ['{ACCOUNT}']" in condition["expression"]
        assert run_doctor(plane.kubeconfig, *options)[1]["accounts"] == [
            ("ok", f"the webhook decides for KubeVirt's controller, {ACCOUNT}")
        ]
    finally:
        release.uninstall()
