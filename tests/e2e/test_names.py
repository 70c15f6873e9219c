"""Names: the longest ones, the same ones in two namespaces, and a Longhorn in another namespace than its default."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.controlplane.plane import ControlPlane
from tests.support.longhorn import Longhorn
from tests.support.scenario import Scenario
from tests.support.webhook_process import Webhook

pytestmark = pytest.mark.controlplane

LONGEST_NAME = "disk." + "a" * 248


@pytest.fixture
def other_namespace(plane: ControlPlane, longhorn: Longhorn, webhook: Webhook) -> Iterator[Scenario]:
    scenario = Scenario(plane, longhorn, webhook)
    yield scenario
    scenario.close()


def test_vms_with_equal_claim_names_in_two_namespaces_go_to_their_own_share_managers(
    scenario: Scenario, other_namespace: Scenario
) -> None:
    both = scenario, other_namespace
    for each in both:
        each.add_nodes(3)
    nodes = [each.add_attached_volume("disk1")[1] for each in both]
    assert [each.wait_running(each.start_vm("vm1", "disk1")) for each in both] == nodes


def test_a_vm_is_placed_whatever_the_names_of_its_claim_volume_and_node(scenario: Scenario) -> None:
    """The longest names, names with dots, and nodes whose label `hostname` names another node."""
    names = [scenario.add_node(f"{scenario.namespace}.rack-{number}.example.com") for number in range(3)]
    scenario.wait_ready(names)
    for name, hostname in zip(names, [*names[1:], names[0]], strict=True):
        scenario.change_node(name, {"metadata": {"labels": {"kubernetes.io/hostname": hostname}}})
    assert len(LONGEST_NAME) == 253
    # A label holds the volume's name, so the name has at most 63 characters.
    volume, node = scenario.add_attached_volume(LONGEST_NAME, volume=f"vol-{scenario.namespace}-".ljust(63, "x"))
    assert len(volume) == 63
    assert scenario.wait_running(scenario.start_vm("vm1", LONGEST_NAME)) == node


@pytest.fixture
def scenario_with_own_longhorn(plane: ControlPlane, kubeconfig: Path) -> Iterator[Scenario]:
    """A scenario with Longhorn in the namespace `storage-system`, for which its webhook is configured."""
    longhorn = Longhorn(plane, "storage-system")
    longhorn.install()
    longhorn.start()
    with Webhook(plane, "other-longhorn", kubeconfig, {"longhorn_namespace": longhorn.namespace}) as webhook:
        scenario = Scenario(plane, longhorn, webhook.register())
        yield scenario
        scenario.close()
    longhorn.stop()


def test_vms_are_placed_with_longhorn_in_another_namespace(
    scenario_with_own_longhorn: Scenario, webhook: Webhook
) -> None:
    scenario = scenario_with_own_longhorn
    scenario.add_nodes(4)
    scenario.add_volume()
    scenario.wait_bound("disk1")
    # Cold start: the share-manager follows the VM. Then warm start: a decision for the share-manager's node.
    first = scenario.start_vm("vm1", "disk1")
    node = scenario.wait_share_manager(scenario.volumes[0], "disk1")
    assert scenario.wait_running(first) == node
    # The webhook for the default namespace doesn't see that share-manager.
    scenario.use_webhook(webhook)
    assert scenario.decision("disk1").startswith("ColdStart: ")
