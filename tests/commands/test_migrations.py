"""What KubeVirt supports is read from its CRD and its configuration, and a migration is created once."""

from pathlib import Path

import pytest

from tests.support.builders import Object
from tests.support.fake_api_server import ApiServer
from tests.support.migrations import kubevirt, migration
from webhook.cluster.client import ClusterClient
from webhook.commands.recolocate import migrations
from webhook.fleet.relocation.rules import Move
from webhook.fleet.relocation.run import Limits, Migration

MOVE = Move("default", "vm1", "node-b", "node-a", "a.example")


@pytest.fixture
def client(server: ApiServer, tmp_path: Path) -> ClusterClient:
    return ClusterClient.connect(server.kubeconfig(tmp_path))


def test_the_limits_are_those_of_kubevirts_configuration(server: ApiServer, client: ClusterClient) -> None:
    assert migrations.with_own_limits(Limits(), client) == Limits()
    server.put(kubevirt(parallelMigrationsPerCluster=9, parallelOutboundMigrationsPerNode=1))
    assert migrations.with_own_limits(Limits(3), client) == Limits(3, cluster=9, per_node=1)


def test_a_migration_names_its_target_and_is_created_and_deleted_once(server: ApiServer, client: ClusterClient) -> None:
    uid, again = [migrations.create_migration(client, MOVE, "m1") for _ in range(2)]
    assert uid
    assert again == ""
    created = server.stored("virtualmachineinstancemigrations", ("default", "m1"))
    assert created["spec"] == {"vmiName": "vm1", "addedNodeSelector": {"kubernetes.io/hostname": "a.example"}}
    assert created["metadata"]["labels"] == {"kubevirt-scheduler/recolocate": "true"}
    assert created["metadata"]["annotations"] == {"kubevirt.io/migrationUnschedulablePodTimeoutSeconds": "60"}
    (found,) = migrations.list_migrations(client)
    assert found == Migration("default", "m1", "vm1", "", uid=uid, version=found.version)
    server.put(migration("m1", phase="Running"))
    assert not migrations.delete_migration(client, found)  # it has changed meanwhile
    (new,) = migrations.list_migrations(client)
    assert new.phase == "Running"
    for _ in range(2):  # once it is gone, there is nothing to delete
        assert migrations.delete_migration(client, new)
    assert migrations.list_migrations(client) == []


def warning(number: int, kind: str, name: str, reason: str, message: str) -> Object:
    created = f"2026-08-01T12:00:0{number}Z"
    metadata = {"name": f"event.{number}", "namespace": "default", "creationTimestamp": created}
    about = {"kind": kind, "name": name}
    return {"kind": "Event", "metadata": metadata, "involvedObject": about, "reason": reason, "message": message}


def test_the_events_say_why_a_migration_failed(server: ApiServer, client: ClusterClient) -> None:
    failed = Migration("default", "m1", "vm1", "Failed")
    assert migrations.failure_message(client, failed) == ""
    server.put(
        warning(1, migrations.KIND, "m1", "FailedMigration", "first"),
        warning(
            2, migrations.KIND, "m1", "FailedMigration", "Migration target pod was removed during active migration."
        ),
        warning(3, migrations.KIND, "m2", "FailedMigration", "of another migration"),
        warning(4, "Pod", "virt-launcher-vm2-abcde", "FailedScheduling", "of another VM"),
    )
    assert migrations.failure_message(client, failed) == "Migration target pod was removed during active migration."
    assert server.last("list", "events").query["fieldSelector"] == "type=Warning"
    unschedulable = "the scheduler found no node for the target pod"
    server.put(warning(0, migrations.KIND, "m1", migrations.UNSCHEDULABLE, "is currently unschedulable"))
    assert migrations.failure_message(client, failed) == unschedulable
    server.put(warning(5, "Pod", "virt-launcher-vm1-abcde", "FailedScheduling", "0/3 nodes are available"))
    assert migrations.failure_message(client, failed) == f"{unschedulable}: 0/3 nodes are available"
