"""`benchmark` on real nodes, as a user runs it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.nodes.test_drain import run_as_user
from tests.support.measured import Measured
from tests.support.nodes.guests import NodeScenario
from tests.support.playground.simulation import STORAGE_CLASS, Provisioner
from tests.support.reconcile_loop import ReconcileLoop

pytestmark = [pytest.mark.nodes, pytest.mark.needs("buildah", "ip", "mkfs", "mmdebstrap", "nft", "nodes")]


@pytest.fixture
def storage_class(guests: NodeScenario) -> Iterator[str]:
    """A StorageClass whose claims Longhorn provisions."""
    name = STORAGE_CLASS["metadata"]["name"]
    loop = ReconcileLoop(guests.plane, "provisioner", Provisioner(guests).reconcile)
    loop.start()
    yield name
    loop.stop()
    guests.plane.request("DELETE", f"/apis/storage.k8s.io/v1/storageclasses/{name}")


def test_benchmark_measures_both_sides_with_o_direct_and_deletes_everything(
    guests: NodeScenario, storage_class: str, measured: Measured
) -> None:
    command = f"kubevirt-scheduler benchmark --storage-class {storage_class} --yes -o json"
    found = json.loads(run_as_user(guests, command))
    for row in found["operations"]:
        medians = ", ".join(f"{side} {row[side]['p50']:.2f} ms" for side in found["nodes"])
        measured(f"benchmark, {row['operation']}: {medians}")
    assert found["direct"], found
    assert found["nodes"]["beside"] != found["nodes"]["elsewhere"]
    left = guests.plane.kubectl("get", "pvc,namespace", "-A", "-l", "kubevirt-scheduler/benchmark", "-o", "name")
    assert left == ""
