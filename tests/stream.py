"""A stream of pods that are created through the API server, each of which the webhook must see."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from controlplane.api import LOOPBACK
from replicas import Installation

CALLERS = 4
RATE = 100.0  # pods a second at the most: the rest of two cores is the control plane's
WANTED = 50.0  # pods a second at least, of a machine that has the time
TIME_TO_SPARE = 0.3  # of the processors' time; where nobody else works, 92 pods a second leave half of two
EACH_DOOR = 0.5  # seconds, then the pods come by the next one, and the API server shakes hands anew


@dataclass(frozen=True, slots=True)
class Creation:
    """When it began and ended, and what the API server said where it failed."""

    began: float
    ended: float
    problem: str


def ticks() -> tuple[int, int]:
    """How long all processors have been idle since the machine was started, and how long they are there."""
    first, _, _ = Path("/proc/stat").read_text(encoding="ascii").partition("\n")
    found = [int(field) for field in first.split()[1:9]]  # the two that follow, of guests, are in these
    return found[3], sum(found)


class Stream:
    """`with Stream(installation) as stream`: pods are created until the end."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._trust = ssl.create_default_context(cafile=str(installation.plane.ca))
        self._pods = f"/api/v1/namespaces/{installation.name}/pods"
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._create) for _ in range(CALLERS)]
        self._begin, self._ticks = time.monotonic(), ticks()
        self.idle = 0.0
        self.creations: list[Creation] = []

    def __enter__(self) -> Stream:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()
        idle, spent = (now - then for now, then in zip(ticks(), self._ticks, strict=True))
        self.idle = idle / max(spent, 1)
        self._installation.plane.request("DELETE", f"{self._pods}?gracePeriodSeconds=0")

    @property
    def failed(self) -> list[str]:
        """What was said of the creations that failed."""
        return [each.problem for each in self.creations if each.problem]

    @property
    def rate(self) -> float:
        """Creations a second."""
        last = max(each.ended for each in self.creations)
        return len(self.creations) / (last - self._begin)

    @property
    def is_held_up(self) -> bool:
        """Whether it was slow though there was time: on a machine that others keep busy no rate says anything of us."""
        return self.rate < WANTED and self.idle > TIME_TO_SPARE

    def go_on(self, creations: int, seconds: float = 30) -> None:
        """Return after so many more creations."""
        wanted = len(self.creations) + creations
        self._installation.plane.wait(lambda: len(self.creations) >= wanted, seconds, f"{creations} more creations")

    def _create(self) -> None:
        connection = http.client.HTTPSConnection(LOOPBACK, self._installation.plane.port, context=self._trust)
        headers = {
            "Authorization": f"Bearer {self._installation.plane.token}",
            "Content-Type": "application/json",
        }
        try:
            while not self._done.is_set():
                began = time.monotonic()
                door = int((began - self._begin) / EACH_DOOR) % self._installation.doors
                connection.request("POST", self._pods, json.dumps(self._installation.vm_pod(door)), headers)
                response = connection.getresponse()
                answer = json.load(response)
                problem = "" if response.status == 201 else str(answer.get("message"))
                self.creations.append(Creation(began, time.monotonic(), problem))
                self._done.wait(max(0.0, began + CALLERS / RATE - time.monotonic()))
        finally:
            connection.close()
