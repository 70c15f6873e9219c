"""An API server that is away for seconds and has forgotten its history: decisions are soon correct again."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources of a process and its workers: threads, MiB of memory, and seconds of CPU time so far."""

    threads: int
    memory: float
    cpu: float


def usage(webhook: Webhook) -> Usage:
    threads, memory, cpu = 0, 0.0, 0.0
    for pid in webhook.pids():
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        threads += int(status["Threads"])
        memory += int(status["VmRSS"].split()[0]) / 1024
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        cpu += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return Usage(threads, memory, cpu)


def recovery(webhook: Webhook, plane: ControlPlane) -> float:
    """Wait for the API server, then until the webhook reports no problems; return the time of the second wait."""
    plane.wait(lambda: plane.request("GET", "/readyz"), 90, "the API server")
    began = time.monotonic()
    plane.wait(lambda: not json.loads(webhook.get("/readyz")[1])["problems"], RECOVERY_LIMIT, "no problems")
    return time.monotonic() - began


def test_decisions_recover_after_an_api_server_outage_without_leaking_resources(
    scenario: Scenario, plane: ControlPlane, webhook: Webhook, measured: Measured
) -> None:
    scenario.add_nodes(3)
    volume, node = scenario.add_attached_volume()
    # Before the outage: a controller manager that has just started may take a minute to attach a new volume.
    unattached = scenario.add_volume("disk2")
    scenario.wait_bound("disk2")
    plane.wait(lambda: scenario.target_node("disk1") == node, 20, "a decision for the VM")
    with ThreadPoolExecutor(20) as pool:  # the webhook starts all its threads now
        list(pool.map(scenario.target_node, ["disk1"] * 40))
    managers = f"{GROUP}/namespaces/{scenario.longhorn.namespace}/sharemanagers"
    version = plane.request("GET", managers)["metadata"]["resourceVersion"]
    plane.request("PATCH", f"{managers}/{volume}", {"metadata": {"labels": {"test/changed": "true"}}})
    before = usage(webhook)
    plane.stop_apiserver()
    plane.compact_etcd()
    with pytest.raises(ConnectionRefusedError):
        plane.request("GET", "/readyz")
    time.sleep(OUTAGE)
    during = usage(webhook)
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
    after = usage(webhook)
    # The webhook has relisted: a watch that continued would get what tests/cluster/test_reflector.py simulates.
    watch = f"{managers}?watch=1&timeoutSeconds=10&resourceVersion={version}"
    event = plane.wait(lambda: plane.request("GET", watch), 20, "an event")  # 429 until the API server has relisted
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
    measured(f"outage: {during.cpu - before.cpu:.2f} s of CPU, correct after {recovered:.1f} s; {before}, {after}")
    assert during.cpu - before.cpu < 0.05 * OUTAGE
    assert after.threads <= before.threads
    assert after.memory < before.memory * 1.1 + 5
    assert scenario.wait_running(scenario.start_vm("vm1", "disk1")) == node
