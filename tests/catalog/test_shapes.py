"""A reader finds in an object from the cluster what it finds in one from a file.

A field that the shape lacks is missing in both. Then the facts of the examples lack it, too.
"""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import (
    HOSTNAME,
    IN_TREE_DRIVERS,
    OPT_IN,
    Object,
    claim,
    csi_node,
    hotplug_pod,
    labeled_namespace,
    node,
    node_terms,
    pinned_fields,
    pinned_vm_pod,
    pod,
    pod_anti_affinity,
    pod_term,
    preferring_fields,
    share_manager,
    storage_class,
    virt_launcher,
    virtual_machine,
    vmi,
    volume,
)
from tests.support.fleet import longhorn_volume, replica
from tests.support.malformed import MALFORMED, Path, replaced, value_paths
from tests.support.paths import ROOT
from webhook.catalog.kind import Kind
from webhook.catalog.kinds import kinds
from webhook.placement.objects.selectors import TOPOLOGY_LABELS

MINUTE = "2026-08-01T12:00:00Z"
EACH, OTHER = {"requests": {"cpu": "1", "memory": "1Gi"}}, {"limits": {"cpu": "3", "example.com/gpu": "1"}}
# Each amount counts for the requests: containers, their limits, sidecars, pod-level resources, overhead, a resize.
REQUESTS: Object = {
    "containers": [{"name": "a", "resources": EACH}, {"name": "b", "resources": OTHER, "ports": [{"hostPort": 1}]}],
    "initContainers": [{"name": "c", "resources": EACH, "restartPolicy": "Always"}, {"name": "d", "resources": OTHER}],
    "overhead": {"cpu": "7m"},
    "priority": 5,
}
RESIZED = {"name": "a", "resources": {"requests": {"cpu": "4"}}, "allocatedResources": {"memory": "5Gi"}}
INFEASIBLE = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
POD_LEVEL = {
    "spec": {"containers": [{"name": "a"}], "resources": EACH | {"limits": {"hugepages-2Mi": "4Mi"}}},
    "status": {"resources": {"requests": {"cpu": "2"}}, "allocatedResources": {"memory": "2Gi"}},
}
ANNOTATIONS = {
    OPT_IN: "true",
    "kubevirt-scheduler/other": "false",
    "kubevirt.io/domain": "vm1",
    "kubevirt-scheduler/co-schedule-claim": "disk1",
}
VM_SPEC = {
    "volumes": [
        {"name": "a", "persistentVolumeClaim": {"claimName": "disk1"}},
        {"name": "b", "persistentVolumeClaim": {"claimName": "disk2", "hotpluggable": True}},
        {"name": "c", "dataVolume": {"name": "disk3"}},
        {"name": "d", "dataVolume": {"name": "disk4", "hotpluggable": True}},
        {"name": "e", "ephemeral": {"persistentVolumeClaim": {"claimName": "disk5"}}},
    ]
}


def with_parts(item: Object, **parts: Object) -> Object:
    """Add fields to the metadata, the spec or the status."""
    return item | {part: (item.get(part) or {}) | fields for part, fields in parts.items()}


PODS = [
    with_parts(
        pinned_vm_pod(annotations=ANNOTATIONS),
        metadata={"deletionTimestamp": MINUTE},
        spec=REQUESTS | {"affinity": pinned_fields("node-a")["affinity"] | pod_anti_affinity(pod_term({"a": "b"}))},
        status={"containerStatuses": [RESIZED], "initContainerStatuses": [RESIZED | {"name": "c"}]},
    ),
    virt_launcher("prefers", **preferring_fields("node-a")),
    virt_launcher("gated", schedulingGates=[{"name": "gate"}], **pinned_fields("node-a")),
    virt_launcher("undecided", node="node-a"),
    with_parts(pod("nominated"), status={"phase": "Pending", "nominatedNodeName": "node-a"}),
    with_parts(pod("infeasible"), spec=REQUESTS, status={"containerStatuses": [RESIZED], "conditions": [INFEASIBLE]}),
    with_parts(pod("pod level"), spec=POD_LEVEL["spec"]),
    with_parts(pod("resized"), **POD_LEVEL),
    pod("one request", requests={"cpu": "1"}),
    pod("one limit", initContainers=[{"name": "d", "resources": OTHER}]),
    pod("finished", phase="Succeeded"),
    pod("oversized", labels={f"label-{number}": "x" for number in range(200)}),
    hotplug_pod(virt_launcher("vm1"), node="node-a"),
]
VMS = [
    with_parts(
        virtual_machine(failures=2, annotations=ANNOTATIONS, uid="uid-of-vm1"),
        spec={"template": {"metadata": {"annotations": ANNOTATIONS}, "spec": VM_SPEC}, "instancetype": {"name": "u1"}},
    ),
    with_parts(virtual_machine(strategy=None, running=True), spec={"preference": {"name": "linux"}}),
]
CLAIMS = [
    with_parts(
        claim(
            modes=["ReadWriteMany", "ReadOnlyMany"],
            labels={"persistent-state-for": "vm1"},
            volumeMode="Block",
            storageClassName="longhorn-rwx",
            resources={"requests": {"storage": "1Gi"}},
        ),
        metadata={"uid": "uid-of-disk1"},
    ),
    claim("iso", modes=["ReadOnlyMany"]),
    with_parts(claim("old"), metadata={"annotations": {"volume.beta.kubernetes.io/storage-class": "longhorn-rwx"}}),
]
ZONES = {key: f"value-{number}" for number, key in enumerate(TOPOLOGY_LABELS)}
VOLUMES = [
    with_parts(
        volume(required=node_terms({})["nodeAffinity"], parameters={"migratable": "true"}, labels=ZONES),
        spec={"claimRef": {"namespace": "team", "name": "disk1", "uid": "uid-of-disk1"}},
    ),
    volume("local", driver="local.csi"),
    *(with_parts(volume(kind, driver=""), spec={kind: {}}) for kind in IN_TREE_DRIVERS),
]
TAINT = {"key": "a", "value": "b", "effect": "NoSchedule"}
NODES = [
    with_parts(
        node(labels=ZONES, unschedulable=True, taints=[TAINT], allocatable={"cpu": "4"}),
        status={"nodeInfo": {"kernelVersion": "6.8.0"}},
    )
]
TOPOLOGIES = [{"matchLabelExpressions": [{"key": HOSTNAME, "values": ["node-a"]}]}]
LONGHORN = {"provisioner": "driver.longhorn.io", "volumeBindingMode": "WaitForFirstConsumer"}
LIMITS = {"shareManagerNodeSelector": "disk:ssd", "shareManagerTolerations": "a:NoSchedule"}
CLASSES = [
    storage_class(**LONGHORN, parameters=LIMITS, allowedTopologies=TOPOLOGIES),
    storage_class(**LONGHORN, parameters={"migratable": "true"}),
]
EXAMPLES: dict[str, list[Object]] = {
    "PersistentVolumeClaim": CLAIMS,
    "PersistentVolume": VOLUMES,
    "ShareManager": [share_manager(deleting=True)],
    "Volume": [longhorn_volume()],
    "Replica": [replica(), replica(failedAt=MINUTE), replica(deleting=True), replica(healthyAt="")],
    "Node": NODES,
    "CSINode": [csi_node("node-a", limited=5, unlimited=None)],
    "Pod": PODS,
    "VirtualMachine": VMS,
    "VirtualMachineInstance": [vmi(owner_kind="VirtualMachineInstanceReplicaSet")],
    "Namespace": [labeled_namespace(team="a")],
    "StorageClass": CLASSES,
}
EXAMPLES = {
    kind: [with_parts(item, metadata={"namespace": "team"}) for item in items] for kind, items in EXAMPLES.items()
}
KINDS = {kind.name: kind for kind in kinds("longhorn-system")}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_shape_has_every_field_that_the_reader_uses(kind: Kind) -> None:
    for item in EXAMPLES[kind.name]:
        sent = {key: item[key] for key in ("kind", "metadata")} if kind.metadata_only else item
        assert kind.extract(kind.decode(msgspec.json.encode(sent))) == kind.extract(kind.convert(item))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_examples_set_every_field_that_the_reader_uses(kind: Kind) -> None:
    def fields(item: Object) -> dict[str, Any]:
        fact = kind.extract(kind.convert(item))
        return {name: getattr(fact, name) for name in kind.fact.__struct_fields__} if fact else {}

    empty = fields({"metadata": {"name": "one"}})
    assert set(empty) == {
        name for item in EXAMPLES[kind.name] for name, value in fields(item).items() if value != empty[name]
    }


RECORDED = json.loads((ROOT / "tests/data/rendered-pods.json").read_text())
TEMPLATES = [virtual_machine() | {"spec": {"template": case["template"]}} for case in RECORDED["cases"]]
PLACES = [(number, path) for number, item in enumerate(TEMPLATES) for path in value_paths(item) if path]


@given(place=st.sampled_from(PLACES), value=MALFORMED)
def test_a_vm_from_a_file_has_the_fields_of_one_from_the_cluster(place: tuple[int, Path], value: Any) -> None:
    number, path = place
    item = replaced(TEMPLATES[number], path, value)
    kind = KINDS["VirtualMachine"]
    assert kind.convert(item | {"unknown": value}) == kind.decode(msgspec.json.encode(item))
