"""Tests of the readers that reduce each Kubernetes object to the facts a decision uses."""

import json
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import msgspec
import pytest

from tests.support.builders import (
    HOSTNAME,
    Object,
    claim,
    fact_of,
    hotplug_pod,
    node,
    pinned_fields,
    pinned_vm_pod,
    pod,
    pod_affinity,
    pod_anti_affinity,
    pod_fact,
    pod_term,
    preferring_fields,
    virt_launcher,
    virtual_machine,
    vmi,
    volume,
)
from tests.support.own_process import run_in_child_process
from webhook.catalog import kinds
from webhook.catalog.kind import (
    MAX_FIELD,
    Kind,
    MalformedObject,
    as_map,
    decode_json,
    decode_large,
    key_of,
    map_of,
    object_of,
)
from webhook.catalog.kinds import PODS
from webhook.catalog.storage_kinds import CLAIMS, STORAGE_CLASSES
from webhook.placement.objects.facts import PendingPin, Pod
from webhook.placement.objects.fields import Malformed
from webhook.placement.objects.pod import _stored_once
from webhook.placement.objects.pod_object import PodObject
from webhook.placement.objects.selectors import AffinityTerm, label_selector
from webhook.placement.objects.typed import convert


@pytest.mark.parametrize("value", ["1", "t", "T", "true", "True", "TRUE", "0", "false", "yes", ""])
def test_parameters_of_a_volume_are_parsed_like_longhorn_parses_them(value: str) -> None:
    read = fact_of(volume(parameters={"migratable": value}))
    assert read.migratable is (value in ("1", "t", "T", "true", "True", "TRUE"))


ORDINARY_POD = Pod(
    namespace="default",
    name="one",
    uid="uid-one",
    node="node-a",
    effective_node="node-a",
    alive=True,
    created="",
    labels={},
    requests={"pods": 1},
    anti_affinity=(),
    claims=(),
    true_annotations=frozenset(),
    owner="",
)
VM_FIELDS = {"labels": {"kubevirt.io": "virt-launcher"}, "claims": ("disk1",)}
OPTED_IN_FIELDS = {**VM_FIELDS, "true_annotations": frozenset({"kubevirt-scheduler/co-schedule"})}
VMI_LABELS = {"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": "uid-of-vmi-of-one"}
DECIDED_VM = {
    **OPTED_IN_FIELDS,
    "labels": VMI_LABELS,
    "owner": "uid-of-vmi-of-one",
    "node": "",
    "effective_node": "",
}
PREFERS_B = preferring_fields("node-b")
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": "now"}
ONE_OF_MANY = {"matchExpressions": [{"key": "app", "operator": "In", "values": [f"app-{each}" for each in range(200)]}]}
ANTI_AFFINITY = (AffinityTerm(("default",), None, label_selector({"matchLabels": {"a": "b"}}), HOSTNAME),)


UNBOUND = {"node": "", "effective_node": ""}
NOMINATED = {"status": {"phase": "Pending", "nominatedNodeName": "node-b"}}
REFUSED = {"status": {"phase": "Pending", "conditions": [UNSCHEDULABLE]}}
# Each row: the pod, and the fields in which its facts differ from those of an ordinary pod.
FACTS: dict[str, tuple[Object, Any]] = {
    "ordinary": (pod("one", node="node-a"), {}),
    "a copied pin": (pod("one", **pinned_fields("node-b")), UNBOUND),
    "bound to another node than pinned": (pod("one", node="node-a", **pinned_fields("node-b")), {}),
    "nominated": (pod("one") | NOMINATED, UNBOUND | {"effective_node": "node-b", "nominated": True}),
    "prefers a node": (
        virt_launcher("one", **PREFERS_B),
        DECIDED_VM | {"prefers": True, "pin": PendingPin("node-b", "one", prefers=True)},
    ),
    "prefers a node, unschedulable": (virt_launcher("one", **PREFERS_B) | REFUSED, DECIDED_VM),
    "without the preferred term": (virt_launcher("one", annotations=PREFERS_B["annotations"]), DECIDED_VM),
    "no VM's pod prefers a node": (pod("one", **PREFERS_B), UNBOUND),
    "terminating": (pod("one", node="node-a", deleting=True), {"alive": False}),
    "phase Unknown": (pod("one", node="node-a", phase="Unknown"), {"alive": False}),
    "without a status": (pod("one", node="node-a") | {"status": None}, {}),
    "anti-affinity": (
        pod("one", node="node-a", affinity=pod_anti_affinity(pod_term({"a": "b"}))),
        {"anti_affinity": ANTI_AFFINITY},
    ),
    "an opted-in VM": (virt_launcher("one", node="node-a"), OPTED_IN_FIELDS | {"undecided": True}),
    "a hotplug pod": (
        hotplug_pod(virt_launcher("x"), node="node-a"),
        {
            "name": "hp-volume-x",
            "uid": "uid-hp-volume-x",
            "labels": {"kubevirt.io": "hotplug-disk"},
            "claims": ("disk1",),
            "owner": "uid-x",
        },
    ),
}


@pytest.mark.parametrize(("item", "changed"), FACTS.values(), ids=FACTS)
def test_a_pod_is_reduced_to_its_facts(item: Object, changed: Any) -> None:
    fields = {name: getattr(ORDINARY_POD, name) for name in Pod.__struct_fields__}
    assert pod_fact(item) == Pod(**{**fields, **changed})


MANY_TERMS = pod_anti_affinity(*(pod_term({f"label-{number}": "x"}) for number in range(60)))


OVERSIZED = {
    "many labels": {"labels": {f"label-{number}": "x" for number in range(200)}},
    "a long label": {"labels": {"label": "x" * 20_000}},
    "many annotations": {"annotations": {f"annotation-{number}": "true" for number in range(200)}},
    "many claims": {"claims": [f"disk{number}" for number in range(200)]},
    "many terms": {"affinity": MANY_TERMS},
    "many namespaces": {"affinity": pod_anti_affinity(pod_term({}, namespaces=[f"space-{n}" for n in range(200)]))},
    "many values": {"affinity": pod_affinity(pod_term(None, labelSelector=ONE_OF_MANY))},
}


def test_long_labels_of_a_made_up_review_are_not_kept_for_other_pods() -> None:
    before = _stored_once.cache_info().currsize
    fact = pod_fact(pod("one", labels={"long": "x" * 400}))
    assert fact
    assert fact.labels == {"long": "x" * 400}
    assert _stored_once.cache_info().currsize == before


@pytest.mark.parametrize("details", OVERSIZED.values(), ids=OVERSIZED)
def test_an_oversized_pod_counts_with_its_node_and_its_requests(details: Object) -> None:
    """15 pods with 38,000 terms took 540 MB of each replica."""
    item = virt_launcher("one", node="node-a", requests={"cpu": "1"}, **details)
    fact = pod_fact(item)
    assert fact
    assert (fact.oversized, fact.node, fact.requests["cpu"]) == (True, "node-a", 1000)
    assert (fact.labels, fact.anti_affinity, fact.claims) == ({"kubevirt.io": "virt-launcher"}, (), ())
    assert len(repr(fact)) < 1000


def test_names_of_any_length_are_not_kept() -> None:
    """The API server admits a PV's or an owner's name of any length, and any number of annotations of a VM."""
    assert fact_of(claim(volume="x" * 254)).volume_name == ""
    owned = vmi(owner_kind="x" * 254)
    owned["metadata"]["ownerReferences"][0] |= {"name": "x" * 254, "uid": "x" * 254}
    found = kinds.read_vmi(owned)
    assert (found.owner_kind, found.owner_name, found.owner_uid) == ("", "", "")
    assert kinds.read_virtual_machine(virtual_machine(strategy="x" * 254)).strategy == ""
    many = {str(number): "true" for number in range(1000)}  # 2,890 characters, and 50 KB of memory
    assert kinds.read_virtual_machine(virtual_machine(annotations=many)).true_annotations == frozenset()


def test_a_pod_with_too_many_resources_keeps_cpu_and_memory() -> None:
    named = [{f"example.com/{each}-{number}": "1" for number in range(30)} for each in range(3)]
    containers = [{"resources": {"requests": {**each, "cpu": "1"}}} for each in named]
    fact = pod_fact(pod("one", node="node-a", containers=containers))
    assert fact
    assert (fact.oversized, len(fact.requests), fact.requests["cpu"]) == (True, 32, 3000)


def test_a_pod_with_very_many_quantities_counts_only_as_a_pod() -> None:
    """See the test of `effective_requests`."""
    many = {"resources": {"requests": {f"example.com/{number}": "1" for number in range(513)}}}
    for containers in ([many], [{"resources": {"requests": {"cpu": "1"}}}] * 65):
        fact = pod_fact(pod("one", node="node-a", containers=containers))
        assert fact
        assert (fact.oversized, fact.node, fact.requests) == (True, "node-a", {"pods": 1})


@pytest.mark.parametrize("quantity", ["many", "1 Gi", "", "0x10", "1e1000", "1Kib", "NaN", True, [], {}], ids=repr)
def test_the_error_for_an_invalid_quantity_does_not_contain_its_value(quantity: Any) -> None:
    with pytest.raises(Malformed, match=r"^status\.allocatable\.cpu: expected a quantity, such as") as caught:
        fact_of(node(allocatable={"cpu": quantity}))
    assert not quantity or str(quantity) not in str(caught.value)
    with pytest.raises(Malformed, match=r"^spec\.containers\[0\]\.resources\.requests\.cpu: expected a quantity"):
        pod_fact(pod("one", requests={"cpu": quantity}))


# Pins of unbound pods


CONDITION = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": None}
WITHOUT_TIME = {"status": {"phase": "Pending", "conditions": [CONDITION]}}
SOFTENED = {"kubevirt-scheduler/decision": "NodeFull: preferred"}


def with_metadata(item: Object, **fields: Any) -> Object:
    return item | {"metadata": item["metadata"] | fields}


OF_ANOTHER_VMI = {"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": "another"}
PINS = {
    "unschedulable": (pinned_vm_pod(), PendingPin("node-a", "vm1", "2026-08-01T12:00:01Z")),
    "not tried yet": (pinned_vm_pod(unschedulable=False), PendingPin("node-a", "vm1")),
    "gated": (pinned_vm_pod(schedulingGates=[{"name": "quota"}]), None),
    "the label of another VMI": (with_metadata(pinned_vm_pod(), labels=OF_ANOTHER_VMI), None),
    "no time, so that of its creation": (
        pinned_vm_pod() | WITHOUT_TIME,
        PendingPin("node-a", "vm1", "2026-08-01T12:00:00Z"),
    ),
    "bound": (pinned_vm_pod(nodeName="node-a"), None),
    "no pin": (virt_launcher("vm1"), None),
    "not a VM's": (pod("web", **pinned_fields("node-a")), None),
    "no VMI": (with_metadata(pinned_vm_pod(), ownerReferences=None), None),
    "a name too long for a VM": (pinned_vm_pod(vm="v" * 254), None),
    "softened": (pinned_vm_pod(annotations=SOFTENED), None),
}


@pytest.mark.parametrize(("item", "pin"), PINS.values(), ids=PINS)
def test_only_an_unbound_pod_that_the_webhook_pinned_has_a_pending_pin(item: Object, pin: PendingPin | None) -> None:
    fact = pod_fact(item)
    assert fact
    assert fact.pin == pin


@pytest.mark.parametrize(("size", "expected"), [("1Gi", 1024**3), ("much", 0), (None, 0)])
def test_a_claim_has_the_requested_size(size: str | None, expected: int) -> None:
    assert fact_of(claim(resources={"requests": {"storage": size} if size else {}})).size == expected


def test_a_typed_object_names_its_malformed_field_and_reads_a_null_as_absent() -> None:
    for spec, problem in (
        ({"volumeName": 5}, "spec.volumeName: expected str, got int"),
        ({"accessModes": ["ReadWriteMany", 7]}, "spec.accessModes[1]: expected str, got int"),
        ([], "spec: expected object, got array"),
    ):
        with pytest.raises(MalformedObject) as raised:
            CLAIMS.decode(json.dumps(claim() | {"spec": spec}).encode())
        assert raised.value.args == ("default/disk1", problem)
    nulls = claim() | {"status": None, "spec": {"volumeName": None, "accessModes": ["ReadWriteMany", None]}}
    assert CLAIMS.decode(json.dumps(nulls).encode()) == CLAIMS.convert(
        claim() | {"status": {}, "spec": {"accessModes": ["ReadWriteMany"]}}
    )


def test_a_map_gets_only_the_fields_of_its_shape_that_have_its_types() -> None:
    spec = {"volumes": [{"name": "a"}, "b"], "domain": {"cpu": {"cores": 2}, "clock": {}}, "hostname": "x"}
    read = kinds.VIRTUAL_MACHINES.convert({"spec": {"template": {"spec": spec}}})
    assert read["spec"] == {"template": {"spec": {"domain": {"cpu": {"cores": 2}}}}}


# A large object is decoded without what is too large to decode


TERMS = pod_anti_affinity(*(pod_term({"app": f"app-{number}"}) for number in range(4000)))
LONG = "x" * MAX_FIELD


def decoded(item: Any) -> PodObject:
    return convert(decode_large(msgspec.Raw(json.dumps(item).encode()), PODS.shape), PodObject)


def test_a_kind_has_the_path_and_the_manifests_of_its_group() -> None:
    assert PODS.path == "/api/v1/pods"
    assert STORAGE_CLASSES.path == "/apis/storage.k8s.io/v1/storageclasses"
    paths = {kind.path for kind in kinds.kinds("storage")}
    assert "/apis/longhorn.io/v1beta2/namespaces/storage/replicas" in paths
    assert PODS.is_of("v1", "Pod")
    assert STORAGE_CLASSES.is_of("storage.k8s.io/v1beta1", "StorageClass")
    assert not STORAGE_CLASSES.is_of("v1", "StorageClass")
    # A cluster may lack the CRDs of KubeVirt and Longhorn.
    assert {kind.name for kind in kinds.kinds("") if kind.optional} == {
        "VirtualMachine", "VirtualMachineInstance", "ShareManager", "Volume", "Replica",
    }  # fmt: skip


def test_an_object_without_a_namespace_is_in_the_default_one() -> None:
    assert key_of({"metadata": {"namespace": "shop", "name": "vm1"}}) == ("shop", "vm1")
    assert key_of({"metadata": {"name": "vm1"}}) == ("default", "vm1")


def test_an_unexpected_error_of_a_reader_names_the_object_and_not_its_content() -> None:
    kind = Kind("v1", "Pod", PODS.shape, read=lambda item: item["spec"]["passphrase"])
    with pytest.raises(MalformedObject) as raised:
        kind.extract(pod("one"))
    assert raised.value.args == ("default/one", "KeyError")


@pytest.mark.parametrize(
    ("item", "field", "whole"),
    [
        (pod("one", affinity=TERMS), ("spec", "affinity"), False),
        (pod("one", labels={"a": LONG}), ("metadata", "labels"), False),
        (pod("one", annotations={"a": LONG}), ("metadata", "annotations"), True),
        (pod("one", annotations={"a": LONG * 2}), ("metadata", "annotations"), False),
        (pod("one", containers=[{"name": "c", "env": [LONG]}]), ("spec", "containers"), True),
        (pod("one", containers=[{"name": "c", "resources": {"requests": {LONG: "1"}}}]), ("spec", "containers"), False),
        (pod("one", containers=[{"name": "c" * 2000}] * 300), ("spec", "containers"), False),
        (pod("one", containers={"a": LONG}), ("spec", "containers"), False),
        (pod("one") | {"spec": [LONG]}, ("spec",), False),
    ],
    ids=["terms", "labels", "annotations", "more annotations", "environment", "resources", "containers", "map", "list"],
)
def test_a_large_object_is_decoded_without_its_large_fields(item: Object, field: tuple[str, ...], whole: bool) -> None:
    found: Any = msgspec.to_builtins(decoded(item))
    assert ("undecoded" not in found) is whole
    assert found["metadata"]["name"] == "one"
    for key in field:
        found = found.get(key) or {}
    assert bool(found and "resources" not in found[0] if isinstance(found, tuple) else found) is whole


def test_a_large_pod_has_the_facts_of_a_small_one() -> None:
    item = virt_launcher("one", node="node-a", requests={"cpu": "1"}, annotations={"note": LONG}, tolerations=None)
    small = virt_launcher("one", node="node-a", requests={"cpu": "1"})
    assert kinds.read_pod(decoded(item)) == pod_fact(small)


def test_a_large_vm_is_decoded_without_its_large_fields() -> None:
    raw = msgspec.json.encode(virtual_machine(annotations={"a": LONG * 2}))
    found = kinds.VIRTUAL_MACHINES.decode(raw)
    assert (found["metadata"]["name"], found["spec"]["template"]["metadata"]) == ("vm1", {"annotations": None})


def test_a_typed_object_becomes_the_map_of_a_file() -> None:
    assert as_map(decoded(pod("one", tolerations=[{"operator": "Exists"}])))["spec"]["tolerations"] == [
        {"operator": "Exists"}
    ]


def test_what_is_not_json_raises_an_error() -> None:
    with pytest.raises(ValueError, match="malformed"):
        decode_large(msgspec.Raw(b'{"a":' + LONG.encode()), PODS.shape)


@pytest.mark.usefixtures("no_collection")
def test_a_page_with_a_deeply_nested_object_is_not_taken_apart_at_once() -> None:
    """The parts of a page of 4 MiB took 130 MB, and no other thread ran for 2 s."""
    raw = b"[" + b'{"a":1},' * 50_000 + b"[" * 10_000 + b"]" * 10_001
    tracemalloc.start()
    found = decode_json(msgspec.json.Decoder(list[msgspec.Raw]), raw)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(found), len(found[-1])) == (50_001, 2 * 99)
    assert peak < 20 * len(raw)


def test_threads_that_decode_kinds_with_a_shared_part_do_not_crash() -> None:
    """Crashes in msgspec came when two reflectors made the decoders of such kinds at once: 3 times in an afternoon."""
    run_in_child_process(decode_kinds_in_threads)


def decode_kinds_in_threads(threads: int = 4, rounds: int = 150) -> None:
    sys.setswitchinterval(1e-6)
    item = msgspec.Raw(b'{"metadata": {"name": "one"}, "spec": {"shared": {"inner": {"inner": {"a": 1}}}}}')
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(rounds):
            shared = map_of(inner=map_of("b c", inner=map_of("a")))
            kinds = [Kind("v1", "Any", object_of(spec=map_of(shared=shared))) for _ in range(threads)]
            barrier = Barrier(threads)

            def decode(kind: Kind, barrier: Barrier = barrier) -> Object:
                barrier.wait()
                return kind.decode(item)

            assert all(found["spec"]["shared"]["inner"]["inner"] == {"a": 1} for found in pool.map(decode, kinds))
