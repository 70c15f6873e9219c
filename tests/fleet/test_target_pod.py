"""The target pod of a migration is the pod that KubeVirt would create."""

import pytest

from tests.support.builders import HOSTNAME, REQUIRED, Object
from tests.support.fleet import vm_pod, vmi
from webhook.fleet.next_pod import target_pod

MODEL, FEATURE = "cpu-model-migration.node.kubevirt.io/Haswell", "cpu-feature.node.kubevirt.io/vmx"
SOURCE = {
    "host-model-cpu.node.kubevirt.io/Haswell": "true",
    "host-model-required-features.node.kubevirt.io/vmx": "true",
    "cpu-vendor.node.kubevirt.io/Intel": "true",
}
VENDOR, OTHER = {"cpu-vendor.node.kubevirt.io/Intel": "true"}, {"cpu-vendor.node.kubevirt.io/AMD": "true"}
HOST_MODEL = vmi(domain={"cpu": {"model": "host-model"}})
OWN = {"labelSelector": {"matchLabels": {"kubevirt.io/created-by": "uid-of-vm1"}}, "topologyKey": HOSTNAME}


def test_the_target_pod_has_no_name_and_stays_away_from_its_source() -> None:
    other = {"labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": HOSTNAME}
    pod = vm_pod(affinity={"podAntiAffinity": {REQUIRED: [other]}})
    target = target_pod(pod, pod, vmi(), "a", {})
    assert "name" not in target["metadata"]
    assert target["metadata"]["labels"]["kubevirt.io/migrationJobUID"]
    assert target["spec"]["affinity"] == {"podAntiAffinity": {REQUIRED: [other, OWN]}}


@pytest.mark.parametrize(
    ("selector", "of_vmi", "source", "expected"),
    [
        ({"disk": "ssd"}, vmi(), {}, {HOSTNAME: "a", "disk": "ssd"}),
        ({HOSTNAME: "b"}, vmi(), {}, {HOSTNAME: "b"}),
        ({}, vmi(), SOURCE, {HOSTNAME: "a"} | VENDOR),
        (OTHER, vmi(), SOURCE, {HOSTNAME: "a"} | OTHER),
        ({}, HOST_MODEL, SOURCE, {HOSTNAME: "a", MODEL: "true", FEATURE: "true"} | VENDOR),
        ({MODEL: "true"}, HOST_MODEL, SOURCE, {HOSTNAME: "a", MODEL: "true"} | VENDOR),
    ],
    ids=["own selector", "own hostname wins", "vendor", "own vendor wins", "host-model", "host-model, migrated before"],
)  # fmt: skip
def test_the_target_pod_selects_its_node(selector: Object, of_vmi: Object, source: Object, expected: Object) -> None:
    pod = vm_pod(nodeSelector=selector)
    assert target_pod(pod, pod, of_vmi, "a", source)["spec"]["nodeSelector"] == expected
