"""Measures for how long Python's garbage collector stops the process."""

import gc
import time
from collections.abc import Callable
from typing import Any


class GcPauses:
    """Records the longest collection. While one runs, no thread runs, so every request waits."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._started, self._longest = clock, 0.0, 0.0

    def start(self) -> None:
        """Record collections from now on."""
        gc.callbacks.append(self._record)

    def take_longest(self) -> float:
        """Return the seconds of the longest collection since the last call. Any thread may call it."""
        longest, self._longest = self._longest, 0.0
        return longest

    def _record(self, phase: str, _info: dict[str, Any]) -> None:
        if phase == "start":
            self._started = self._clock()
        else:
            self._longest = max(self._longest, self._clock() - self._started)
