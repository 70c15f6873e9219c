"""The traffic of a VM that crosses the network: the disks whose share-manager is on another node."""

from typing import Any

import pytest

from tests.support.builders import Object, claim, node, storage, volume
from tests.support.fleet import statuses, vm, vm_pod, vmi
from webhook.fleet.traffic import Traffic, crossing, query, reaches, read_rates, summarize_traffic

READ, WRITE = "kubevirt_vmi_storage_iops_read_total", "kubevirt_vmi_storage_write_traffic_bytes_total"
DISKS = {"remote": Traffic(10, 1), "local": Traffic(20, 2), "block": Traffic(40, 4), "config": Traffic(80, 8)}
CLUSTER = [
    *storage("remote", "node-a"),
    *storage("local", "node-b"),
    claim("block", volumeMode="Block"),
    volume("block"),
    node("node-a"),
    node("node-b"),
    vm(),
    vm_pod(node="node-b", claims=["remote", "local", "block"]),
]
VOLUMES: list[Object] = [
    {"name": "remote", "persistentVolumeClaim": {"claimName": "remote"}},
    {"name": "local", "dataVolume": {"name": "local"}},
    {"name": "block", "persistentVolumeClaim": {"claimName": "block"}},
    {"name": "config", "cloudInitNoCloud": {}},
]


def sample(metric: str, value: Any, drive: str = "disk", name: str = "vm1") -> Object:
    return {"metric": {"namespace": "shop", "name": name, "drive": drive, "metric": metric}, "value": [0, value]}


def test_the_query_asks_for_each_metric_by_drive() -> None:
    parts = query().split(" or ")
    assert len(parts) == 4
    assert all("sum by (namespace, name, drive) (rate(kubevirt_vmi_storage_" in part for part in parts)


def test_traffic_reaches_a_limit_by_operations_or_by_bytes() -> None:
    for least, expected in ((Traffic(), True), (Traffic(5, 0), True), (Traffic(0, 8), False), (Traffic(6, 7), True)):
        assert reaches(Traffic(5, 7), least) is expected


def test_the_rates_of_a_disk_are_summed_and_other_samples_ignored() -> None:
    found = read_rates([
        sample(READ, "1.5"),
        sample("kubevirt_vmi_storage_iops_write_total", "2"),
        sample(WRITE, "1e6"),
        sample(WRITE, "NaN"),
        sample(WRITE, "1e308"),
        sample(WRITE, "1e308"),
        sample(WRITE, "much"),
        sample("other", "1"),
        sample(READ, "1", name="vm2") | {"value": None},
        sample(READ, "1", name="vm3") | {"value": []},
    ])  # fmt: skip
    assert found == {("shop", "vm1"): {"disk": Traffic(1e6, 3.5)}, ("shop", "vm2"): {"disk": Traffic()}}


@pytest.mark.parametrize(
    ("drives", "volumes", "expected"),
    [
        (DISKS, VOLUMES, Traffic(10, 1)),
        ({"vda": Traffic(10, 1), "vdb": Traffic(20, 2)}, VOLUMES, Traffic(30, 3)),
        (DISKS, VOLUMES[:1], Traffic(150, 15)),
        ({}, VOLUMES, Traffic()),
    ],
    ids=["named disks", "disks without names", "disks that the VMI does not name", "no rates"],
)
def test_only_disks_of_a_running_vm_that_another_node_serves_cross_the_network(
    drives: dict[str, Traffic], volumes: list[Object], expected: Traffic
) -> None:
    found = statuses(*CLUSTER, vmi(volumes=volumes))["vm1"]
    assert crossing(found, {("default", "vm1"): drives}) == expected
    stopped = statuses(*CLUSTER[:-1])["vm1"]
    assert crossing(stopped, {("default", "vm1"): drives}) == Traffic()


def test_the_summary_says_how_few_vms_make_most_of_the_traffic() -> None:
    words = "111 operations and 100.0 MB per second cross the network; 2 of the 4 VMs make 90% of it"
    traffic = [Traffic(1e6, 1), Traffic(), Traffic(89e6, 100), Traffic(10e6, 9), Traffic(0, 1)]
    assert summarize_traffic(traffic) == {"operations": 111, "bytes": 100_000_000, "vms": 4, "makers": 2, "text": words}
    assert summarize_traffic([])["text"] == "0 operations and 0.0 MB per second cross the network"
