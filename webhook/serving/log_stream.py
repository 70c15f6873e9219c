"""A log stream that drops lines instead of blocking.

Standard error of a container is a pipe. If its reader is slow or gone, a log line is lost, but no review.
"""

import os
import select
from threading import Lock

PIPE_BUF = 4096  # bytes; a writable pipe accepts this many without blocking
# ms to wait for a slow reader. After a timeout, writes don't wait until the reader reads again.
READER_TIMEOUT = 10


class LogStream:
    """A file-like stream over a file descriptor. `dropped` counts the lines that were lost or truncated."""

    def __init__(self, descriptor: int) -> None:
        self.dropped = 0
        self._descriptor, self._line_cut, self._timeout, self._lock = descriptor, False, READER_TIMEOUT, Lock()
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def write(self, text: str) -> int:
        """Write a line, or drop the rest of it if the reader is too slow. Return the length of `text`."""
        with self._lock:
            data = (b"\n" if self._line_cut else b"") + text.encode(errors="backslashreplace")
            for start in range(0, len(data), PIPE_BUF):
                if not self._write_chunk(data[start : start + PIPE_BUF]):
                    self._line_cut, self._timeout = self._line_cut or start > 0, 0
                    self.dropped += 1
                    break
            else:
                self._line_cut, self._timeout = False, READER_TIMEOUT
        return len(text)

    def _write_chunk(self, chunk: bytes) -> bool:
        try:
            return bool(self._poll.poll(self._timeout)) and os.write(self._descriptor, chunk) == len(chunk)
        except OSError:  # the reader is gone, or the disk is full
            return False

    def flush(self) -> None:
        """Do nothing: writes are unbuffered."""
