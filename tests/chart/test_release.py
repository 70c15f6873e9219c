"""The installed chart releases a pin that can't hold: with its Lease, its rights, and under its admission policy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import kubevirt
from tests.support.controlplane.api import ApiError, Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.helm_release import Release, Replicas
from tests.support.scenario import CO_SCHEDULED, DECISION, Scenario

pytestmark = pytest.mark.controlplane

OWNER = {
    "apiVersion": "kubevirt.io/v1",
    "kind": "VirtualMachineInstance",
    "controller": True,
}


@pytest.fixture
def scenario(plain_scenario: Scenario) -> Scenario:
    return plain_scenario


@pytest.fixture
def replicas(plane: ControlPlane) -> Iterator[Replicas]:
    """Two ready replicas."""
    kubevirt.install_crds(plane)
    release = Release(plane, "chart-release").install("--set=release.after=5")
    try:
        with Replicas(release) as replicas:
            yield replicas
    finally:
        release.uninstall()


def create_vmi(plane: ControlPlane, scenario: Scenario, name: str) -> str:
    """Create the VMI of a VM, without which the garbage collector would delete its pod, and return its uid."""
    path = f"/apis/kubevirt.io/v1/namespaces/{scenario.namespace}/virtualmachineinstances"
    vmi = {"apiVersion": OWNER["apiVersion"], "kind": OWNER["kind"], "metadata": {"name": name}}
    return str(plane.request("POST", path, vmi)["metadata"]["uid"])


def pinned_pod(scenario: Scenario, vm: str, uid: str, node: str) -> Object:
    """Return a pod of a VM as the webhook pins it. The VM isn't opted in, so the webhook is not called for the pod.

    `uid` is that of its VMI.
    """
    pod = scenario.vm_pod(vm, opt_in=None)
    pod["metadata"]["annotations"] |= {CO_SCHEDULED: node, DECISION: f"CoScheduled: {node} serves its claims"}
    pod["metadata"]["labels"]["kubevirt.io/created-by"] = uid
    pod["metadata"]["ownerReferences"] = [OWNER | {"name": vm, "uid": uid}]
    required = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    pod["spec"]["affinity"] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [required]}}
    }
    return pod


def test_the_installed_chart_releases_a_vm_that_starts_again_and_reports_another(
    plane: ControlPlane, scenario: Scenario, replicas: Replicas
) -> None:
    (node,) = scenario.add_nodes(1)
    scenario.change_node(node, {"spec": {"unschedulable": True}})
    pods = {}
    for name, strategy in ("restarting", "Always"), ("manual", "Manual"):
        vm = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": name}}
        plane.request("POST", kubevirt.vm_path(scenario), vm | {"spec": {"runStrategy": strategy, "template": {}}})
        pods[name] = scenario.create(pinned_pod(scenario, name, create_vmi(plane, scenario, name), node))

    def is_gone() -> bool:
        try:
            plane.request("GET", f"{scenario.pods}/{pods['restarting']}")
        except ApiError as error:
            return error.status == 404
        return False

    def warning() -> str:
        query = "fieldSelector=involvedObject.name%3Dmanual,type%3DWarning"
        events = plane.request("GET", f"/api/v1/namespaces/{scenario.namespace}/events?{query}")["items"]
        return next((each["message"] for each in events if each["reason"] == "NodeCordoned"), "")

    plane.wait(is_gone, 40, "the deletion of the pod whose VM starts again")
    assert f"virtctl start manual -n {scenario.namespace}" in plane.wait(warning, 20, "an event about the other VM")
    assert plane.request("GET", f"{scenario.pods}/{pods['manual']}")
    holder = plane.request("GET", replicas.release.lease)["spec"]["holderIdentity"]
    assert holder
    assert replicas.error_lines() == []
