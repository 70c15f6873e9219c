"""Where Longhorn keeps the data of a volume."""

from typing import Any

import pytest

from tests.support.builders import Object, storage
from tests.support.fleet import LATER, inventory, longhorn_volume, replica, status, vm, vm_pod
from webhook.fleet.volumes import VolumeData

DISK = {"volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "disk1"}}]}


BOTH = [replica("node-a"), replica("node-b"), replica("node-c", "vol-other")]


@pytest.mark.parametrize(
    ("objects", "healthy", "used"),
    [
        ([longhorn_volume(), *BOTH], {"node-a", "node-b"}, {"node-a", "node-b"}),
        ([longhorn_volume(), replica(failedAt=LATER)], {}, {"node-a"}),
        ([longhorn_volume(), replica(healthyAt="", failedAt=LATER)], {}, {"node-a"}),
        ([longhorn_volume(), replica(healthyAt="")], {}, {}),  # Longhorn rebuilds it
        ([longhorn_volume(), replica(deleting=True)], {}, {"node-a"}),
        ([longhorn_volume(), replica(nodeID="")], {}, {""}),  # not scheduled yet
        ([longhorn_volume()], None, {}),
    ],
)
def test_the_nodes_of_replicas_are_known_if_any_replica_is(objects: list[Object], healthy: Any, used: Any) -> None:
    expected = None if healthy is None else frozenset(healthy)
    data = VolumeData("best-effort", "node-a", expected, frozenset(used))
    assert inventory(*objects).volume_data() == {"vol-disk1": data}
    unknown = longhorn_volume() | {"spec": {}, "status": {}}
    assert inventory(unknown).volume_data()["vol-disk1"] == VolumeData()


def test_the_volume_that_decides_has_a_replica_beside_its_share_manager_or_not() -> None:
    for found in status(*storage(), vm(), vm_pod()), status(*storage(), vm(**DISK)):
        data = inventory(longhorn_volume(), replica("node-a")).volume_data()[found.volume]
        assert [data.is_local_to(node) for node in (found.storage_node, "node-b", None)] == [True, False, None]
