"""Where the log goes: to a stream that never keeps us waiting.

Standard error of a container is a pipe. Whoever is to read it may be slow, or gone: then a line is lost, and no review.
"""

import os
import select
from threading import Lock

PIECE = 4096  # bytes: what a pipe that says that it is writable takes without waiting (PIPE_BUF)
WAIT = 10  # ms for a reader that is only slow; one that has not read in that time is not waited for again until it does


class LogStream:
    """A file descriptor as a stream of lines. `dropped` counts those that nobody took, or not to their end."""

    def __init__(self, number: int) -> None:
        self.dropped = 0
        self._number, self._cut, self._wait, self._lock = number, False, WAIT, Lock()
        self._poll = select.poll()
        self._poll.register(number, select.POLLOUT)

    def write(self, text: str) -> int:
        """Write what is taken."""
        with self._lock:
            data = (b"\n" if self._cut else b"") + text.encode(errors="backslashreplace")
            for start in range(0, len(data), PIECE):
                if not self._takes(data[start : start + PIECE]):
                    self._cut, self._wait = self._cut or start > 0, 0
                    self.dropped += 1
                    break
            else:
                self._cut, self._wait = False, WAIT
        return len(text)

    def _takes(self, piece: bytes) -> bool:
        try:
            return bool(self._poll.poll(self._wait)) and os.write(self._number, piece) == len(piece)
        except OSError:  # the reader has gone, or the disk is full
            return False

    def flush(self) -> None:
        """Do nothing: all is written already."""
