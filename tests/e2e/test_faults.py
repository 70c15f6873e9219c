"""An API server that is away for seconds and has forgotten its history: decisions are soon correct again."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.controlplane.plane import ControlPlane
from tests.support.longhorn import GROUP
from tests.support.measured import Measured
from tests.support.scenario import Scenario
from tests.support.webhook_process import Webhook

pytestmark = pytest.mark.controlplane

RECOVERY_LIMIT = 60.0  # seconds; decisions are correct again within 5 s, but a machine may stall meanwhile
OUTAGE = 5.0  # seconds


def cpu_seconds(webhook: Webhook) -> float:
    """Return the CPU time of the process and its workers so far."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in webhook.pids()]
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


def recovery(webhook: Webhook, plane: ControlPlane) -> float:
    """Wait for the API server, then until the webhook reports no problems; return the time of the second wait."""
    plane.wait(lambda: plane.request("GET", "/readyz"), 90, "the API server")
    began = time.monotonic()
    plane.wait(lambda: not json.loads(webhook.get("/readyz")[1])["problems"], RECOVERY_LIMIT, "no problems")
    return time.monotonic() - began


def test_decisions_recover_after_an_api_server_outage_in_which_the_webhook_is_idle(
    scenario: Scenario, plane: ControlPlane, webhook: Webhook, measured: Measured
) -> None:
    scenario.add_nodes(3)
    volume, node = scenario.add_attached_volume()
    # Before the outage: a controller manager that has just started may take a minute to attach a new volume.
    unattached = scenario.add_volume("disk2")
    scenario.wait_bound("disk2")
    plane.wait(lambda: scenario.target_node("disk1") == node, 20, "a decision for the VM")
    managers = f"{GROUP}/namespaces/{scenario.longhorn.namespace}/sharemanagers"
    version = plane.request("GET", managers)["metadata"]["resourceVersion"]
    plane.request("PATCH", f"{managers}/{volume}", {"metadata": {"labels": {"test/changed": "true"}}})
    before = cpu_seconds(webhook)
    plane.stop_apiserver()
    plane.compact_etcd()
    with pytest.raises(ConnectionRefusedError):
        plane.request("GET", "/readyz")
    time.sleep(OUTAGE)
    used = cpu_seconds(webhook) - before
    assert webhook.get("/readyz")[0] == 200  # the webhook decides from its caches
    with ThreadPoolExecutor() as pool:
        recovering = pool.submit(recovery, webhook, plane)
        plane.start_apiserver()
    recovered = recovering.result()
    assert scenario.target_node("disk1") == node
    # The webhook learns of this share-manager only through working watches.
    scenario.create_consumer("disk2")
    second = scenario.longhorn.wait_running(unattached)
    plane.wait(lambda: scenario.target_node("disk2") == second, 20, "the decision for the new share-manager")
    # The webhook has relisted: a watch that continued would get what tests/cluster/test_reflector.py simulates.
    watch = f"{managers}?watch=1&timeoutSeconds=10&resourceVersion={version}"
    event = plane.wait(lambda: plane.request("GET", watch), 20, "an event")  # 429 until the API server has relisted
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
    measured(f"outage: {used:.2f} s of CPU, correct after {recovered:.1f} s")
    assert used < 0.05 * OUTAGE
    assert scenario.wait_running(scenario.start_vm("vm1", "disk1")) == node
