"""Each way to stop the webhook leaves new pods alone, and the way back pins them again. Its commands run verbatim."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.test_install import Workstation, cluster, commands, guide
from tests.support.builders import pin
from tests.support.controlplane.rights import is_granted
from tests.support.helm_chart import NAME, NAMESPACE
from tests.support.release_pods import ReleasePods
from tests.support.scenario import CO_SCHEDULED, DECISION, Scenario
from tests.support.virt_controller import VirtController

pytestmark = pytest.mark.controlplane

__all__ = ["cluster"]  # a fixture

# With `Fail`, a missed call refuses the pod instead of going unnoticed.
VALUES = "webhook.failurePolicy=Fail,webhook.timeoutSeconds=10,replicas=1,release.after=5,shutdown.preStopSeconds=1"
INSTALL = f"helm install {NAME} charts/{NAME} -n {NAMESPACE} --create-namespace --set {VALUES} --wait"


def pending_pod(scenario: Scenario, vm: str, node: str, strategy: str = "Always") -> str:
    """Create a VM, which KubeVirt restarts by default, and its pod, which is pinned to a cordoned node."""
    # Not opted in, so the webhook is not called for the pod. The controller isn't started, so nothing restarts the VM.
    pod = VirtController(scenario).prepare(scenario.vm_pod(vm, opt_in=None), strategy)
    return scenario.create(pin(pod, node))


def shown(reader: Workstation, command: str) -> str:
    """Return the line that a command prints about the VM `manual` of this test, without the namespace."""
    namespace = reader.cluster.scenario.namespace
    lines = (line.partition(namespace)[2] for line in reader.run(command).splitlines() if line.startswith(namespace))
    return next((line for line in lines if "manual" in line), "")


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

    reader.run(delete)
    wait_unmodified()
    released = pending_pod(scenario, "released", cordoned)
    manual = pending_pod(scenario, "manual", cordoned, "Manual")
    plane.wait(lambda: plane.find(f"{scenario.pods}/{released}") is None, 40, "the release without the configuration")
    # The commands that list the pins that can't hold, with the scheduler's message, and the Events of VMIs.
    pods, events = commands(guide("troubleshooting"), "Pins that can't hold")
    text = plane.wait(lambda: shown(reader, events), 40, "an Event about the VM that doesn't start by itself")
    assert "NodeCordoned" in text
    assert f"virtctl start manual -n {scenario.namespace}" in text
    vm, pinned_to, message = shown(reader, pods).split(maxsplit=2)
    assert (vm, pinned_to) == ("manual", cordoned)
    assert "nodes are available" in message
    assert plane.find(f"{scenario.pods}/{manual}")
    assert plane.request("GET", release.lease)["spec"]["holderIdentity"]
    assert not may(scenario, "create", "admissionregistration.k8s.io", "mutatingwebhookconfigurations")
    assert plane.find(release.configuration) is None

    reader.run(observe)
    wait_unmodified()
    assert {each["failurePolicy"] for each in release.webhooks()} == {"Ignore"}
    plane.wait(lambda: not may(scenario, "delete", "", "pods"), 20, "the loss of the right to delete pods")
    kept = pending_pod(scenario, "kept", cordoned)
    scenario.wait_unschedulable(kept)
    reader.run(go_back)
    wait_pinned()
    plane.wait(lambda: plane.find(f"{scenario.pods}/{kept}") is None, 40, "the release after the way back")
