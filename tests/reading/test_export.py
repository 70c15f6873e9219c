"""A snapshot keeps what a decision reads, and nothing that may hold a secret."""

import json
from collections.abc import Collection
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from tests.support.builders import (
    Object,
    catalog,
    claim,
    inject_request,
    pinned_vm_pod,
    request,
    share_manager_pod,
    virt_launcher,
)
from tests.support.fake_api_server import ApiServer
from tests.support.fleet import vm
from tests.support.paths import ROOT
from tests.support.random_clusters import placement_cases
from webhook.catalog.kinds import kinds, tool_kinds
from webhook.cluster.client import ClusterClient
from webhook.cluster.credentials import Api
from webhook.fleet.rendering.next_pod import rendered_pod
from webhook.fleet.rendering.template import Rendering
from webhook.placement.settings import OPT_IN_ANNOTATIONS, Settings
from webhook.reading.export import export
from webhook.reading.export import reduced as reduced_raw

KINDS = {kind.name: kind for kind in (*kinds("longhorn-system"), *tool_kinds("longhorn-system"))}
RECORDED = json.loads((ROOT / "tests/data/rendered-pods.json").read_text())
SECRET = "the-passphrase"


def reduced(item: Object, opt_in: Collection[str] = OPT_IN_ANNOTATIONS, kind: str = "") -> Object:
    return reduced_raw(KINDS[kind or item["kind"]], json.dumps(item).encode(), opt_in)


def with_secrets(item: Object) -> Object:
    """Return an object with a secret in each field that a snapshot must not have."""
    planted = deepcopy(item) | {"unknown": SECRET}
    metadata = planted["metadata"] | {"managedFields": [{"fieldsV1": {"f:secret": SECRET}}], "selfLink": SECRET}
    keys = ("kubectl.kubernetes.io/last-applied-configuration", "example.com/token")
    metadata["annotations"] = metadata.get("annotations", {}) | dict.fromkeys(keys, SECRET)
    planted["metadata"] = metadata
    for part in ("spec", "status"):
        planted[part] = planted.get(part, {}) | {"unknown": {"nested": [SECRET]}}
    _plant_in_pod(planted["spec"])
    _plant_in_pod(planted["spec"].get("template", {}).get("spec", {}))
    if "longhorn.io/component" not in metadata.get("labels", {}):  # the image of a share-manager is kept
        for container in planted["spec"].get("containers", []):
            container["image"] = SECRET
    for condition in planted["status"].get("conditions", []):
        condition["message"] = SECRET
    return planted


def _plant_in_pod(spec: Object) -> None:
    for container in [*spec.get("containers", []), *spec.get("initContainers", [])]:
        container |= {"env": [{"name": "PASSPHRASE", "value": SECRET}], "args": [SECRET], "command": [SECRET]}
        container |= {"envFrom": [{"secretRef": {"name": SECRET}}], "livenessProbe": {"exec": SECRET}}
    if "volumes" in spec:
        spec["volumes"].append({"name": SECRET, "cloudInitNoCloud": {"userData": SECRET}, "secret": {"name": SECRET}})
        spec["volumes"].append({"name": "a", "dataVolume": {"name": "a", "unknown": SECRET}, "csi": {"a": SECRET}})


@hypothesis_settings(max_examples=300)
@given(placement_cases())
def test_a_decision_on_a_snapshot_is_the_decision_on_the_cluster(case: Object) -> None:
    cluster = [with_secrets(item) for item in (*case["nodes"], *case["pods"], case["pvc"], case["pv"])]
    pod = with_secrets(case["pod"])
    kept = [reduced(item) for item in cluster]
    live = inject_request(request(pod), catalog(*cluster), Settings())
    assert inject_request(request(pod), catalog(*kept), Settings()).patch == live.patch
    assert inject_request(request(reduced(pod)), catalog(*kept), Settings()).decision == live.decision
    assert SECRET not in json.dumps([reduced(pod), *kept])


def test_of_images_annotations_and_messages_only_those_that_a_decision_reads_are_kept() -> None:
    images = [reduced(pod)["spec"]["containers"][0].get("image") for pod in (share_manager_pod(), virt_launcher())]
    assert images == ["image", None]
    pod = virt_launcher(annotations={"example.com/co-schedule": "true", "kubevirt-scheduler/co-schedule-claim": "a"})
    pod["metadata"]["annotations"] |= {"example.com/other": "x", "kubevirt.io/domain": "vm1"}
    assert reduced(pod, ["example.com/co-schedule"])["metadata"]["annotations"] == {
        key: value for key, value in pod["metadata"]["annotations"].items() if key != "example.com/other"
    }
    unschedulable = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
    pod = pinned_vm_pod() | {"status": {"conditions": [unschedulable, {"type": "Ready", "message": SECRET}]}}
    assert reduced(pod)["status"]["conditions"] == [unschedulable, {"type": "Ready"}]


def test_of_an_ephemeral_volume_no_template_is_kept_and_of_mounts_only_their_bind_options() -> None:
    template = {"metadata": {"annotations": {"note": SECRET}}, "spec": {"storageClassName": "fast"}}
    plain = {"name": "disk", "mountPath": f"/{SECRET}"}
    containers = [{"name": "a", "volumeMounts": [plain]}, {"name": "b", "volumeMounts": [{"bindMountOptions": ["x"]}]}]
    spec = {"volumes": [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}], "containers": containers}
    kept = reduced(virt_launcher("vm1") | {"spec": spec})
    assert SECRET not in json.dumps(kept)
    assert kept["spec"]["volumes"] == [{"name": "scratch", "ephemeral": {}}]
    assert [each.get("volumeMounts") for each in kept["spec"]["containers"]] == [None, [{"bindMountOptions": ["x"]}]]


@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda case: case["name"])
def test_the_pod_of_a_vm_is_predicted_from_the_fields_that_are_kept(case: Any) -> None:
    """Of a live cluster, neither the architecture nor SEV, vTPMs and KubeVirt's own requests were decoded."""
    stopped = {"kind": "VirtualMachine", "metadata": {"name": "vm1"}, "spec": {"template": case["template"]}}
    kubevirt = {"kind": "KubeVirt", "metadata": {"name": "kubevirt"}} | case["kubevirt"]
    whole, kept = (
        rendered_pod(one, rendering=Rendering.of(by), uids=RECORDED["uids"])["spec"]
        for one, by in ((stopped, kubevirt), (reduced(stopped), reduced(kubevirt)))
    )
    assert kept == whole


def test_of_a_vms_probes_and_of_its_launch_security_no_contents_are_kept() -> None:
    probe = {"exec": {"command": [SECRET]}}
    sev = {"session": SECRET, "dhCert": SECRET, "policy": {"encryptedState": True}}
    kept = reduced(vm(livenessProbe=probe, readinessProbe=probe, domain={"launchSecurity": {"sev": sev}}))
    assert SECRET not in json.dumps(kept)
    spec = kept["spec"]["template"]["spec"]
    assert spec["livenessProbe"] == spec["readinessProbe"] == {"exec": {}}
    assert spec["domain"]["launchSecurity"] == {"sev": {"policy": {"encryptedState": True}}}


@pytest.mark.parametrize("value", [None, 1, "x", [], ["x"], [[1]], {}, {"a": None}])
@pytest.mark.parametrize("field", ["metadata", "spec", "status"])
def test_a_malformed_object_is_reduced_without_an_error(field: str, value: Any) -> None:
    for kind in (name for name, each in KINDS.items() if not each.typed):
        reduced(virt_launcher() | {field: value}, kind=kind)
        reduced({"metadata": {"annotations": value}, "spec": {"containers": value, "volumes": value}}, kind=kind)
        reduced({"status": {"conditions": value, "containerStatuses": value}}, kind=kind)


def test_a_malformed_object_of_a_typed_kind_is_omitted_with_its_field() -> None:
    omitted = list[tuple[str, str, bool]]()
    with ApiServer() as server:
        server.put(claim(), claim("broken", volumeMode=["Block"]))
        client = ClusterClient(Api(server.url))
        kept = list(export(client, "longhorn-system", (), lambda *each: omitted.append(each)))
    assert [each["metadata"]["name"] for each in kept if each["kind"] == "PersistentVolumeClaim"] == ["disk1"]
    assert ("PersistentVolumeClaim default/broken", "spec.volumeMode: expected str, got array", False) in omitted
