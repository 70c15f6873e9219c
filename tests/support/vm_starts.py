"""VMs' pods that are created one after the other, and what became of each."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.support.controlplane.api import LOOPBACK
from tests.support.controlplane.plane import ControlPlane
from tests.support.scenario import DECISION, World

CALLERS = 2
PAUSE = 0.04  # seconds after each creation: so there are up to 50 a second, and the rest of two cores is the others'


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
def vms_starting(
    world: World, callers: int = CALLERS, after_each: Callable[[], None] = lambda: None
) -> Iterator[Creations]:
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
            after_each()
        connection.close()

    threads = [threading.Thread(target=create) for _ in range(callers)]
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
