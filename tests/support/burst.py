"""Creates many VM pods at the same time, and records how long each creation took and where the pods ended up."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import count
from statistics import quantiles

from tests.support.accounts import KUBEVIRT
from tests.support.controlplane.api import Object
from tests.support.scenario import DECISION, Scenario


@dataclass(frozen=True, slots=True)
class Creation:
    """The result of one POST: the pod's name, the reason of its decision (empty if none), or the error."""

    seconds: float
    pod: str = ""
    reason: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The pods some time after their creation: how many run on each node, and the names of those that don't run."""

    nodes: Counter[str]
    pending: list[str]


def serve_volumes(scenario: Scenario, claims: Sequence[str]) -> list[str]:
    """Create a volume for each claim and a consumer that isn't a VM. Return the share-managers' nodes."""
    volumes = [scenario.add_volume(claim) for claim in claims]
    scenario.wait_bound(*claims)
    for claim in claims:
        scenario.create_consumer(claim)
    return [scenario.longhorn.wait_running(volume) for volume in volumes]


def create(
    scenario: Scenario, pods: Sequence[Object], clients: int = 0, delays: Sequence[float] = (0.0,)
) -> list[Creation]:
    """Create the pods by `clients` at the same time, by default all at once; each client creates one after the other.

    `delays` are the seconds that a client waits before each creation, in turn.
    """
    bodies = [json.dumps(scenario.owned(pod)) for pod in pods]
    results: dict[int, Creation] = {}
    turns = count()
    clients = clients or len(pods)
    scenario.plane.connect(clients)
    barrier = threading.Barrier(clients)

    def work() -> None:
        barrier.wait()
        while (turn := next(turns)) < len(bodies):
            time.sleep(delays[turn % len(delays)])
            results[turn] = _post(scenario, bodies[turn])

    threads = [threading.Thread(target=work) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[turn] for turn in range(len(bodies))]


def outcome(scenario: Scenario, created: Sequence[Creation], seconds: float) -> Outcome:
    """Return where the pods are as soon as all of them run, but after `seconds` at the latest."""
    names = {each.pod for each in created if each.pod}
    deadline = time.monotonic() + seconds
    while True:
        found = scenario.plane.request("GET", f"{scenario.pods}?resourceVersion=0")["items"]
        pods = {pod["metadata"]["name"]: pod for pod in found if pod["metadata"]["name"] in names}
        running = {name: pod for name, pod in pods.items() if pod["status"].get("phase") == "Running"}
        pending = sorted(names - running.keys())
        if not pending or time.monotonic() > deadline:
            return Outcome(Counter(pod["spec"]["nodeName"] for pod in running.values()), pending)
        time.sleep(0.5)


def latencies(created: Sequence[Creation]) -> tuple[float, float]:
    """Return the p50 and the p99 of the creations, in seconds."""
    found = quantiles([each.seconds for each in created], n=100, method="inclusive")
    return found[49], found[98]


def _post(scenario: Scenario, body: str) -> Creation:
    began = time.monotonic()
    response, answer = scenario.plane.create_as(KUBEVIRT, scenario.pods, body)
    seconds = time.monotonic() - began
    if response.status >= HTTPStatus.BAD_REQUEST:
        return Creation(seconds, error=str(answer.get("message")))
    decision = answer["metadata"].get("annotations", {}).get(DECISION, "")
    return Creation(seconds, answer["metadata"]["name"], decision.partition(":")[0])
