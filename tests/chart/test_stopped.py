"""Each way to stop the webhook leaves new pods alone, and the way back pins them again. Its commands run verbatim."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chart.test_release import create_vmi, pinned_pod
from tests.docs.test_install import Workstation, cluster, commands, guide
from tests.support import kubevirt
from tests.support.controlplane.api import ApiError
from tests.support.controlplane.rights import is_granted
from tests.support.helm_chart import NAME, NAMESPACE
from tests.support.release_pods import ReleasePods
from tests.support.scenario import CO_SCHEDULED, DECISION, Scenario

pytestmark = pytest.mark.controlplane

__all__ = ["cluster"]  # a fixture

# With `Fail`, a missed call refuses the pod instead of going unnoticed.
VALUES = "webhook.failurePolicy=Fail,webhook.timeoutSeconds=10,replicas=1,release.after=5"
INSTALL = f"helm install {NAME} charts/{NAME} -n {NAMESPACE} --create-namespace --set {VALUES} --wait"


def pending_pod(scenario: Scenario, vm: str, node: str) -> str:
    """Create a VM that KubeVirt restarts, and its pod, which is pinned to a cordoned node."""
    body = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": vm}}
    scenario.plane.request(
        "POST", kubevirt.vm_path(scenario), body | {"spec": {"runStrategy": "Always", "template": {}}}
    )
    return scenario.create(pinned_pod(scenario, vm, create_vmi(scenario.plane, scenario, vm), node))


def is_missing(scenario: Scenario, path: str) -> bool:
    try:
        scenario.plane.request("GET", path)
    except ApiError as error:
        return error.status == 404
    return False


def may(scenario: Scenario, verb: str, group: str, resource: str) -> bool:
    user = f"system:serviceaccount:{NAMESPACE}:{NAME}"
    return is_granted(scenario.plane, (user, {"verb": verb, "group": group, "resource": resource}))


def test_each_way_to_stop_leaves_new_pods_alone_and_the_way_back_pins_them_again(
    tmp_path: Path,
    cluster: ReleasePods,
) -> None:
    scenario, plane, release = cluster.scenario, cluster.plane, cluster.release
    observe, delete, go_back = commands(guide("troubleshooting"), "Stop it now")
    _, node = scenario.add_attached_volume()
    (cordoned,) = scenario.add_nodes(1, "cordoned")
    scenario.change_node(cordoned, {"spec": {"unschedulable": True}})
    reader = Workstation(tmp_path, cluster)

    def wait_pinned() -> None:
        plane.wait(release.has_ca_bundle, 30, "the caBundle")
        plane.wait(lambda: scenario.target_node("disk1") == node, 30, "a pin")

    def wait_unmodified() -> None:
        pod = scenario.vm_pod("trial", "disk1")
        plane.wait(lambda: DECISION not in scenario.dry_run(pod)["metadata"]["annotations"], 30, "an unmodified pod")
        assert CO_SCHEDULED not in scenario.dry_run(pod)["metadata"]["annotations"]

    reader.run(INSTALL)
    wait_pinned()

    reader.run(observe)
    wait_unmodified()
    assert {each["failurePolicy"] for each in release.webhooks()} == {"Ignore"}
    plane.wait(lambda: not may(scenario, "delete", "", "pods"), 20, "the loss of the right to delete pods")
    kept = pending_pod(scenario, "kept", cordoned)
    scenario.wait_unschedulable(kept)
    reader.run(go_back)
    wait_pinned()
    plane.wait(lambda: is_missing(scenario, f"{scenario.pods}/{kept}"), 40, "the release after the way back")

    reader.run(delete)
    wait_unmodified()
    released = pending_pod(scenario, "released", cordoned)
    plane.wait(lambda: is_missing(scenario, f"{scenario.pods}/{released}"), 40, "the release without the configuration")
    assert not may(scenario, "create", "admissionregistration.k8s.io", "mutatingwebhookconfigurations")
    assert is_missing(scenario, release.configuration)
    reader.run(go_back)
    wait_pinned()
