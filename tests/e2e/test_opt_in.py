"""A real API server sends the metadata of namespaces and StorageClasses, by which they opt VMs in and out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.longhorn import STORAGE, Longhorn
from tests.support.scenario import Scenario
from tests.support.webhook_process import Webhook, create_service_account
from webhook.placement.settings import OPT_IN_ANNOTATIONS

pytestmark = pytest.mark.controlplane

KEY = OPT_IN_ANNOTATIONS[0]


@pytest.fixture(scope="module")
def by_namespace(plane: ControlPlane, longhorn: Longhorn) -> Iterator[Webhook]:
    """A webhook with the opt-in by namespace."""
    token = create_service_account(plane, "by-namespace")
    settings = {"opt_in": "namespace", "longhorn_namespace": longhorn.namespace}
    kubeconfig = plane.write_kubeconfig(plane.folder / "by-namespace-kubeconfig", token)
    with Webhook(plane, "by-namespace", kubeconfig, settings) as webhook:
        yield webhook.register(share_managers=False)


def test_a_label_and_an_annotation_opt_vms_in_and_out_at_once(plain_scenario: Scenario, by_namespace: Webhook) -> None:
    scenario, request = plain_scenario, plain_scenario.plane.request
    scenario.add_nodes(2)
    scenario.use_webhook(by_namespace)
    _, node = scenario.add_attached_volume()
    namespace, storage_class = (
        f"/api/v1/namespaces/{scenario.namespace}",
        f"{STORAGE}/storageclasses/{scenario.namespace}",
    )

    def decision(opt_in: str | None = None) -> str:
        return scenario.decision("disk1", opt_in=opt_in)

    def wait_for(ending: str) -> None:
        """Wait for the watch: the decision on a VM without an annotation ends with these words, or there is none."""
        scenario.plane.wait(lambda: decision().endswith(ending) and bool(decision()) == bool(ending), 20, ending)

    assert decision() == ""
    assert decision("true").startswith(f"CoScheduled: pinned to {node}")

    def label(value: str | None) -> Object:
        return request("PATCH", namespace, {"metadata": {"labels": {KEY: value}}})

    label("true")
    wait_for("(opted in by its namespace)")
    assert decision("false") == ""
    label("false")
    wait_for("")
    request("PATCH", storage_class, {"metadata": {"annotations": {KEY: "true"}}})
    assert decision() == ""
    label(None)
    wait_for("(opted in by its StorageClass)")
    vm = scenario.start_vm("vm1", "disk1", opt_in=None)
    assert scenario.get(vm)["spec"]["nodeName"] == node
    # A second VM is one of a pool, whose shared claim doesn't decide: 12 of 12 such VMs ran on one of six nodes.
    scenario.plane.wait(lambda: decision().startswith("SharedClaimOnly"), 20, "the first VM in the caches")
    assert decision("true").startswith(f"CoScheduled: pinned to {node}")
    assert decision("false") == ""
    assert {line["opted_in_by"] for line in by_namespace.log() if line.get("event") == "decided"} == {
        "annotation", "namespace", "nothing", "storage-class"
    }  # fmt: skip
