"""Two replicas are replaced one after the other while VMs start, with `failurePolicy: Fail`: no VM notices."""

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
from tests.support.scenario import DECISION, World
from tests.support.webhook_process import NAMESPACE, Webhook
from webhook.serving.loop import QUIET_PERIOD

pytestmark = pytest.mark.controlplane

CALLERS = 4
LAG = 0.3  # seconds until every node has heard that an endpoint has gone; kube-proxy syncs once a second at the most


class Replicas:
    """The pods of a Deployment behind one Service, with the endpoints that Kubernetes would have."""

    def __init__(self, plane: ControlPlane, kubeconfig: Path, name: str) -> None:
        self._plane, self._kubeconfig, self._name = plane, kubeconfig, name
        self._number, self.lag = 0, 0.0
        self.first = Webhook(plane, name, kubeconfig, {})
        self.running = [self.first]

    def start(self) -> None:
        """Start one more, and have it called when it is ready."""
        self._number += 1
        new = Webhook(self._plane, f"{self._name}-{self._number}", self._kubeconfig, {}, tls=self.first.tls)
        self.running.append(new.__enter__())
        self.publish()

    def publish(self) -> None:
        self.route(*(each.address for each in self.running))

    def route(self, *addresses: tuple[str, int]) -> None:
        """Have these called, each in turn."""
        self._plane.route_service(NAMESPACE, self._name, *addresses)

    def replace_oldest(self, *, pre_stop: float) -> int:
        """As a rolling update does it: one more, then one less. Return the exit status of the old one."""
        self.start()
        old = self.running.pop(0)
        told = threading.Timer(pre_stop, old.ask_to_end)  # the kubelet's part, beside that of the endpoints
        begun = time.monotonic()
        told.start()
        time.sleep(LAG)
        self.publish()
        self.lag = max(self.lag, time.monotonic() - begun - pre_stop)
        told.join()
        return old.process.ended(25)


@pytest.fixture
def replicas(
    plane: ControlPlane, longhorn: Longhorn, kubeconfig: Path, request: pytest.FixtureRequest
) -> Iterator[Replicas]:
    del longhorn  # its custom resource is there
    made = Replicas(plane, kubeconfig, request.node.name[:40].strip("_").replace("_", "-"))
    try:
        made.first.__enter__()
        made.first.register(share_managers=False)
        made.start()
        yield made
    finally:
        made.first.unregister()
        for each in made.running:
            each.stop()


@contextmanager
def vms_starting(world: World) -> Iterator[tuple[list[str], list[str]]]:
    """Create VMs' pods one after the other in some threads; the decision on each, and what failed."""
    decided: list[str] = []
    failed: list[str] = []
    done = threading.Event()

    def create() -> None:
        while not done.is_set():
            try:
                made = world.plane.request("POST", world.pods, world.vm_pod("vm", "no-such-claim"))
                decided.append(made["metadata"]["annotations"].get(DECISION, ""))
            except ApiError as error:
                failed.append(str(error))

    threads = [threading.Thread(target=create) for _ in range(CALLERS)]
    for thread in threads:
        thread.start()
    try:
        yield decided, failed
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_a_rolling_restart_fails_no_creation_and_each_old_replica_ends_with_0(
    plane: ControlPlane, longhorn: Longhorn, replicas: Replicas, measured: Measured
) -> None:
    world = World(plane, longhorn, replicas.first)
    try:
        with vms_starting(world) as (decided, failed):
            plane.wait(lambda: len(decided) > 10, 20, "VMs before the restart")
            # With a preStop wait, and the harder way: told to end while it is still among the endpoints.
            codes = [replicas.replace_oldest(pre_stop=seconds) for seconds in (2 * LAG, 0.0)]
            last = len(decided)
            plane.wait(lambda: len(decided) > last + 10, 20, "VMs after the restart")
    finally:
        world.close()
    measured(f"rolling restart: {len(failed)} of {len(decided) + len(failed)} creations failed")
    # Who has heard of its end only after its last quiet second has called nobody: here, on a machine that stalls.
    assert failed == [] or replicas.lag > QUIET_PERIOD
    assert codes == [0, 0]
    assert all(decided), "the webhook has seen each of them"


BEGINNING = 3000  # bytes: a third of a review


class Stalling:
    """The way to a replica, on which a request stops in its middle once `stop_after` says after how many bytes."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.stop_after: int | None = None
        self.stopped = threading.Event()
        way = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with suppress(OSError), socket.create_connection(target) as replica:
                    way._relay(self.request, replica)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True

        self._server = Server((LOOPBACK, 0), Handler)
        self.address = str(self._server.server_address[0]), int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def _relay(self, client: socket.socket, replica: socket.socket) -> None:
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


def test_what_a_replica_can_t_serve_any_more_is_served_by_another_at_once(
    plane: ControlPlane, longhorn: Longhorn, replicas: Replicas
) -> None:
    """`Retry-After: 0` with a 503: the API server calls again, on a new connection. Nobody else would call again."""
    first, other = replicas.running
    with closing(Stalling(first.address)) as way:
        replicas.route(way.address)
        world = World(plane, longhorn, first)  # has it asked: its connection is there now
        way.stop_after = BEGINNING
        with closing(world), ThreadPoolExecutor(1) as pool:
            created = pool.submit(plane.request, "POST", world.pods, world.vm_pod("vm", "no-such-claim"))
            assert way.stopped.wait(20), "half a review"
            replicas.route(other.address)
            first.ask_to_end()
            assert DECISION in created.result(30)["metadata"]["annotations"]
    assert first.says("this replica is ending")
    assert first.process.ended(25) == 0
