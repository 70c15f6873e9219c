"""A stop event for loops that wait between their passes."""

import threading
from collections.abc import Callable
from typing import Any


class StopAfterWaits(threading.Event):
    """A stop event that records its timeouts and never waits; wait number `after` calls `then` and sets the event."""

    def __init__(self, after: int, then: Callable[[], Any] = lambda: None) -> None:
        super().__init__()
        self.waits: list[float] = []
        self._after, self._then = after, then

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0.0)
        if len(self.waits) == self._after:
            self._then()
            self.set()
        return self.is_set()
