"""Ctrl-C in a command that changes the cluster: the command ends in order instead of at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Presses:
    """Counts how often the user pressed Ctrl-C, and sleeps until the next press."""

    def __init__(self) -> None:
        self.count = 0
        self._event = threading.Event()

    def add(self, _signal: int, _frame: FrameType | None) -> None:
        """Count one press; a signal handler."""
        self.count += 1
        self._event.set()

    def sleep(self, seconds: float) -> None:
        """Sleep, or return early at the next press."""
        self._event.wait(seconds)
        self._event.clear()


@contextmanager
def interrupts() -> Iterator[Presses]:
    """Count SIGINT and SIGTERM inside the block, instead of ending the process."""
    presses = Presses()
    previous = {number: signal.signal(number, presses.add) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield presses
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
