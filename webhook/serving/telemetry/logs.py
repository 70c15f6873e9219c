"""Structured logging: one line of JSON per event, of this program and of gunicorn."""

import json
import logging
import os
import select
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable
from datetime import UTC, datetime
from threading import Lock
from traceback import walk_tb
from typing import Any, TextIO

import msgspec

from webhook.cluster.token_bucket import TokenBucket
from webhook.placement.settings import Settings

PIPE_BUF = 4096  # bytes; a writable pipe accepts this many without blocking
# ms to wait for a slow reader. After a timeout, writes don't wait until the reader reads again.
READER_TIMEOUT = 10

log = logging.getLogger("webhook")


class LogStream:
    """A file-like stream over a file descriptor. `dropped` counts the lines that were lost or truncated."""

    def __init__(self, descriptor: int) -> None:
        self.dropped = 0
        self._descriptor = descriptor
        self._line_cut = False
        self._timeout = READER_TIMEOUT
        self._lock = Lock()
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def write(self, text: str) -> int:
        """Write a line, or drop the rest of it if the reader is too slow. Return the length of `text`."""
        with self._lock:
            data = (b"\n" if self._line_cut else b"") + text.encode(errors="backslashreplace")
            for start in range(0, len(data), PIPE_BUF):
                if not self._write_chunk(data[start : start + PIPE_BUF]):
                    self._line_cut = self._line_cut or start > 0
                    self._timeout = 0
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


# The kubelet keeps 50 MiB of a container's log. One client wrote 2 MB a second of decisions on made-up pods.
LINES_PER_SECOND, MAX_BURST = 10.0, 50
# Of each reason. A thousand VMs that start at once are all in the log.
DECISIONS_PER_SECOND, MAX_DECISIONS = 5.0, 1000


class LogLimit(logging.Filter):
    """Drops lines beyond LINES_PER_SECOND of each cause, and decisions beyond DECISIONS_PER_SECOND of each reason.

    A cause is a log statement, and in it an HTTP status, so that a flood of 400s hides no 503. `suppressed` counts the
    dropped lines. The next line of the same cause says how many were dropped before it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.suppressed = 0
        self._clock = clock
        self._lock = Lock()
        self._buckets: dict[Hashable, TokenBucket] = {}
        self._dropped: Counter[Hashable] = Counter()  # since the last written line, by cause

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write the record."""
        # Two files of one logger may have a statement on the same line.
        cause = record.pathname, record.lineno, getattr(record, "code", None)
        dropped = self.take(cause, LINES_PER_SECOND, MAX_BURST)
        if dropped:
            record.suppressed = dropped
        return dropped is not None

    def take(self, cause: Hashable, rate: float, burst: int) -> int | None:
        """Return how many lines of a cause were dropped before this one, or None to drop this one, too."""
        with self._lock:
            if cause not in self._buckets:
                self._buckets[cause] = TokenBucket(rate, burst, self._clock)
            if self._buckets[cause].take():
                return self._dropped.pop(cause, 0)
            self._dropped[cause] += 1
            self.suppressed += 1
        return None


class UncaughtErrors:
    """Logs the errors that end a thread, or that Python ignores in a finalizer. `count` is their number.

    Python's own hooks write the message of an exception, which may quote a pod.
    """

    def __init__(self) -> None:
        self.count = 0

    def install(self) -> None:
        """Replace Python's hooks."""
        threading.excepthook = lambda args: self._log(args.exc_value, args.thread.name if args.thread else "")
        sys.unraisablehook = lambda args: self._log(args.exc_value, threading.current_thread().name)

    def _log(self, error: BaseException | None, thread: str) -> None:
        self.count += 1
        log.error("uncaught error", extra={"thread_name": thread}, exc_info=error)


# The attributes of a record that are no fields of the event.
_OF_EACH_RECORD = vars(logging.makeLogRecord({})).keys() | {"taskName"}
_OUR_LOGGERS = ("webhook", "certs")


class LogHandler(logging.Handler):
    """Writes each record as one line, with the fields that `extra` passed.

    It never writes the message of an exception: the message may quote the pod, and a pod may contain a passphrase.
    """

    def __init__(self, stream: TextIO | LogStream, limit: LogLimit) -> None:
        super().__init__()
        self._stream, self._limit = stream, limit
        self.addFilter(limit)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        fields = {name: value for name, value in vars(record).items() if name not in _OF_EACH_RECORD}
        if record.name.partition(".")[0] not in _OUR_LOGGERS:
            fields["logger"] = record.name
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            fields |= {"error": _type_name(error), "traceback": " > ".join(_locations(error))}
        self._write(record.levelname, record.getMessage(), fields)

    def decided(self, fields: dict[str, Any]) -> None:
        """Write a decision at the level INFO. To make a record of it first would take four times as long."""
        if self.level > logging.INFO:
            return
        dropped = self._limit.take(fields["reason"], DECISIONS_PER_SECOND, MAX_DECISIONS)
        if dropped is not None:
            self._write("INFO", "decided", fields | ({"suppressed": dropped} if dropped else {}))

    def _write(self, level: str, event: str, fields: dict[str, Any]) -> None:
        line = {"time": datetime.now(UTC), "level": level.lower(), "event": event} | fields
        try:
            text = msgspec.json.encode(line).decode()
        except (TypeError, ValueError):  # half a surrogate pair, or a type that JSON does not have
            text = json.dumps(line, default=str)
        self._stream.write(text + "\n")


def configure(settings: Settings, stream: TextIO | LogStream, limit: LogLimit) -> LogHandler:
    """Configure all logs of the process. A second call replaces the first configuration."""
    handler = LogHandler(stream, limit)
    handler.setLevel(settings.log_level.upper())
    # gunicorn's logger needs its own handler, because gunicorn disables its propagation. Without gunicorn, propagation
    # would write each record twice.
    for name in (None, "gunicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(settings.log_level.upper())
    return handler


def _type_name(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")


def _locations(error: BaseException) -> list[str]:
    """Return the stack frames, outermost first. The frames and the type of the cause come first."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    origin = [*_locations(cause), _type_name(cause)] if cause else []
    frames = ((frame.f_code, line) for frame, line in walk_tb(error.__traceback__))
    return origin + [f"{code.co_filename}:{line} {code.co_name}" for code, line in frames]
