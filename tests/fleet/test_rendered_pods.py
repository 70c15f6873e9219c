"""The predicted pod of a stopped VM runs where the pod runs that KubeVirt's own virt-controller rendered.

tests/data/rendered-pods.json has pods of `RenderLaunchManifest`, recorded on 2026-11-27 from KubeVirt d923fdb8 (August
2026), after its defaults, for VMs that were written for it: placement, labels and claims.
"""

import json
from typing import Any

import pytest

from tests.support.builders import node, typed
from tests.support.fleet import inventory
from tests.support.paths import ROOT
from webhook.fleet.next_pod import rendered_pod
from webhook.fleet.vm_pod_template import Rendering

RECORDED = json.loads((ROOT / "tests/data/rendered-pods.json").read_text())
PLACEMENT = ("affinity", "tolerations", "topologySpreadConstraints", "schedulerName")


@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda case: case["name"])
def test_the_predicted_pod_runs_where_the_rendered_one_runs(case: Any) -> None:
    nodes = inventory(*(node(each["name"], labels=each["labels"]) for each in case["nodes"])).store.nodes.values()
    vm = {"metadata": {"name": "vm1", "namespace": "default"}, "spec": {"template": case["template"]}}
    pod = rendered_pod(vm, rendering=Rendering.of(case["kubevirt"], nodes), uids=RECORDED["uids"])
    recorded, spec = case["pod"], pod["spec"]
    # virt-handler gives nodes both labels, and older versions only the one without a prefix.
    selector = {key.replace("kubevirt.io/cpumanager", "cpumanager"): "true" for key in recorded["nodeSelector"]}
    assert spec["nodeSelector"] == {**selector, **_others(recorded["nodeSelector"])}
    assert {key: spec[key] for key in PLACEMENT if spec.get(key)} == {
        key: recorded[key] for key in PLACEMENT if key in recorded
    }
    assert list(typed(pod).claims) == recorded["claims"]
    assert pod["metadata"]["labels"].items() <= recorded["labels"].items()


def _others(selector: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in selector.items() if value != "true"}
