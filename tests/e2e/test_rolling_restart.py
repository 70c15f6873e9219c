"""A rolling restart of two replicas, with `failurePolicy: Fail`: no pod creation fails meanwhile."""

from __future__ import annotations

import selectors
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.controlplane.api import LOOPBACK, ApiError
from tests.support.controlplane.plane import ControlPlane
from tests.support.longhorn import Longhorn
from tests.support.measured import Measured
from tests.support.scenario import DECISION, Scenario
from tests.support.webhook_process import NAMESPACE, Webhook
from webhook.serving.http.loop import QUIET_PERIOD

pytestmark = pytest.mark.controlplane

CLIENTS = 4
ENDPOINT_LAG = 0.3  # seconds until all nodes drop a removed endpoint; kube-proxy syncs at most once per second


class Replicas:
    """The replicas of a Deployment behind one Service. This class plays the kubelet and the endpoints controller."""

    def __init__(self, plane: ControlPlane, kubeconfig: Path, name: str) -> None:
        self._plane, self._kubeconfig, self._name = plane, kubeconfig, name
        self._number, self.max_lag = 0, 0.0
        self.first = Webhook(plane, name, kubeconfig, {})
        self.running = [self.first]

    def start(self) -> None:
        """Start one more replica, wait until it is ready, and add it to the endpoints."""
        self._number += 1
        new = Webhook(self._plane, f"{self._name}-{self._number}", self._kubeconfig, {}, tls=self.first.tls)
        self.running.append(new.__enter__())
        self.publish()

    def publish(self) -> None:
        self.route(*(each.address for each in self.running))

    def route(self, *addresses: tuple[str, int]) -> None:
        """Route the Service to these addresses, in turn."""
        self._plane.route_service(NAMESPACE, self._name, *addresses)

    def replace_oldest(self, *, pre_stop: float) -> int:
        """Replace a replica as a rolling update does: start a new one, then stop the oldest. Return its exit code."""
        self.start()
        old = self.running.pop(0)
        sigterm = threading.Timer(pre_stop, old.terminate)  # the kubelet acts independently of the endpoints
        began = time.monotonic()
        sigterm.start()
        time.sleep(ENDPOINT_LAG)
        self.publish()
        self.max_lag = max(self.max_lag, time.monotonic() - began - pre_stop)  # from SIGTERM to the new endpoints
        sigterm.join()
        return old.process.wait_for_exit(25)


@pytest.fixture
def replicas(
    plane: ControlPlane, longhorn: Longhorn, kubeconfig: Path, request: pytest.FixtureRequest
) -> Iterator[Replicas]:
    del longhorn  # needed only for its CRD
    replicas = Replicas(plane, kubeconfig, request.node.name[:40].strip("_").replace("_", "-"))
    try:
        replicas.first.__enter__()
        replicas.first.register(share_managers=False)
        replicas.start()
        yield replicas
    finally:
        replicas.first.unregister()
        for each in replicas.running:
            each.stop()


@contextmanager
def creating_vms(scenario: Scenario) -> Iterator[tuple[list[str], list[str]]]:
    """Create VM pods from some threads; yield the decision on each created pod, and the errors."""
    decisions: list[str] = []
    failed: list[str] = []
    done = threading.Event()

    def create() -> None:
        while not done.is_set():
            try:
                created = scenario.plane.request("POST", scenario.pods, scenario.vm_pod("vm", "no-such-claim"))
                decisions.append(created["metadata"]["annotations"].get(DECISION, ""))
            except ApiError as error:
                failed.append(str(error))

    threads = [threading.Thread(target=create) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield decisions, failed
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_a_rolling_restart_fails_no_creation_and_old_replicas_exit_with_0(
    plane: ControlPlane, longhorn: Longhorn, replicas: Replicas, measured: Measured
) -> None:
    scenario = Scenario(plane, longhorn, replicas.first)
    try:
        with creating_vms(scenario) as (decisions, failed):
            plane.wait(lambda: len(decisions) > 10, 20, "VMs before the restart")
            # First with a preStop wait, then with SIGTERM while the replica is still among the endpoints.
            exit_codes = [replicas.replace_oldest(pre_stop=seconds) for seconds in (2 * ENDPOINT_LAG, 0.0)]
            last = len(decisions)
            plane.wait(lambda: len(decisions) > last + 10, 20, "VMs after the restart")
    finally:
        scenario.close()
    measured(f"rolling restart: {len(failed)} of {len(decisions) + len(failed)} creations failed")
    # A machine that stalls may drop the endpoint only after the replica's quiet period; then calls fail.
    assert failed == [] or replicas.max_lag > QUIET_PERIOD
    assert exit_codes == [0, 0]
    assert all(decisions), "the webhook decided on each pod"


PARTIAL_REVIEW = 3000  # bytes: a third of an AdmissionReview request


class StallingRelay:
    """A TCP relay to a replica. Once `stop_after` is set, it forwards only that many bytes of the next request."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.stop_after: int | None = None
        self.stopped = threading.Event()
        relay = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with suppress(OSError), socket.create_connection(target) as replica:
                    relay._forward(self.request, replica)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True

        self._server = Server((LOOPBACK, 0), Handler)
        self.address = str(self._server.server_address[0]), int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def _forward(self, client: socket.socket, replica: socket.socket) -> None:
        with selectors.DefaultSelector() as ready:
            ready.register(replica, selectors.EVENT_READ, client)
            ready.register(client, selectors.EVENT_READ, replica)
            while True:
                for key, _ in ready.select():
                    source: socket.socket = key.fileobj  # type: ignore[assignment]
                    if not (data := source.recv(65536)):
                        return
                    if source is client and self.stop_after is not None:
                        data = data[: self.stop_after]
                        ready.unregister(client)
                        self.stopped.set()
                    key.data.sendall(data)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def test_a_request_that_a_terminating_replica_cannot_read_is_retried_on_another_replica(
    plane: ControlPlane, longhorn: Longhorn, replicas: Replicas
) -> None:
    """The replica responds with 503 and `Retry-After: 0`, so the API server retries on a new connection.

    No other client would retry the call.
    """
    first, other = replicas.running
    with closing(StallingRelay(first.address)) as relay:
        replicas.route(relay.address)
        scenario = Scenario(plane, longhorn, first)  # opens the API server's connection through the relay
        relay.stop_after = PARTIAL_REVIEW
        with closing(scenario), ThreadPoolExecutor(1) as pool:
            created = pool.submit(plane.request, "POST", scenario.pods, scenario.vm_pod("vm", "no-such-claim"))
            assert relay.stopped.wait(20), "no request reached the relay"
            replicas.route(other.address)
            first.terminate()
            assert DECISION in created.result(30)["metadata"]["annotations"]
    assert first.logged("this replica is shutting down")
    assert first.process.wait_for_exit(25) == 0
