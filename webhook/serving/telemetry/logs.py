"""Structured logging: one format for the logs of this program and of gunicorn, one line per event."""

import json
import logging
import os
import select
import sys
import time
from collections import Counter
from collections.abc import Callable
from threading import Lock
from types import TracebackType
from typing import Any, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from webhook.cluster.token_bucket import TokenBucket
from webhook.placement.objects.fields import printable
from webhook.placement.settings import LogFormat, Settings

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


# The lines that a client causes without a valid review. Decisions are never dropped: each is the record of one pod.
LIMITED_EVENTS = ("error response", "request failed", "connection failed", "client certificate rejected")
LINES_PER_SECOND, MAX_BURST = 10.0, 50


class LogLimit:
    """A structlog processor that drops lines about failed requests beyond LINES_PER_SECOND.

    Each event and HTTP status has its own limit, so that a flood of 400s hides no 503. `suppressed` counts the dropped
    lines. The next line of the same kind has the number of lines dropped before it, in the field `suppressed`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.suppressed = 0
        self._clock, self._lock = clock, Lock()
        self._buckets: dict[tuple[str, int | None], TokenBucket] = {}
        self._unreported: Counter[tuple[str, int | None]] = Counter()

    def __call__(self, _: WrappedLogger, __: str, event: EventDict) -> EventDict:
        """Return the event, or raise DropEvent."""
        if event["event"] not in LIMITED_EVENTS:
            return event
        kind = event["event"], event.get("code")
        with self._lock:
            if kind not in self._buckets:
                self._buckets[kind] = TokenBucket(LINES_PER_SECOND, MAX_BURST, self._clock)
            if not self._buckets[kind].take():
                self.suppressed += 1
                self._unreported[kind] += 1
                raise structlog.DropEvent
            if suppressed := self._unreported.pop(kind, 0):
                event["suppressed"] = suppressed
        return event


# gunicorn disables propagation of its logger, so the logger needs its own handler. `configure` disables it as well:
# without gunicorn, each record would be written twice.
_LOGGERS = (None, "gunicorn.error")


def configure(settings: Settings, stream: TextIO | LogStream, limit: LogLimit) -> None:
    """Configure all logs of the process. A second call replaces the first configuration."""
    file: Any = stream  # LogStream has the file methods that logging and structlog call
    shared: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        drop_exception_messages,
    ]
    # Our own events bypass `logging`, which would render each line twice.
    structlog.configure(
        processors=[limit, *shared, _renderer(settings.log_format)],
        logger_factory=structlog.WriteLoggerFactory(file),
        wrapper_class=structlog.make_filtering_bound_logger(settings.log_level),
    )
    handler = logging.StreamHandler(file)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _renderer(settings.log_format)],
        )
    )
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(settings.log_level.upper())


def _renderer(log_format: LogFormat) -> Processor:
    if log_format is LogFormat.JSON:
        return structlog.processors.JSONRenderer(_json)
    render = structlog.processors.LogfmtRenderer(key_order=["time", "level", "event"], bool_as_flag=False)
    # A name or uid may contain terminal control characters.
    return lambda *line: printable(render(*line))


def _json(event: EventDict, **_: Any) -> str:
    try:
        return msgspec.json.encode(event).decode()
    except (TypeError, ValueError):  # half a surrogate pair, or a type that JSON does not have
        return json.dumps(event, default=repr)


def drop_exception_messages(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Replace an exception with its type and its stack locations; a structlog processor.

    The message is never logged: it may quote the pod, and a pod may contain a passphrase.
    """
    exc_info = event.pop("exc_info", None)
    error = _exception(exc_info)
    if error is not None:
        event["error"] = _type_name(error)
        event["traceback"] = " > ".join(_locations(error))
    return event


def _exception(exc_info: Any) -> BaseException | None:
    match exc_info:
        case BaseException():
            return exc_info
        case (_, BaseException() as error, _):
            return error
        case None | False | ():
            return None
    return sys.exc_info()[1]


def _type_name(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")


def _locations(error: BaseException) -> list[str]:
    """Return the stack frames, outermost first. The frames and the type of the cause come first."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    origin = [*_locations(cause), _type_name(cause)] if cause else []
    return [*origin, *_frames(error.__traceback__)]


def _frames(traceback: TracebackType | None) -> list[str]:
    frames = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append(f"{code.co_filename}:{traceback.tb_lineno} {code.co_name}")
        traceback = traceback.tb_next
    return frames
