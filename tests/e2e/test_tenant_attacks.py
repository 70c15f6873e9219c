"""What a user of a namespace writes changes no other tenant's VM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from tests.support.builders import REQUIRED, pin
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.kubevirt import vm_of, vm_path
from tests.support.longhorn import Longhorn
from tests.support.scenario import DECISION, HOSTNAME, Scenario
from tests.support.webhook_process import Webhook

pytestmark = pytest.mark.controlplane

GATE = [{"name": "example.com/never"}]


@pytest.fixture
def rival(plane: ControlPlane, longhorn: Longhorn, scenario: Scenario) -> Iterator[Scenario]:
    """Another tenant, whose objects have `rival` in their names. No webhook is called for its pods."""
    with closing(Scenario(plane, longhorn, None, f"rival-of-{scenario.namespace}")) as rival:
        yield rival


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


def claim_a_volume(rival: Scenario, volume: str, scenario: Scenario) -> None:
    """Create a claim in the victim's namespace that names a volume of another tenant."""
    spec = {"accessModes": ["ReadWriteMany"], "storageClassName": rival.namespace, "volumeName": f"pv-{volume}"}
    spec["resources"] = {"requests": {"storage": "1Gi"}}
    rival.plane.request("POST", scenario.claims, {"metadata": {"name": "copy"}, "spec": spec})


@contextmanager
def deep_claim(plane: ControlPlane, namespace: str) -> Iterator[None]:
    """Create a claim with 2,000 levels of managedFields, which the API server sends with each claim."""
    entry = {"manager": "x", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": "DEEP"}
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "deep", "namespace": namespace, "managedFields": [entry]},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    fields = '{"f:a":' * 2000 + "{}" + "}" * 2000
    plane.kubectl("create", "-f", "-", input=json.dumps(claim).replace('"DEEP"', fields))
    try:
        yield
    finally:
        plane.kubectl("delete", "pvc", "deep", "-n", namespace)  # waits: Python can't read the claim


def test_pods_and_claims_of_another_tenant_change_no_decision_and_end_no_watch(
    plane: ControlPlane, scenario: Scenario, rival: Scenario, webhook: Webhook
) -> None:
    scenario.add_nodes(1, "small", kvm="3")
    scenario.add_attached_volume()
    scenario.add_nodes(1)
    scenario.start_vm("victim", "disk1")
    cached, line = 'kubevirt_scheduler_cache_objects{resource="persistentvolumeclaims"}', len(webhook.log())
    before = webhook.metric(cached)
    with deep_claim(plane, rival.namespace):
        plane.wait(lambda: webhook.metric(cached) == before + 1, 20, "the claim is cached")
    assert not webhook.logged("relisting", line)

    rival.add_nodes(1)
    volume, elsewhere = rival.add_attached_volume("disk1")
    claim_a_volume(rival, volume, scenario)
    stored = scenario.dry_run(scenario.vm_pod("trial", "copy"))
    assert stored["metadata"]["annotations"][DECISION].startswith("NoShareManager")
    assert elsewhere not in json.dumps(stored)

    node = scenario.node_names[0]
    fakes = [
        with_requests(copied_pin(rival, node), cpu="1M"),
        with_requests(copied_pin(rival, node, schedulingGates=GATE), cpu="15900m"),
        hard_terms(node),
        hard_terms(node, 2000),
    ]
    for fake in fakes:
        plane.request("POST", rival.pods, fake, user="")
    scenario.wait_running(scenario.create_consumer("disk1"))  # by then, the webhook's watch has shown the fake pods
    pod = scenario.vm_pod("vm1", "disk1")
    # A VM that the release could not restart would only prefer the node, as long as terms can't be evaluated.
    plane.request("POST", vm_path(scenario), vm_of(pod))
    vm = scenario.create(pod)
    assert scenario.annotations(vm)[DECISION].startswith("CoScheduled")
    assert scenario.wait_running(vm) == node
