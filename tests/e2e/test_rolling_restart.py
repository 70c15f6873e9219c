"""A rolling restart of two replicas, with `failurePolicy: Fail`: no pod creation fails meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.controlplane.api import ApiError
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
