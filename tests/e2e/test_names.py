"""Names at their limits, the same names in two namespaces, and Longhorn in another namespace than usual."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.controlplane.plane import ControlPlane
from tests.support.longhorn import Longhorn
from tests.support.scenario import World
from tests.support.webhook_process import Webhook

pytestmark = pytest.mark.controlplane

LONGEST = "disk." + "a" * 248


@pytest.fixture
def neighbour(plane: ControlPlane, longhorn: Longhorn, webhook: Webhook) -> Iterator[World]:
    world = World(plane, longhorn, webhook)
    yield world
    world.close()


def test_the_same_claim_in_two_namespaces_leads_to_two_nodes(world: World, neighbour: World) -> None:
    for each in world, neighbour:
        each.add_nodes(3)
    nodes = [each.warm_volume("disk1")[1] for each in (world, neighbour)]
    assert [each.running(each.start_vm("vm1", "disk1")) for each in (world, neighbour)] == nodes


def test_claims_and_nodes_may_have_dots_in_their_names(world: World) -> None:
    names = [world.add_node(f"{world.namespace}.rack-{number}.example.com") for number in range(3)]
    world.wait_ready(names)
    _, node = world.warm_volume("disk.of.vm-1")
    assert world.running(world.start_vm("vm-1", "disk.of.vm-1")) == node


def test_a_node_whose_hostname_label_is_not_its_name_is_meant_by_its_name(world: World) -> None:
    names = world.add_nodes(3)
    labels = dict(zip(names, [names[1], names[2], names[0]], strict=True))
    for name, hostname in labels.items():
        world.change_node(name, {"metadata": {"labels": {"kubernetes.io/hostname": hostname}}})
    _, node = world.warm_volume()
    assert world.running(world.start_vm("vm1", "disk1")) == node


def test_a_claim_and_its_volume_may_have_the_longest_names_that_kubernetes_takes(world: World) -> None:
    assert len(LONGEST) == 253
    world.add_nodes(3)
    # A label holds the volume's name, so it has 63 characters at most.
    world.add_volume(LONGEST, volume=f"vol-{world.namespace}-".ljust(63, "x"))
    world.wait_bound(LONGEST)
    world.create_user(LONGEST)
    node = world.served_on(world.volumes[0], LONGEST)
    assert world.running(world.start_vm("vm1", LONGEST)) == node


@pytest.fixture
def elsewhere(plane: ControlPlane, kubeconfig: Path) -> Iterator[World]:
    """A world whose Longhorn lives in another namespace, and whose webhook knows."""
    longhorn = Longhorn(plane, "storage-system")
    longhorn.install()
    longhorn.start()
    with Webhook(plane, "elsewhere", kubeconfig, {"longhorn_namespace": longhorn.namespace}) as webhook:
        world = World(plane, longhorn, webhook.register())
        yield world
        world.close()
    longhorn.stop()


def test_longhorn_may_live_in_another_namespace(elsewhere: World, webhook: Webhook) -> None:
    elsewhere.add_nodes(4)
    elsewhere.add_volume()
    elsewhere.wait_bound("disk1")
    # Cold, and then warm.
    first = elsewhere.start_vm("vm1", "disk1")
    node = elsewhere.served_on(elsewhere.volumes[0], "disk1")
    assert elsewhere.running(first) == node
    # The webhook of the usual namespace sees no share-manager there.
    elsewhere.serve(webhook)
    assert elsewhere.decision("disk1").startswith("NoShareManager: ")
