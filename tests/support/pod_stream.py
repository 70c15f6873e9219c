"""A load generator: threads create pods through the API server, and record whether the webhook decided on each pod.

The creations are dry runs: the API server admits them like any other, calls the webhook, and stores nothing.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable

from tests.support.burst import Creation, post
from tests.support.controlplane.plane import ControlPlane
from tests.support.scenario import Scenario

# Seconds after each creation, for `of_scenario`: at most 50 pods per second from 2 threads. The rest of two cores is
# left to the control plane and the webhook.
PAUSE = 0.04


class PodStream:
    """`with PodStream.of_scenario(scenario) as stream`: create pods on persistent connections until the block ends."""

    def __init__(
        self,
        plane: ControlPlane,
        path: str,
        body: Callable[[float], str],
        *,
        threads: int,
        rate: float = math.inf,
        pause: float = 0.0,
        after_each: Callable[[], None] = lambda: None,
    ) -> None:
        """POST `body` to `path`; `body` receives the seconds since the stream began.

        All threads together create at most `rate` pods per second. Each thread waits at least `pause` seconds between
        two creations. `after_each` runs in the creating thread.
        """
        self._plane, self._path, self._body = plane, f"{path}?dryRun=All", body
        self._period, self._pause = threads / rate, pause
        self._after_each = after_each
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._create) for _ in range(threads)]
        self._begin = self._last = time.monotonic()
        self.creations: list[Creation] = []

    @classmethod
    def of_scenario(
        cls, scenario: Scenario, threads: int = 2, after_each: Callable[[], None] = lambda: None
    ) -> PodStream:
        """Create opted-in VM pods."""
        pod = json.dumps(scenario.vm_pod("vm", "no-such-claim"))
        return cls(scenario.plane, scenario.pods, lambda _: pod, threads=threads, pause=PAUSE, after_each=after_each)

    def __enter__(self) -> PodStream:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    @property
    def count(self) -> int:
        return len(self.creations)

    @property
    def failed(self) -> list[str]:
        """The API server's messages for the creations that failed."""
        return [each.error for each in self.creations if each.error]

    @property
    def missed(self) -> list[str]:
        """The names of the created pods that carry no decision of the webhook."""
        return [each.pod for each in self.creations if not each.error and not each.reason]

    @property
    def rate(self) -> float:
        """Creations per second."""
        return self.count / (self._last - self._begin)

    def wait_for_more(self, creations: int, seconds: float = 30) -> None:
        """Return after so many more creations."""
        wanted = self.count + creations
        self._plane.wait(lambda: self.count >= wanted, seconds, f"{creations} more creations")

    def _create(self) -> None:
        while not self._done.is_set():
            began = time.monotonic()
            self.creations.append(post(self._plane, self._path, self._body(began - self._begin)))
            self._last = time.monotonic()
            self._after_each()
            self._done.wait(max(self._pause, began + self._period - time.monotonic()))
