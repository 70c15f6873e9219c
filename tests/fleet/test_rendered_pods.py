"""The predicted pod of a stopped VM runs where the pod runs that KubeVirt's own virt-controller rendered.

tests/data/rendered-pods.json has pods of `RenderLaunchManifest`, recorded on 2026-11-27 from KubeVirt d923fdb8 (August
2026), after its defaults, for VMs that were written for it: placement, labels and claims. On 2026-11-28, what their
containers request was recorded from the same KubeVirt.
"""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from tests.support.builders import KINDS, Object, node, typed
from tests.support.fleet import inventory
from tests.support.paths import ROOT
from webhook.fleet.rendering.next_pod import rendered_pod
from webhook.fleet.rendering.template import Rendering
from webhook.placement.objects.facts import Node
from webhook.placement.objects.resources import amounts

RECORDED = json.loads((ROOT / "tests/data/rendered-pods.json").read_text())
# Each node that runs VMs has them.
DEVICES = frozenset(f"devices.kubevirt.io/{name}" for name in ("kvm", "tun", "vhost-net", "vhost-vsock"))
PLACEMENT = ("affinity", "tolerations", "topologySpreadConstraints", "schedulerName")


@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda case: case["name"])
def test_the_predicted_pod_runs_where_the_rendered_one_runs(case: Any) -> None:
    nodes = inventory(*(node(each["name"], labels=each["labels"]) for each in case["nodes"])).store.nodes.values()
    pod = rendered(case, nodes)
    recorded, spec = case["pod"], pod["spec"]
    # virt-handler gives nodes both labels, and older versions only the one without a prefix.
    selector = {key.replace("kubevirt.io/cpumanager", "cpumanager"): "true" for key in recorded["nodeSelector"]}
    assert spec["nodeSelector"] == {**selector, **_others(recorded["nodeSelector"])}
    assert {key: spec[key] for key in PLACEMENT if spec.get(key)} == {
        key: recorded[key] for key in PLACEMENT if key in recorded
    }
    assert list(typed(pod).claims) == recorded["claims"]
    assert pod["metadata"]["labels"].items() <= recorded["labels"].items()


@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda case: case["name"])
def test_the_predicted_containers_request_what_the_rendered_ones_request(case: Any) -> None:
    spec = rendered(case)["spec"]
    for kind, recorded in (("containers", "containers"), ("initContainers", "restartingInitContainers")):
        expected = {name: _without_devices(amounts(requests, kind)) for name, requests in case["pod"][recorded].items()}
        assert {each["name"]: amounts(each["resources"]["requests"], kind) for each in spec[kind]} == expected
    assert {each["restartPolicy"] for each in spec["initContainers"]} <= {"Always"}


def rendered(case: Any, nodes: Iterable[Node] = ()) -> Object:
    """Render a pod from the fields of a VM, and of KubeVirt's object, that are kept."""
    metadata = {"name": "vm1", "namespace": "default"}
    vm = KINDS["VirtualMachine"].convert({"metadata": metadata, "spec": {"template": case["template"]}})
    kubevirt = KINDS["KubeVirt"].convert(case["kubevirt"])
    return rendered_pod(vm, rendering=Rendering.of(kubevirt, nodes), uids=RECORDED["uids"])


def _without_devices(requests: dict[str, int]) -> dict[str, int]:
    return {name: amount for name, amount in requests.items() if name not in DEVICES}


def _others(selector: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in selector.items() if value != "true"}
