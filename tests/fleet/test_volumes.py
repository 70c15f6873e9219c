"""Where Longhorn keeps the data of a volume."""

import pytest

from tests.support.builders import Object, storage
from tests.support.fleet import LATER, inventory, longhorn_volume, replica, status, vm, vm_pod
from webhook.fleet.volumes import VolumeData

DISK = {"volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "disk1"}}]}


def test_the_healthy_replicas_of_a_volume_are_known_by_their_nodes() -> None:
    found = inventory(longhorn_volume(), replica("node-a"), replica("node-b"), replica("node-c", "vol-other"))
    assert found.volume_data() == {"vol-disk1": VolumeData("best-effort", "node-a", frozenset({"node-a", "node-b"}))}


@pytest.mark.parametrize(
    "unhealthy",
    [
        replica(failedAt=LATER),
        replica(healthyAt=""),  # Longhorn rebuilds it
        replica(deleting=True),
        replica(nodeID=""),  # not scheduled yet
    ],
    ids=["failed", "rebuilding", "deleted", "unscheduled"],
)
def test_a_replica_without_complete_data_does_not_count(unhealthy: Object) -> None:
    assert inventory(longhorn_volume(), unhealthy).volume_data()["vol-disk1"].healthy == frozenset()


def test_without_any_replica_the_healthy_ones_are_unknown() -> None:
    assert inventory(longhorn_volume()).volume_data()["vol-disk1"].healthy is None


def test_the_volume_that_decides_has_a_replica_beside_its_share_manager_or_not() -> None:
    for found in status(*storage(), vm(), vm_pod()), status(*storage(), vm(**DISK)):
        data = inventory(longhorn_volume(), replica("node-a")).volume_data()[found.volume]
        assert [data.is_local_to(node) for node in (found.storage_node, "node-b", None)] == [True, False, None]


def test_a_volume_with_unexpected_fields_has_no_data() -> None:
    malformed = longhorn_volume() | {"spec": {"dataLocality": []}, "status": None}
    assert inventory(malformed).volume_data()["vol-disk1"] == VolumeData()
