"""Benchmark of scheduling time: seconds from the creation of a VM's pod to its binding, with and without the webhook.

The API server, default scheduler and webhook are real. kwok simulates 20 to 5,000 nodes. All claims are bound and all
share-managers run before the measurement. VMs start one at a time. Each round starts one VM with the webhook and one
without, so the ratio holds on a machine whose speed drifts.
"""

from __future__ import annotations

import http.client
import json
import random
import ssl
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from stage import ALLOCATABLE, DECISION, HOSTNAME, KUBEVIRT_LABELS, Object, Scenario, Stage, progress, start_stage

SIZES, FULL = (20, 200, 1_000), (20, 200, 1_000, 5_000)
ROUNDS, WARM_UP = 100, 10
VOLUMES = 20
TIMEOUT = 30  # seconds for one binding
WITH, WITHOUT = "with the webhook", "without"


@dataclass(frozen=True, slots=True)
class Timing:
    """One VM's pod: seconds from the request until the API server has stored the pod, and until the pod is bound."""

    created: float
    bound: float


class Bindings:
    """A watch of all virt-launcher pods that records when and to which node each one is bound."""

    def __init__(self, stage: Stage) -> None:
        self._seen: dict[str, tuple[float, str]] = {}
        self._changed = threading.Condition()
        self._connection = connect(stage)
        path = "/api/v1/pods?watch=1&labelSelector=kubevirt.io%3Dvirt-launcher&timeoutSeconds=3600"
        self._connection.request("GET", path, headers={"Authorization": f"Bearer {stage.plane.token}"})
        self._connection.sock.settimeout(None)  # the watch is silent while nodes are created
        self._thread = threading.Thread(target=self._follow, args=(self._connection.getresponse(),), daemon=True)
        self._thread.start()

    def wait(self, pod: str) -> tuple[float, str]:
        """Return when a pod was bound (time.perf_counter) and to which node."""
        with self._changed:
            if not self._changed.wait_for(lambda: pod in self._seen, TIMEOUT):
                sys.exit(f"{pod} is not bound after {TIMEOUT} s")
            return self._seen.pop(pod)

    def close(self) -> None:
        """Stop the watch."""
        # A close alone would leave the thread in its read.
        with suppress(OSError):
            self._connection.sock.shutdown(2)
        self._thread.join(5)
        self._connection.close()

    def _follow(self, stream: http.client.HTTPResponse) -> None:
        recorded: set[str] = set()
        with suppress(OSError, http.client.HTTPException, ValueError):
            for line in iter(stream.readline, b""):
                now = time.perf_counter()
                pod = json.loads(line)["object"]
                name, node = pod["metadata"]["name"], pod["spec"].get("nodeName")
                if node and name not in recorded:
                    recorded.add(name)
                    with self._changed:
                        self._seen[name] = now, node
                        self._changed.notify()


def connect(stage: Stage) -> http.client.HTTPSConnection:
    """Return an open connection to the API server, so that no handshake is timed."""
    trust = ssl.create_default_context(cafile=str(stage.plane.ca))
    connection = http.client.HTTPSConnection("127.0.0.1", stage.plane.port, context=trust, timeout=TIMEOUT)
    connection.connect()
    return connection


class Comparison:
    """Two namespaces with the same VMs on the same nodes. The API server calls the webhook for one of them."""

    def __init__(self, stage: Stage, scenarios: dict[str, Scenario]) -> None:
        self._stage, self._scenarios = stage, scenarios
        self._bindings = Bindings(stage)
        self._connection = connect(stage)
        self._served_on: dict[str, str] = {}
        self._nodes: list[str] = []

    def close(self) -> None:
        """Close the connections."""
        self._bindings.close()
        self._connection.close()

    def grow(self, size: int) -> None:
        """Create nodes until the cluster has `size`, and wait until all of them accept pods."""
        names = [f"node-{number:04}" for number in range(len(self._nodes), size)]
        plane = self._stage.plane
        for name in names:
            self._send("POST", "/api/v1/nodes", json.dumps(make_node(name)))
        self._nodes += names

        def ready() -> bool:
            time.sleep(0.5)  # the list is long
            found = plane.request("GET", "/api/v1/nodes?resourceVersion=0")["items"]
            return sum(not each["spec"].get("taints") for each in found) == size

        plane.wait(ready, 600, f"{size} nodes ready")
        # Reconnect: the API server closes connections that are idle for 90 s, and this one may have been.
        self._connection.close()
        self._connection.connect()

    def create_volumes(self) -> None:
        """Create the volumes of both namespaces, and share-managers for the namespace with the webhook."""
        for kind, scenario in self._scenarios.items():
            claims = [f"disk{number}" for number in range(VOLUMES)]
            for claim in claims:
                volume = scenario.add_volume(claim, isolated=False)
                if kind == WITH:
                    self._served_on[claim] = self._create_share_manager(volume)
            scenario.wait_bound(*claims)
        expected = self._served_on.items()
        target_node = self._scenarios[WITH].target_node
        self._stage.plane.wait(
            lambda: all(target_node(c) == n for c, n in expected), 20, "the webhook to know all volumes"
        )

    def _create_share_manager(self, volume: str) -> str:
        labels = {"longhorn.io/component": "share-manager", "longhorn.io/share-manager": volume}
        node = random.choice(self._nodes)
        spec = {"containers": [{"name": "share-manager", "image": "none"}], "nodeName": node}
        pod = {"metadata": {"name": f"share-manager-{volume}", "labels": labels}, "spec": spec}
        self._stage.plane.request("POST", f"/api/v1/namespaces/{self._stage.longhorn.namespace}/pods", pod)
        return node

    def start_vm(self, kind: str, number: int) -> Timing:
        """Start one VM, time it, and delete it."""
        scenario, claim = self._scenarios[kind], f"disk{number % VOLUMES}"
        pod = scenario.vm_pod("vm1", claim, nodeSelector=KUBEVIRT_LABELS)
        body = json.dumps(pod)
        start = time.perf_counter()
        stored = self._send("POST", scenario.pods, body)["metadata"]
        created = time.perf_counter()
        bound, node = self._bindings.wait(stored["name"])
        if kind == WITH and node != self._served_on[claim]:
            sys.exit(f"bound to {node} instead of the share-manager's node: {stored['annotations'].get(DECISION)}")
        self._send("DELETE", f"{scenario.pods}/{stored['name']}?gracePeriodSeconds=0")
        time.sleep(0.03)  # so that work after the deletion does not slow the next VM
        return Timing(created - start, bound - start)

    def _send(self, method: str, path: str, body: str | None = None) -> Object:
        headers = {"Authorization": f"Bearer {self._stage.plane.token}", "Content-Type": "application/json"}
        self._connection.request(method, path, body, headers)
        response = self._connection.getresponse()
        answer: Object = json.loads(response.read())
        if response.status >= 400:
            sys.exit(f"{method} {path}: {answer}")
        return answer


def make_node(name: str) -> Object:
    """Return a node that fits all VMs."""
    # Without the annotation for attaching volumes: the work of the controller manager would distort the times.
    return {
        "metadata": {"name": name, "labels": {HOSTNAME: name} | KUBEVIRT_LABELS},
        "status": {"allocatable": ALLOCATABLE, "capacity": ALLOCATABLE},
    }


def run_rounds(comparison: Comparison, count: int, show_step: Any) -> dict[str, list[Timing]]:
    """Start VMs with and without the webhook, in alternating order."""
    found: dict[str, list[Timing]] = {WITH: [], WITHOUT: []}
    for number in range(-WARM_UP, count):
        if number % 50 == 0:
            show_step(f"round {number} of {count}")
        for kind in (WITH, WITHOUT) if number % 2 else (WITHOUT, WITH):
            timing = comparison.start_vm(kind, number)
            if number >= 0:
                found[kind].append(timing)
    return found


def measure(sizes: tuple[int, ...], count: int, show_step: Any) -> dict[int, dict[str, list[Timing]]]:
    """Return the timings by cluster size, with and without the webhook."""
    found = {}
    with start_stage() as stage, stage.webhook("webhook") as webhook:
        webhook.register(share_managers=False, direct=True)
        scenarios = {
            WITH: Scenario(stage.plane, stage.longhorn, webhook),
            WITHOUT: Scenario(stage.plane, stage.longhorn, None),
        }
        comparison = Comparison(stage, scenarios)
        for size in sizes:
            show_step(f"{size:,} nodes: creating them")
            comparison.grow(size)
            if size == sizes[0]:
                comparison.create_volumes()
            found[size] = run_rounds(
                comparison, count, partial(lambda size, what: show_step(f"{size:,} nodes: {what}"), size)
            )
        comparison.close()
    return found


def show(found: dict[int, dict[str, list[Timing]]], count: int) -> None:
    """Print the figures in milliseconds."""
    table = Table(title=f"{count} VMs of each kind, milliseconds, without / with the webhook", box=box.SIMPLE)
    for heading in ("nodes", "until stored", "then bound", "in all, p50", "ratio", "p99", "ratio"):
        table.add_column(heading, justify="right")
    for size, kinds in found.items():
        baseline, webhook = (
            [Timing(1000 * t.created, 1000 * t.bound) for t in kinds[kind]] for kind in (WITHOUT, WITH)
        )
        row = [f"{median(t.created for t in baseline):.1f} / {median(t.created for t in webhook):.1f}"]
        row += [
            f"{median(t.bound - t.created for t in baseline):.1f} / {median(t.bound - t.created for t in webhook):.1f}"
        ]
        for statistic in median, lambda values: quantiles(values, n=100)[98]:
            base, value = statistic([t.bound for t in baseline]), statistic([t.bound for t in webhook])
            row += [f"{base:.0f} / {value:.0f}", f"{value / base:.2f}"]
        table.add_row(f"{size:,}", *row)
    Console().print(table)


@click.command()
@click.option("--full", is_flag=True, help="Also measure 5,000 nodes, which takes minutes and 3 GB.")
@click.option("--rounds", "count", default=ROUNDS, show_default=True, help="Number of VMs of each kind, for each size.")
def main(full: bool, count: int) -> None:
    """Time the placement of VMs on 20, 200 and 1,000 nodes, with the webhook and without."""
    with progress() as show_step:
        found = measure(FULL if full else SIZES, count, show_step)
    show(found, count)


if __name__ == "__main__":
    main()
