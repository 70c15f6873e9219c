"""What a user of a namespace writes changes no other tenant's VM, and tells the user nothing of other tenants."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from tests.support import burst
from tests.support.accounts import KUBEVIRT
from tests.support.builders import REQUIRED, pin
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.helm_chart import find_one, render
from tests.support.kubevirt import vm_of, vm_path
from tests.support.longhorn import Longhorn
from tests.support.measured import Measured
from tests.support.replicas import Replicas
from tests.support.scenario import DECISION, HOSTNAME, Scenario
from tests.support.webhook_process import REGISTRATIONS, RELEASE_RIGHTS, RIGHTS, create_service_account

pytestmark = pytest.mark.controlplane

GATE = [{"name": "example.com/never"}]
CLIENTS, VMS = 60, 9


@pytest.fixture(scope="module")
def replicas(plane: ControlPlane, longhorn: Longhorn) -> Iterator[Replicas]:
    """Two replicas, of which one gets all calls, and one releases pins.

    The API server calls them only under the conditions that the chart renders.
    """
    token = create_service_account(plane, "tenants", RIGHTS + RELEASE_RIGHTS)
    kubeconfig = plane.write_kubeconfig(plane.folder / "tenants-kubeconfig", token)
    settings = {"longhorn_namespace": longhorn.namespace}
    with Replicas(plane, "tenants", kubeconfig, 2, settings, lease=True, share_managers=False) as replicas:
        replicas.route_to_one()
        conditions = find_one(render(), "MutatingWebhookConfiguration")["webhooks"][0]["matchConditions"]
        patch = [{"op": "add", "path": "/webhooks/0/matchConditions", "value": conditions}]
        plane.request("PATCH", f"{REGISTRATIONS}/tenants", patch)
        yield replicas


@pytest.fixture
def scenario(plane: ControlPlane, longhorn: Longhorn, replicas: Replicas) -> Iterator[Scenario]:
    """A node that serves `disk1` and has space for two VMs, and another node. A VM of the victim runs."""
    scenario = Scenario(plane, longhorn, replicas.first)
    scenario.add_nodes(1, "small", kvm="3")
    scenario.add_attached_volume()
    scenario.add_nodes(1)
    scenario.start_vm("victim", "disk1")
    yield scenario
    scenario.close()


@pytest.fixture
def rival(plane: ControlPlane, longhorn: Longhorn, scenario: Scenario) -> Iterator[Scenario]:
    """Another tenant, whose objects have `rival` in their names. No webhook is called for its pods."""
    with closing(Scenario(plane, longhorn, None, f"rival-of-{scenario.namespace}")) as rival:
        yield rival


@pytest.fixture(scope="module")
def tenant(plane: ControlPlane) -> str:
    """The token of an account that may only create pods."""
    return create_service_account(plane, "tenant", (("", "pods", ("create",)),))


# --- copied pins ---


def copied_pin(rival: Scenario, node: str, **spec: object) -> Object:
    """Return a pod that carries everything that the webhook writes on a pinned pod, for a VMI that doesn't exist."""
    pod = pin(rival.vm_pod("copy", opt_in=None, schedulerName="none", **spec), node)
    uid = pod["metadata"]["labels"]["kubevirt.io/created-by"] = "00000000-0000-0000-0000-000000000000"
    owner = {"apiVersion": "example.com/v1", "kind": "VirtualMachineInstance", "name": "copy", "uid": uid}
    pod["metadata"]["ownerReferences"] = [owner | {"controller": True}]
    return pod


def with_requests(pod: Object, **resources: str) -> Object:
    named = {key.replace("kvm", "devices.kubevirt.io/kvm"): value for key, value in resources.items()}
    pod["spec"]["containers"][0]["resources"] = {"requests": named, "limits": named}
    return pod


def hard_terms(node: str, count: int = 1) -> Object:
    """Return a bound pod with anti-affinity terms that the webhook can't evaluate, or not all of them."""
    selector = {"matchExpressions": [{"key": "absent", "operator": "Exists"}]}
    term = {"topologyKey": HOSTNAME, "namespaceSelector": selector, "labelSelector": {}}
    spec = {"containers": [{"name": "main", "image": "none"}], "nodeName": node}
    spec["affinity"] = {"podAntiAffinity": {REQUIRED: [term] * count}}
    return {"metadata": {"generateName": "hard-"}, "spec": spec}


def test_the_pods_of_another_tenant_change_no_decision(scenario: Scenario, rival: Scenario) -> None:
    node = scenario.node_names[0]
    fakes = [
        with_requests(copied_pin(rival, node), cpu="1M"),
        with_requests(copied_pin(rival, node, schedulingGates=GATE), cpu="15900m"),
        hard_terms(node),
        hard_terms(node, 2000),
    ]
    for fake in fakes:
        rival.plane.request("POST", rival.pods, fake, user="")
    scenario.wait_running(scenario.create_consumer("disk1"))  # by then, the webhook's watch has shown the fake pods
    pod = scenario.vm_pod("vm1", "disk1")
    # A VM that the release could not restart would only prefer the node, as long as terms can't be evaluated.
    rival.plane.request("POST", vm_path(scenario), vm_of(pod))
    vm = scenario.create(pod)
    assert scenario.annotations(vm)[DECISION].startswith("CoScheduled")
    assert scenario.wait_running(vm) == node


# --- dry runs ---


def post(plane: ControlPlane, path: str, body: str, token: str = "", user: str = "") -> str:
    """Create an object with a token or as another user, and return the body of the answer and its warnings."""
    response, answer = plane.create_as(user, path, body, token)
    assert response.status < 300, answer
    return "\n".join([json.dumps(answer), *response.headers.get_all("Warning", [])])


@contextmanager
def flood(plane: ControlPlane, path: str, pod: Object, token: str) -> Iterator[list[str]]:
    """Send dry runs of a pod by 60 clients until the end of the block. Yield the answers."""
    answers, stop, body = list[str](), threading.Event(), json.dumps(pod)

    def work() -> None:
        while not stop.is_set():
            answers.append(post(plane, f"{path}?dryRun=All", body, token))

    threads = [threading.Thread(target=work) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        plane.wait(lambda: len(answers) > CLIENTS, 30, "the first answers")
        yield answers
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_60_dry_runs_at_a_time_reach_no_replica_and_each_vm_gets_its_decision(
    scenario: Scenario, plane: ControlPlane, replicas: Replicas, tenant: str, measured: Measured
) -> None:
    node = scenario.add_attached_volume("disk2", node=scenario.node_names[1])[1]
    before = len(replicas.first.log())
    with flood(plane, scenario.pods, scenario.vm_pod("trial", "disk2"), tenant) as answers:
        created = burst.create(scenario, [scenario.vm_pod(f"vm{number}", "disk2") for number in range(VMS)])
        sent = len(answers)
    assert not any(DECISION in answer for answer in answers)
    assert {each.reason or each.error for each in created} == {"CoScheduled"}
    assert {scenario.wait_running(each.pod) for each in created} == {node}
    decided = [line for line in replicas.first.log()[before:] if line.get("event") == "decided"]
    assert {line["reason"] for line in decided} == {"CoScheduled"}
    slowest = max(each.seconds for each in created)
    measured(f"tenants: beside {sent} dry runs by {CLIENTS} clients, {VMS} VMs take at most {slowest:.1f} s")


def repelling(rival: Scenario, node: str) -> None:
    selector = {"matchLabels": {"kubevirt.io": "virt-launcher"}}
    term = {"topologyKey": HOSTNAME, "namespaceSelector": {}, "labelSelector": selector}
    spec = {"containers": [{"name": "main", "image": "none"}], "nodeName": node}
    spec["affinity"] = {"podAntiAffinity": {REQUIRED: [term]}}
    rival.create({"metadata": {"name": "rival-pod"}, "spec": spec})


def filling(rival: Scenario, node: str) -> None:
    rival.fill(node, cpu="15990m")  # the node has 16


def tainting(rival: Scenario, node: str) -> None:
    taint = {"key": "rival-key", "value": "rival-value", "effect": "NoSchedule"}
    rival.change_node(node, {"spec": {"taints": [taint]}})


# What another tenant does on the node, and the reason for which the VM isn't pinned there. The guard evaluates each
# before the one above it.
ON_THE_NODE = {"PodAffinity": repelling, "NodeFull": filling, "NodeTainted": tainting}
SECRETS = re.compile("rival|, free")


def test_decisions_warnings_and_events_tell_nothing_of_other_tenants(
    scenario: Scenario, rival: Scenario, plane: ControlPlane, tenant: str
) -> None:
    for reason, change in ON_THE_NODE.items():
        change(rival, scenario.node_names[0])
        plane.wait(lambda reason=reason: scenario.decision("disk1").startswith(reason), 20, reason)
        vm = f"vm-{reason.lower()}-{scenario.namespace}"
        pod = scenario.owned(scenario.vm_pod(vm, "disk1"))
        path, body = f"{scenario.pods}?dryRun=All", json.dumps(pod)
        assert DECISION not in post(plane, path, body, tenant)
        answers = [post(plane, each, body, user=KUBEVIRT) for each in (path, scenario.pods)]
        assert all(f"{reason}: " in answer for answer in answers)
        events = f"/api/v1/namespaces/{scenario.namespace}/events?fieldSelector=involvedObject.name={vm}"
        answers += plane.wait(
            lambda events=events: [str(each) for each in plane.request("GET", events)["items"]], 20, "the Event"
        )
        assert [found for answer in answers for found in SECRETS.findall(answer)] == []


def test_a_claim_that_names_the_volume_of_another_tenant_tells_no_node(scenario: Scenario, rival: Scenario) -> None:
    rival.add_nodes(1)
    volume, node = rival.add_attached_volume("disk1")
    spec = {"accessModes": ["ReadWriteMany"], "storageClassName": rival.namespace, "volumeName": f"pv-{volume}"}
    spec["resources"] = {"requests": {"storage": "1Gi"}}
    scenario.plane.request("POST", scenario.claims, {"metadata": {"name": "copy"}, "spec": spec})
    stored = scenario.dry_run(scenario.vm_pod("trial", "copy"))
    assert stored["metadata"]["annotations"][DECISION].startswith("NoShareManager")
    assert node not in json.dumps(stored)


# --- made-up fields ---


def test_made_up_fields_of_a_claim_end_no_watch(plane: ControlPlane, rival: Scenario, replicas: Replicas) -> None:
    """The API server stores 2,000 levels of managedFields, and sends them in each list and watch of claims."""
    entry = {"manager": "x", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": "DEEP"}
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "deep", "namespace": rival.namespace, "managedFields": [entry]},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    cached, line = 'kubevirt_scheduler_cache_objects{resource="persistentvolumeclaims"}', len(replicas.first.log())
    before, fields = replicas.first.metric(cached), '{"f:a":' * 2000 + "{}" + "}" * 2000
    plane.kubectl("create", "-f", "-", input=json.dumps(claim).replace('"DEEP"', fields))
    try:
        plane.wait(lambda: replicas.first.metric(cached) == before + 1, 20, "the claim is cached")
    finally:
        plane.kubectl("delete", "pvc", "deep", "-n", rival.namespace)  # waits: Python can't read the claim
    assert not replicas.first.logged("relisting", line)
