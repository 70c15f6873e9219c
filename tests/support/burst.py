"""Creates many VM pods at the same time, and records how long each creation took."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from statistics import quantiles

from tests.support.accounts import KUBEVIRT
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.scenario import DECISION, Scenario


@dataclass(frozen=True, slots=True)
class Creation:
    """The result of one POST: the pod's name, the reason of its decision (empty if none), or the error."""

    seconds: float
    pod: str = ""
    reason: str = ""
    error: str = ""


def serve_volumes(scenario: Scenario, claims: Sequence[str]) -> list[str]:
    """Create a volume for each claim and a consumer that isn't a VM. Return the share-managers' nodes."""
    volumes = [scenario.add_volume(claim) for claim in claims]
    scenario.wait_bound(*claims)
    for claim in claims:
        scenario.create_consumer(claim)
    return [scenario.longhorn.wait_running(volume) for volume in volumes]


def create(scenario: Scenario, pods: Sequence[Object], clients: int = 0) -> list[Creation]:
    """Create the pods by so many clients at the same time, by default one for each pod."""
    bodies = [json.dumps(scenario.owned(pod)) for pod in pods]
    clients = clients or len(pods)
    scenario.plane.connect(clients)
    with ThreadPoolExecutor(clients) as threads:
        return list(threads.map(lambda body: post(scenario.plane, scenario.pods, body), bodies))


def latencies(created: Sequence[Creation]) -> tuple[float, float]:
    """Return the p50 and the p99 of the creations, in seconds."""
    found = quantiles([each.seconds for each in created], n=100, method="inclusive")
    return found[49], found[98]


def post(plane: ControlPlane, path: str, body: str) -> Creation:
    """Create a VM pod as KubeVirt does."""
    began = time.monotonic()
    response, answer = plane.create_as(KUBEVIRT, path, body)
    seconds = time.monotonic() - began
    if response.status >= HTTPStatus.BAD_REQUEST:
        return Creation(seconds, error=str(answer.get("message")))
    decision = answer["metadata"].get("annotations", {}).get(DECISION, "")
    return Creation(seconds, answer["metadata"]["name"], decision.partition(":")[0])
