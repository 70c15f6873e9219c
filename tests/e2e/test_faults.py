"""API server outages, broken watches and compacted history: decisions are soon correct again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.fault_proxy import FaultProxy
from tests.support.controlplane.plane import ControlPlane
from tests.support.longhorn import GROUP, Longhorn
from tests.support.measured import Measured
from tests.support.scenario import Scenario
from tests.support.webhook_process import Webhook, create_service_account

pytestmark = pytest.mark.controlplane

RECOVERY_LIMIT = 10.0  # seconds; decisions are correct again within 5 s, but a machine may stall meanwhile
OUTAGE = 8.0  # seconds
NAMESPACE = "longhorn-faults"
MANAGERS = f"{GROUP}/namespaces/{NAMESPACE}/sharemanagers"


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

    def has_recovered() -> bool:
        # Unless another test has installed KubeVirt's CRDs, there are no VMs to watch.
        return json.loads(webhook.get("/readyz")[1])["problems"].keys() <= {"virtualmachines"}

    plane.wait(has_recovered, RECOVERY_LIMIT, "a webhook without problems")
    return time.monotonic() - began


def test_decisions_recover_after_an_api_server_outage_without_leaking_resources(
    scenario: Scenario, plane: ControlPlane, webhook: Webhook, measured: Measured
) -> None:
    scenario.add_nodes(3)
    _, node = scenario.add_attached_volume()
    # Before the outage: a controller manager that has just started may take a minute to attach a new volume.
    unattached = scenario.add_volume("disk2")
    scenario.wait_bound("disk2")
    plane.wait(lambda: scenario.target_node("disk1") == node, 20, "a decision for the VM")
    with ThreadPoolExecutor(20) as pool:  # the webhook starts all its threads now
        list(pool.map(scenario.target_node, ["disk1"] * 40))
    before = usage(webhook)
    plane.stop_apiserver()
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
    measured(f"outage: {during.cpu - before.cpu:.2f} s of CPU, correct after {recovered:.1f} s; {before}, {after}")
    assert during.cpu - before.cpu < 0.05 * OUTAGE
    assert after.threads <= before.threads
    assert after.memory < before.memory * 1.1 + 5
    assert scenario.wait_running(scenario.start_vm("vm1", "disk1")) == node


@pytest.fixture(scope="module")
def fault_proxy(plane: ControlPlane) -> Iterator[FaultProxy]:
    fault_proxy = FaultProxy(plane)
    yield fault_proxy
    fault_proxy.stop()


@pytest.fixture(scope="module")
def stopped_longhorn(plane: ControlPlane) -> Longhorn:
    """A Longhorn that is installed but whose thread does not run."""
    longhorn = Longhorn(plane, NAMESPACE)
    longhorn.install()
    return longhorn


@pytest.fixture(scope="module")
def proxied_webhook(plane: ControlPlane, fault_proxy: FaultProxy, stopped_longhorn: Longhorn) -> Iterator[Webhook]:
    """A webhook that reaches the API server only through the fault proxy."""
    kubeconfig = fault_proxy.write_kubeconfig(
        plane, plane.folder / "proxied-kubeconfig", create_service_account(plane, "proxied")
    )
    with Webhook(plane, "proxied", kubeconfig, {"longhorn_namespace": stopped_longhorn.namespace}) as webhook:
        yield webhook.register(share_managers=False)


class ShareManagers:
    """Three volumes whose ShareManagers a test creates, changes and deletes directly, without a running Longhorn."""

    def __init__(self, plane: ControlPlane, scenario: Scenario) -> None:
        self.plane = plane
        self.scenario = scenario
        self.old_node, self.new_node = scenario.add_nodes(2)
        self.created, self.changed, self.deleted = (scenario.add_volume(claim) for claim in CLAIMS)
        scenario.wait_bound(*CLAIMS)
        for volume in self.changed, self.deleted:
            self.write(volume, self.old_node)
        plane.wait(lambda: self.target_nodes() == ["", self.old_node, self.old_node], 20, "decisions before the fault")

    def write(self, volume: str, owner: str) -> None:
        with suppress(Exception):
            self.plane.request("POST", MANAGERS, self._manager(volume))
        status = {"status": {"state": "running", "ownerID": owner}}
        self.plane.request("PATCH", f"{MANAGERS}/{volume}/status", status)

    def _manager(self, volume: str) -> dict[str, object]:
        return {"apiVersion": "longhorn.io/v1beta2", "kind": "ShareManager", "metadata": {"name": volume}}

    def target_nodes(self) -> list[str]:
        """Return the nodes that the webhook would select now for VMs of the three volumes."""
        return [self.scenario.target_node(claim) for claim in CLAIMS]

    def change_all(self) -> None:
        self.write(self.created, self.new_node)
        self.write(self.changed, self.new_node)
        self.plane.request("DELETE", f"{MANAGERS}/{self.deleted}")

    def recovery(self) -> float:
        """Wait until decisions reflect all changes of `change_all`. Return the seconds."""
        began, expected = time.monotonic(), [self.new_node, self.new_node, ""]
        self.plane.wait(lambda: self.target_nodes() == expected, RECOVERY_LIMIT, f"target nodes {expected}")
        return time.monotonic() - began


CLAIMS = ("to-be-created", "to-be-changed", "to-be-deleted")


@pytest.fixture
def share_managers(
    plane: ControlPlane, proxied_webhook: Webhook, stopped_longhorn: Longhorn
) -> Iterator[ShareManagers]:
    scenario = Scenario(plane, stopped_longhorn, proxied_webhook)
    yield ShareManagers(plane, scenario)
    scenario.close()


def test_decisions_reflect_changes_after_connections_were_closed(
    share_managers: ShareManagers, fault_proxy: FaultProxy
) -> None:
    for _ in range(3):
        fault_proxy.close_connections()
        time.sleep(0.2)
    share_managers.change_all()
    share_managers.recovery()


def test_the_webhook_relists_after_etcd_compacted_the_resource_version_of_a_watch(
    share_managers: ShareManagers,
    fault_proxy: FaultProxy,
    proxied_webhook: Webhook,
    plane: ControlPlane,
    measured: Measured,
) -> None:
    time.sleep(1.1)  # the webhook treats a watch that ends sooner as an error, and relists for that reason
    fault_proxy.hold_requests()
    fault_proxy.end_watches()
    before = plane.request("GET", MANAGERS)["metadata"]["resourceVersion"]
    share_managers.change_all()
    plane.stop_apiserver()
    plane.compact_etcd()
    plane.start_apiserver()
    watch = f"{MANAGERS}?watch=1&timeoutSeconds=10&resourceVersion={before}"
    event = plane.wait(lambda: plane.request("GET", watch), 20, "an event")  # 429 until the API server has relisted
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
    # For a custom resource, the API server responds with 429 at first: "storage is (re)initializing".
    plane.wait(lambda: plane.request("GET", f"{MANAGERS}?resourceVersion=0"), 20, "the ShareManagers")
    fault_proxy.release_requests()
    recovered = share_managers.recovery()
    expired = [line for line in proxied_webhook.log() if line.get("code") == 410]
    measured(f"compacted: correct after {recovered:.1f} s; 410 for {sorted({line['resource'] for line in expired})}")
    assert "sharemanagers" in {line["resource"] for line in expired}
