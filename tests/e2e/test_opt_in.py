"""A real API server sends the metadata of namespaces and StorageClasses, and an observer changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.longhorn import STORAGE, Longhorn
from tests.support.scenario import DECISION, Scenario
from tests.support.webhook_process import Webhook, create_service_account
from webhook.cli import commands
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


def decision(scenario: Scenario, opt_in: str | None = None) -> str:
    """Return the decision that a VM would get now, empty if the webhook doesn't handle it."""
    created = scenario.dry_run(scenario.vm_pod("trial", "disk1", opt_in=opt_in))
    return str(created["metadata"]["annotations"].get(DECISION, ""))


def wait_for(scenario: Scenario, ending: str) -> None:
    """Wait for the watch: the decision on a VM without an annotation ends with these words, or there is none."""
    scenario.plane.wait(lambda: decision(scenario).endswith(ending) and bool(decision(scenario)) == bool(ending),
                        20, f"a decision that ends with {ending!r}")  # fmt: skip


def test_a_label_and_an_annotation_opt_vms_in_and_out_at_once(plain_scenario: Scenario, by_namespace: Webhook) -> None:
    scenario, request = plain_scenario, plain_scenario.plane.request
    scenario.add_nodes(2)
    scenario.use_webhook(by_namespace)
    _, node = scenario.add_attached_volume()
    namespace, storage_class = (
        f"/api/v1/namespaces/{scenario.namespace}",
        f"{STORAGE}/storageclasses/{scenario.namespace}",
    )
    assert decision(scenario) == ""
    assert decision(scenario, "true").startswith(f"CoScheduled: pinned to {node}")

    def label(value: str | None) -> Object:
        return request("PATCH", namespace, {"metadata": {"labels": {KEY: value}}})

    label("true")
    wait_for(scenario, "(opted in by its namespace)")
    assert decision(scenario, "false") == ""
    label("false")
    wait_for(scenario, "")
    request("PATCH", storage_class, {"metadata": {"annotations": {KEY: "true"}}})
    assert decision(scenario) == ""
    label(None)
    wait_for(scenario, "(opted in by its StorageClass)")
    vm = scenario.start_vm("vm1", "disk1", opt_in=None)
    assert scenario.get(vm)["spec"]["nodeName"] == node
    # A second VM is one of a pool, whose shared claim doesn't decide: 12 of 12 such VMs ran on one of six nodes.
    scenario.plane.wait(lambda: decision(scenario).startswith("SharedClaimOnly"), 20, "the first VM in the caches")
    assert decision(scenario, "true").startswith(f"CoScheduled: pinned to {node}")
    assert decision(scenario, "false") == ""
    assert {line["opted_in_by"] for line in by_namespace.log() if line.get("event") == "decided"} == {
        "annotation", "namespace", "nothing", "storage-class"
    }  # fmt: skip


def test_an_observer_decides_on_every_vm_and_changes_none(
    plane: ControlPlane, plain_scenario: Scenario, longhorn: Longhorn, kubeconfig: Path
) -> None:
    scenario, settings = plain_scenario, {"action": "observe", "longhorn_namespace": longhorn.namespace}
    scenario.add_nodes(1)
    with Webhook(plane, "observer", kubeconfig, settings) as webhook:
        label = {"metadata": {"labels": {"test/served-by": webhook.name}}}
        plane.request("PATCH", f"/api/v1/namespaces/{scenario.namespace}", label)
        webhook.register(share_managers=False)
        arguments = ["doctor", "--calls=60", "-n", scenario.namespace, "--kubeconfig", str(plane.kubeconfig)]
        checked = CliRunner().invoke(commands, arguments)  # an administrator sends the test pod
        assert checked.exit_code == 0, checked.output
        pod = scenario.create(scenario.vm_pod("vm1", "no-such-claim", opt_in=None))
        assert DECISION not in scenario.annotations(pod)
        (line,) = plane.wait(
            lambda: [each for each in webhook.log() if each.get("vm") == "vm1"], 20, "the line in the log"
        )
        assert (line["reason"], line["opted_in_by"]) == ("NoShareManager", "nothing")
