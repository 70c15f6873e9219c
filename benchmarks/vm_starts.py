"""VMs that start one at a time, with a webhook and without: the same VMs in namespaces of their own, on the same nodes.

This module measures nothing: run as a script, it prints nothing.
"""

from __future__ import annotations

import http.client
import json
import random
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from stage import Stage, running_peer

from tests.support.accounts import KUBEVIRT, impersonation
from tests.support.controlplane.api import Object
from tests.support.scenario import ALLOCATABLE, DECISION, HOSTNAME, KUBEVIRT_LABELS, Scenario
from tests.support.webhook_process import REGISTRATIONS, WEBHOOK_LABEL, Webhook

VOLUMES = 20
TIMEOUT = 30  # seconds for one binding
WITHOUT, PEER, WITH = "without", "in Go", "with the webhook"


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
    """Namespaces with the same VMs on the same nodes. The API server calls another webhook, or none, for each kind."""

    def __init__(self, stage: Stage, scenarios: dict[str, Scenario]) -> None:
        self._stage, self._scenarios = stage, scenarios
        self._bindings = Bindings(stage)
        self._connection = connect(stage)
        self._served_on: dict[tuple[str, str], str] = {}
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
        """Create the volumes of all namespaces, and share-managers for those with a webhook."""
        for kind, scenario in self._scenarios.items():
            claims = [f"disk{number}" for number in range(VOLUMES)]
            for claim in claims:
                volume = scenario.add_volume(claim, isolated=False)
                if kind != WITHOUT:
                    self._served_on[kind, claim] = self._create_share_manager(volume)
            scenario.wait_bound(*claims)
        self._wait_known(WITH)

    @contextmanager
    def peer(self, webhook: Webhook) -> Iterator[None]:
        """Run the webhook in Go on the cluster as it is now, beside ours and with its certificate."""
        plane, scenario, name = self._stage.plane, self._scenarios[PEER], "peer"
        (ours,) = plane.request("GET", f"{REGISTRATIONS}/{webhook.name}")["webhooks"]
        namespaces = {"matchLabels": {WEBHOOK_LABEL: name}}
        with running_peer(plane, webhook.tls) as client:
            registered = ours | {"clientConfig": client, "namespaceSelector": namespaces}
            plane.request("POST", REGISTRATIONS, {"metadata": {"name": name}, "webhooks": [registered]})
            path = f"/api/v1/namespaces/{scenario.namespace}"
            plane.request("PATCH", path, {"metadata": {"labels": {WEBHOOK_LABEL: name}}})
            self._wait_known(PEER)
            yield

    def _wait_known(self, kind: str) -> None:
        expected = {claim: node for (of, claim), node in self._served_on.items() if of == kind}
        target_node = self._scenarios[kind].target_node
        self._stage.plane.wait(
            lambda: all(target_node(claim) == node for claim, node in expected.items()),
            20,
            f"decisions for all volumes, {kind}",
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
        stored = self._send("POST", scenario.pods, body, impersonation(KUBEVIRT))["metadata"]
        created = time.perf_counter()
        bound, node = self._bindings.wait(stored["name"])
        if kind != WITHOUT and node != self._served_on[kind, claim]:
            sys.exit(f"bound to {node} instead of the share-manager's node: {stored['annotations'].get(DECISION)}")
        self._send("DELETE", f"{scenario.pods}/{stored['name']}?gracePeriodSeconds=0")
        time.sleep(0.03)  # so that work after the deletion does not slow the next VM
        return Timing(created - start, bound - start)

    def _send(self, method: str, path: str, body: str | None = None, more: dict[str, str] | None = None) -> Object:
        headers = {"Authorization": f"Bearer {self._stage.plane.token}", "Content-Type": "application/json"}
        self._connection.request(method, path, body, headers | (more or {}))
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
