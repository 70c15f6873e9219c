"""Ten upgrades in a row while VMs start: none fails, and none starts unseen.

With `failurePolicy: Ignore`, as installed: what the webhook misses, nobody else would notice. No kubelet runs here, so
the rollouts are played by chart_release.py; the wait before SIGTERM is the chart's own.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from chart_release import Release, Replicas
from controlplane.api import LOOPBACK
from controlplane.plane import ControlPlane
from longhorn import Longhorn
from world import DECISION, World

pytestmark = pytest.mark.controlplane

CALLERS = 2
PAUSE = 0.04  # seconds after each creation: so there are up to 50 a second, and the rest of two cores is the others'
# Each with --reuse-values, so that nothing changes but what is named; and how many replicas are to be replaced.
UPGRADES = (
    ("--set=webhook.timeoutSeconds=5", 0),
    ("--set=settings.affinityMode=preferred", 2),
    ("--set=webhook.excludedNamespaces={backup}", 0),
    ("--set=settings.steering=false", 2),  # a webhook goes
    ("--set=service.annotations.team=storage", 0),
    ("--set=settings.steering=true", 2),  # and comes, without its bundle
    ("--set=dashboard.enabled=true", 0),
    ("--set=settings.schedulerNames.old=default-scheduler", 2),  # and so another matchCondition
    ("--set=podDisruptionBudget.enabled=false", 0),
    ("--reset-values", 2),
)


@dataclass(slots=True)
class Creations:
    """What became of the VMs' pods."""

    seen: int = 0
    missed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return self.seen + len(self.missed) + len(self.failed)


@contextmanager
def vms_starting(world: World) -> Iterator[Creations]:
    """Create VMs' pods, one after the other in each thread, on a connection that stays."""
    creations, done, plane = Creations(), threading.Event(), world.plane
    # Nobody's, so that no scheduler is kept busy.
    pod = json.dumps(world.vm_pod("vm", "no-such-claim", schedulerName="nobody"))
    headers = {"Authorization": f"Bearer {plane.token}", "Content-Type": "application/json"}

    def create() -> None:
        trust = ssl.create_default_context(cafile=str(plane.ca))
        connection = http.client.HTTPSConnection(LOOPBACK, plane.port, context=trust)
        while not done.wait(PAUSE):
            connection.request("POST", world.pods, pod, headers)
            answer = json.load(response := connection.getresponse())
            if response.status != http.HTTPStatus.CREATED:
                creations.failed.append(answer["message"])
            elif DECISION in answer["metadata"]["annotations"]:
                creations.seen += 1
            else:
                creations.missed.append(answer["metadata"]["name"])
        connection.close()

    threads = [threading.Thread(target=create) for _ in range(CALLERS)]
    for thread in threads:
        thread.start()
    try:
        yield creations
    finally:
        done.set()
        for thread in threads:
            thread.join()


def failed_open(plane: ControlPlane) -> float:
    """How many calls the API server says to have missed, for VMs."""
    name = 'apiserver_admission_webhook_fail_open_count{name="vms.kubevirt-scheduler.io",type="admit"}'
    lines = plane.request("GET", "/metrics")["message"].splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


@pytest.fixture
def replicas(plane: ControlPlane, longhorn: Longhorn) -> Iterator[Replicas]:
    del longhorn  # its custom resource is there
    release = Release(plane, "chart-upgrades").install()
    try:
        with Replicas(release) as replicas:
            plane.wait(release.is_called, 20, "the caBundle of both webhooks")
            yield replicas
    finally:
        release.uninstall()


def test_ten_upgrades_in_a_row_fail_no_creation_and_miss_none(
    plane: ControlPlane, longhorn: Longhorn, replicas: Replicas, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(plane, longhorn, None)
    try:
        plane.wait(lambda: world.decision("no-such-claim"), 20, "a decision")
        before = failed_open(plane)
        with vms_starting(world) as creations:
            replaced = []
            for change, _ in UPGRADES:
                replicas.release.upgrade(*dict.fromkeys((change, "--reuse-values" if "set=" in change else change)))
                replaced.append(replicas.reconcile())
            statuses = replicas.statuses()
            last = creations.count
            plane.wait(lambda: creations.count > last + 10, 20, "VMs after the last replica has ended")
        missed = failed_open(plane) - before
    finally:
        world.close()
    with capsys.disabled():
        print(
            f"\nten upgrades, {sum(replaced)} replicas replaced: of {creations.count} creations "
            f"{len(creations.failed)} failed, {len(creations.missed)} were not seen (the API server counts {missed:g})"
        )
    assert replaced == [count for _, count in UPGRADES]
    assert creations.failed == []
    # None may be: a bundle is never empty, an old replica answers until nobody calls it, a new one is ready before.
    assert (creations.missed, missed) == ([], 0)
    assert statuses == [0] * sum(replaced)
    assert replicas.complaints() == []
