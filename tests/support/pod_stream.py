"""A stream of pods that are created through the API server, each of which the webhook must see."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tests.support.controlplane.api import LOOPBACK
from tests.support.installation import Installation

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


def idle_since(then: tuple[int, int]) -> float:
    """The part of the processors' time since these `ticks` in which nobody had anything to do."""
    idle, spent = (now - before for now, before in zip(ticks(), then, strict=True))
    return idle / max(spent, 1)


class Stream:
    """`with Stream(installation) as stream`: pods are created until the end."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._trust = ssl.create_default_context(cafile=str(installation.plane.ca))
        self._pods = f"/api/v1/namespaces/{installation.name}/pods"
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._create) for _ in range(CALLERS)]
        self._begin, self._ticks = time.monotonic(), ticks()
        # Behind those of the last stream: by a door that was used within 90 s nobody needs to shake hands.
        self._first_door = installation.next_door
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
        self._installation.next_door += int((time.monotonic() - self._begin) / EACH_DOOR) + 1
        self.idle = idle_since(self._ticks)
        self._installation.plane.delete_pods(self._pods)

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
                door = (self._first_door + int((began - self._begin) / EACH_DOOR)) % self._installation.doors
                connection.request("POST", self._pods, json.dumps(self._installation.vm_pod(door)), headers)
                response = connection.getresponse()
                answer = json.load(response)
                problem = "" if response.status == 201 else str(answer.get("message"))
                self.creations.append(Creation(began, time.monotonic(), problem))
                self._done.wait(max(0.0, began + CALLERS / RATE - time.monotonic()))
        finally:
            connection.close()
