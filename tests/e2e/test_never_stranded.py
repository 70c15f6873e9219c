"""A VM is pinned only where it can run. What other webhooks, the scheduler or Longhorn do later must not strand it."""

from __future__ import annotations

import base64
import json
from contextlib import ExitStack

import pytest

from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.json_server import JsonServer
from tests.support.scenario import CO_SCHEDULED, DECISION, HOSTNAME, Scenario
from tests.support.webhook_process import NAMESPACE, REGISTRATIONS

pytestmark = pytest.mark.controlplane

ZONE = "test/zone"
SIDECAR = {"name": "sidecar", "image": "none", "resources": {"requests": {"cpu": "10"}}}


class SecondWebhook:
    """Another webhook, such as Kyverno, that the API server calls after ours: it applies a JSON patch to pods."""

    def __init__(self, scenario: Scenario, patch: list[Object]) -> None:
        self._scenario, self._plane = scenario, scenario.plane
        # The API server calls webhooks in the order of their names.
        self._name = f"zz-{scenario.namespace}"
        self._called = False
        self._patch = base64.b64encode(json.dumps(patch).encode()).decode()
        self._server = JsonServer(self._answer, f"{self._name}.{NAMESPACE}.svc")

    def __enter__(self) -> SecondWebhook:
        self._server.__enter__()
        service = {"metadata": {"name": self._name}, "spec": {"ports": [{"port": 443}]}}
        self._plane.request("POST", f"/api/v1/namespaces/{NAMESPACE}/services", service)
        self._plane.route_service(NAMESPACE, self._name, self._server.address)
        self._plane.request("POST", REGISTRATIONS, self._configuration())
        self._plane.wait(self._is_called, 20, f"a call of {self._name}")
        return self

    def __exit__(self, *_: object) -> None:
        self._plane.request("DELETE", f"{REGISTRATIONS}/{self._name}")
        self._plane.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}/services/{self._name}")
        self._server.__exit__()

    def _is_called(self) -> bool:
        self._scenario.decision("no-such-claim")
        return self._called

    def _answer(self, review: Object) -> Object:
        self._called = True
        answer = {"uid": review["request"]["uid"], "allowed": True, "patchType": "JSONPatch", "patch": self._patch}
        return {key: review[key] for key in ("apiVersion", "kind")} | {"response": answer}

    def _configuration(self) -> Object:
        client = {"service": {"namespace": NAMESPACE, "name": self._name}}
        webhook = {
            "name": "second.example.org",
            "clientConfig": client | {"caBundle": base64.b64encode(self._server.ca).decode()},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self._scenario.namespace}},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        return {"metadata": {"name": self._name}, "webhooks": [webhook]}


def reason(scenario: Scenario, pod: str) -> str:
    return scenario.annotations(pod)[DECISION].partition(":")[0]


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        pytest.param(
            {"op": "add", "path": "/spec/nodeSelector/test~1zone", "value": "b"}, "NodeMismatch", id="a nodeSelector"
        ),
        pytest.param({"op": "add", "path": "/spec/containers/-", "value": SIDECAR}, "NodeFull", id="a sidecar"),
    ],
)
def test_a_vm_that_another_webhook_changed_after_its_pin_runs_elsewhere(
    scenario: Scenario, patch: Object, expected: str
) -> None:
    (node,) = scenario.add_nodes(1, "a", {ZONE: "a"}, cpu="8")
    scenario.add_attached_volume()
    scenario.add_nodes(2, "b", {ZONE: "b"})
    before = scenario.create(scenario.vm_pod("before", "disk1"))
    assert scenario.wait_running(before) == node
    with SecondWebhook(scenario, [patch]):
        pod = scenario.create(scenario.vm_pod("vm1", "disk1"))
    assert reason(scenario, pod) == expected
    assert scenario.wait_running(pod) != node


def test_a_vm_with_a_scheduling_gate_runs_elsewhere_if_the_node_fills_up_meanwhile(
    scenario: Scenario, plane: ControlPlane
) -> None:
    (node,) = scenario.add_nodes(1, "small", kvm="1")
    scenario.add_attached_volume()
    scenario.add_nodes(2)
    gated = scenario.create(scenario.vm_pod("vm1", "disk1", schedulingGates=[{"name": "quota.kubevirt.io/gate"}]))
    assert reason(scenario, gated) == "Unjudged"
    assert scenario.wait_running(scenario.create(scenario.vm_pod("vm2", "disk1"))) == node
    plane.request("PATCH", f"{scenario.pods}/{gated}", [{"op": "remove", "path": "/spec/schedulingGates"}])
    assert scenario.wait_running(gated) != node


def test_a_vm_that_prefers_the_node_takes_no_place_of_a_pinned_vm(scenario: Scenario, plane: ControlPlane) -> None:
    (node,) = scenario.add_nodes(1, "small", kvm="2")
    scenario.add_attached_volume()
    scenario.add_nodes(2)
    preferring, *others = (scenario.vm_pod(name, "disk1") for name in ("vm1", "vm2", "vm3"))
    preferring["metadata"]["annotations"]["kubevirt-scheduler/co-schedule-mode"] = "preferred"
    pods = scenario.known(preferring, *others)
    with plane.stopped_scheduler():
        first, second, third = map(scenario.create, pods)
    assert [reason(scenario, pod) for pod in (first, second, third)] == ["CoScheduled", "CoScheduled", "NodeFull"]
    nodes = [scenario.wait_running(pod) for pod in (first, second, third)]
    assert nodes[:2] == [node, node]
    assert nodes[2] != node


def test_a_vm_gets_the_capacity_that_an_infeasible_resize_asks_for(scenario: Scenario, plane: ControlPlane) -> None:
    (node,) = scenario.add_nodes(1, "small", cpu="8")
    scenario.add_attached_volume()
    scenario.add_nodes(2)
    scenario.fill(node, cpu="5")
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}}
    spec = {"containers": [{"name": "main", "image": "none", "resources": resources}], "nodeName": node}
    pod = scenario.create({"metadata": {"generateName": "resized-"}, "spec": spec})
    scenario.wait_running(pod)
    allocated = {"allocatedResources": resources["requests"], "resources": resources}
    statuses = [each | allocated for each in scenario.get(pod)["status"]["containerStatuses"]]
    report = {"op": "add", "path": "/status/containerStatuses", "value": statuses}
    plane.request("PATCH", f"{scenario.pods}/{pod}/status", [report])
    resize = {"op": "replace", "path": "/spec/containers/0/resources/requests/cpu", "value": "7"}
    plane.request("PATCH", f"{scenario.pods}/{pod}/resize", [resize])
    plane.wait(lambda: scenario.decision("disk1").startswith("NodeFull"), 20, "the resize to count")
    # What a kubelet reports if the resize can never fit on its node.
    condition = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
    plane.request(
        "PATCH", f"{scenario.pods}/{pod}/status", [{"op": "add", "path": "/status/conditions/-", "value": condition}]
    )
    plane.wait(lambda: scenario.decision("disk1").startswith("CoScheduled"), 20, "the resize not to count")
    assert scenario.wait_running(scenario.create(scenario.vm_pod("vm1", "disk1"))) == node


def test_a_second_vm_on_a_disk_whose_share_manager_starts_runs_beside_the_first(
    scenario: Scenario, plane: ControlPlane
) -> None:
    scenario.add_nodes(8)
    volume = scenario.add_volume()
    scenario.wait_bound("disk1")
    with ExitStack() as stack:
        with scenario.longhorn.paused():
            node = scenario.wait_running(scenario.create(scenario.vm_pod("vm1", "disk1")))
            interim = {"ownerID": next(name for name in scenario.node_names if name != node)}
            plane.request("PATCH", f"{scenario.longhorn.managers}/{volume}/status", {"status": interim})
            stack.enter_context(plane.stopped_scheduler())
        # Now the share-manager pod is created, but not bound.
        plane.wait(lambda: scenario.longhorn.pod(volume), 20, "the share-manager pod")
        plane.wait(lambda: scenario.decision("disk1").startswith("ShareManagerStarting"), 20, "that decision")
        second = scenario.create(scenario.vm_pod("vm2", "disk1"))
    assert reason(scenario, second) == "ShareManagerStarting"
    assert scenario.annotations(second)[CO_SCHEDULED] == node
    assert scenario.longhorn.wait_running(volume) == node
    assert scenario.wait_running(second) == node


def test_in_a_drain_the_share_manager_follows_the_migration_target(scenario: Scenario, plane: ControlPlane) -> None:
    nodes = scenario.add_nodes(8)
    volume = scenario.add_volume()
    scenario.wait_bound("disk1")
    source = scenario.wait_running(scenario.start_vm("vm1", "disk1"))
    assert scenario.longhorn.wait_running(volume) == source
    scenario.change_node(source, {"spec": {"unschedulable": True}})
    target = scenario.vm_pod("vm1", "disk1", review="migration-target")
    target["spec"]["nodeSelector"][HOSTNAME] = next(name for name in nodes if name != source)
    destination = scenario.wait_running(scenario.create(target))
    plane.wait(lambda: cordon_is_known(scenario, source), 20, "a decision that knows of the cordon")
    plane.request("DELETE", f"{scenario.longhorn.pods}/share-manager-{volume}")
    assert scenario.longhorn.wait_running(volume, other_than=source) == destination


def cordon_is_known(scenario: Scenario, node: str) -> bool:
    return scenario.decision("disk1").startswith("NodeCordoned") and bool(scenario.wait_rejected(node))
