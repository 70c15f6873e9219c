"""How long a VM's pod waits for its node, from its creation to its binding, with and without us, as nodes grow.

A real API server and default scheduler, kwok nodes, the real webhook. All claims are bound and all share-managers run
before the clock starts. VMs start one at a time; each round starts one with us and one without, in turn, so that the
ratio holds on a machine whose speed drifts.
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
from stage import DECISION, HOSTNAME, KUBEVIRTS, ROOM, Object, Stage, World, progress, staged

SIZES, FULL = (20, 200, 1_000), (20, 200, 1_000, 5_000)
ROUNDS, WARM_UP = 100, 10
VOLUMES = 20
PATIENCE = 30  # seconds, for one binding
WITH, WITHOUT = "with us", "without"


@dataclass(frozen=True, slots=True)
class Timing:
    """One VM's pod: seconds until the API server had stored it, and until it was bound, both from the same start."""

    created: float
    bound: float


class Bindings:
    """A watch of all virt-launcher pods that notes when each one is first seen bound, and where."""

    def __init__(self, stage: Stage) -> None:
        self._seen: dict[str, tuple[float, str]] = {}
        self._changed = threading.Condition()
        self._connection = connected(stage)
        path = "/api/v1/pods?watch=1&labelSelector=kubevirt.io%3Dvirt-launcher&timeoutSeconds=3600"
        self._connection.request("GET", path, headers={"Authorization": f"Bearer {stage.plane.token}"})
        self._connection.sock.settimeout(None)  # there is nothing to see while nodes are created
        self._thread = threading.Thread(target=self._follow, args=(self._connection.getresponse(),), daemon=True)
        self._thread.start()

    def wait(self, pod: str) -> tuple[float, str]:
        """Return when a pod was bound, by the clock of time.perf_counter, and to which node."""
        with self._changed:
            if not self._changed.wait_for(lambda: pod in self._seen, PATIENCE):
                sys.exit(f"{pod} is not bound after {PATIENCE} s")
            return self._seen.pop(pod)

    def close(self) -> None:
        """End the watch."""
        # Closed alone, the socket would leave the thread in its read.
        with suppress(OSError):
            self._connection.sock.shutdown(2)
        self._thread.join(5)
        self._connection.close()

    def _follow(self, stream: http.client.HTTPResponse) -> None:
        noted: set[str] = set()
        with suppress(OSError, http.client.HTTPException, ValueError):
            for line in iter(stream.readline, b""):
                now = time.perf_counter()
                pod = json.loads(line)["object"]
                name, node = pod["metadata"]["name"], pod["spec"].get("nodeName")
                if node and name not in noted:
                    noted.add(name)
                    with self._changed:
                        self._seen[name] = now, node
                        self._changed.notify()


def connected(stage: Stage) -> http.client.HTTPSConnection:
    """Return a connection to the API server that is kept, so that no handshake is timed."""
    trust = ssl.create_default_context(cafile=str(stage.plane.ca))
    connection = http.client.HTTPSConnection("127.0.0.1", stage.plane.port, context=trust, timeout=PATIENCE)
    connection.connect()
    return connection


class Clinic:
    """Two namespaces with the same VMs on the same nodes: in one of them the webhook sees them."""

    def __init__(self, stage: Stage, worlds: dict[str, World]) -> None:
        self._stage, self._worlds = stage, worlds
        self._bindings = Bindings(stage)
        self._connection = connected(stage)
        self._served_on: dict[str, str] = {}
        self._nodes: list[str] = []

    def close(self) -> None:
        """End its connections."""
        self._bindings.close()
        self._connection.close()

    def grow(self, size: int) -> None:
        """Create nodes until there are so many, and wait until all of them take pods."""
        names = [f"node-{number:04}" for number in range(len(self._nodes), size)]
        plane = self._stage.plane
        for name in names:
            self._send("POST", "/api/v1/nodes", json.dumps(a_node(name)))
        self._nodes += names

        def ready() -> bool:
            time.sleep(0.5)  # the answer is long
            found = plane.request("GET", "/api/v1/nodes?resourceVersion=0")["items"]
            return sum(not each["spec"].get("taints") for each in found) == size

        plane.wait(ready, 600, f"{size} nodes ready")
        # Anew: the API server closes a connection that was idle for 90 s, as this one may have been.
        self._connection.close()
        self._connection.connect()

    def store(self) -> None:
        """Create the volumes of both namespaces, with a share-manager for each that the webhook is asked about."""
        for way, world in self._worlds.items():
            claims = [f"disk{number}" for number in range(VOLUMES)]
            for claim in claims:
                volume = world.add_volume(claim, isolated=False)
                if way == WITH:
                    self._served_on[claim] = self._serve(volume)
            world.wait_bound(*claims)
        expected = self._served_on.items()
        meant = self._worlds[WITH].node_meant
        self._stage.plane.wait(lambda: all(meant(c) == n for c, n in expected), 20, "a webhook that knows them all")

    def _serve(self, volume: str) -> str:
        labels = {"longhorn.io/component": "share-manager", "longhorn.io/share-manager": volume}
        node = random.choice(self._nodes)
        spec = {"containers": [{"name": "share-manager", "image": "none"}], "nodeName": node}
        pod = {"metadata": {"name": f"share-manager-{volume}", "labels": labels}, "spec": spec}
        self._stage.plane.request("POST", f"/api/v1/namespaces/{self._stage.longhorn.namespace}/pods", pod)
        return node

    def start_vm(self, way: str, number: int) -> Timing:
        """Start one VM, time it, and let go of it again."""
        world, claim = self._worlds[way], f"disk{number % VOLUMES}"
        pod = world.vm_pod("vm1", claim, nodeSelector=KUBEVIRTS)
        body = json.dumps(pod)
        start = time.perf_counter()
        stored = self._send("POST", world.pods, body)["metadata"]
        created = time.perf_counter()
        bound, node = self._bindings.wait(stored["name"])
        if way == WITH and node != self._served_on[claim]:
            sys.exit(f"bound to {node}, so this is not what was to be timed: {stored['annotations'].get(DECISION)}")
        self._send("DELETE", f"{world.pods}/{stored['name']}?gracePeriodSeconds=0")
        time.sleep(0.03)  # what its deletion sets off is not to be timed with the next one
        return Timing(created - start, bound - start)

    def _send(self, method: str, path: str, body: str | None = None) -> Object:
        headers = {"Authorization": f"Bearer {self._stage.plane.token}", "Content-Type": "application/json"}
        self._connection.request(method, path, body, headers)
        response = self._connection.getresponse()
        answer: Object = json.loads(response.read())
        if response.status >= 400:
            sys.exit(f"{method} {path}: {answer}")
        return answer


def a_node(name: str) -> Object:
    """Return a node with room for all VMs."""
    # Not annotated for attaching: the controller manager would time its own work with ours.
    return {
        "metadata": {"name": name, "labels": {HOSTNAME: name} | KUBEVIRTS},
        "status": {"allocatable": ROOM, "capacity": ROOM},
    }


def rounds(clinic: Clinic, count: int, say: Any) -> dict[str, list[Timing]]:
    """Start VMs with us and without, in turn, the order changing from round to round."""
    found: dict[str, list[Timing]] = {WITH: [], WITHOUT: []}
    for number in range(-WARM_UP, count):
        if number % 50 == 0:
            say(f"round {number} of {count}")
        for way in (WITH, WITHOUT) if number % 2 else (WITHOUT, WITH):
            timing = clinic.start_vm(way, number)
            if number >= 0:
                found[way].append(timing)
    return found


def measure(sizes: tuple[int, ...], count: int, say: Any) -> dict[int, dict[str, list[Timing]]]:
    """Return the timings of each size of cluster."""
    found = {}
    with staged() as stage, stage.webhook("webhook") as webhook:
        webhook.register(share_managers=False)
        worlds = {WITH: World(stage.plane, stage.longhorn, webhook), WITHOUT: World(stage.plane, stage.longhorn, None)}
        clinic = Clinic(stage, worlds)
        for size in sizes:
            say(f"{size:,} nodes: creating them")
            clinic.grow(size)
            if size == sizes[0]:
                clinic.store()
            found[size] = rounds(clinic, count, partial(lambda size, what: say(f"{size:,} nodes: {what}"), size))
        clinic.close()
    return found


def show(found: dict[int, dict[str, list[Timing]]], count: int) -> None:
    """Print the figures in milliseconds."""
    table = Table(title=f"{count} VMs of each kind, milliseconds, without / with us", box=box.SIMPLE)
    for heading in ("nodes", "until stored", "then bound", "in all, p50", "ratio", "p99", "ratio"):
        table.add_column(heading, justify="right")
    for size, ways in found.items():
        without, ours = ([Timing(1000 * t.created, 1000 * t.bound) for t in ways[way]] for way in (WITHOUT, WITH))
        row = [f"{median(t.created for t in without):.1f} / {median(t.created for t in ours):.1f}"]
        row += [f"{median(t.bound - t.created for t in without):.1f} / {median(t.bound - t.created for t in ours):.1f}"]
        for average in median, lambda values: quantiles(values, n=100)[98]:
            one, other = average([t.bound for t in without]), average([t.bound for t in ours])
            row += [f"{one:.0f} / {other:.0f}", f"{other / one:.2f}"]
        table.add_row(f"{size:,}", *row)
    Console().print(table)


@click.command()
@click.option("--full", is_flag=True, help="5,000 nodes as well: minutes, and 3 GB.")
@click.option("--rounds", "count", default=ROUNDS, show_default=True, help="VMs of each kind, for each size.")
def main(full: bool, count: int) -> None:
    """Time the placement of VMs on 20, 200 and 1,000 nodes, with the webhook and without."""
    with progress() as say:
        found = measure(FULL if full else SIZES, count, say)
    show(found, count)


if __name__ == "__main__":
    main()
