"""Capture the events that the product logs, as dicts, and read the log of a process."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.builders import Object

_OF_EACH_RECORD = vars(logging.makeLogRecord({})).keys()


class _Capture(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[Object] = []

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {k: v for k, v in vars(record).items() if k not in _OF_EACH_RECORD}
        if record.exc_info:
            fields["exc_info"] = record.exc_info[1]
        # Libraries log too: urllib3 each connection.
        if record.name.partition(".")[0] in {"webhook", "certs"}:
            self.events.append({"event": record.getMessage(), "log_level": record.levelname.lower()} | fields)


@contextmanager
def capture_logs() -> Iterator[list[Object]]:
    """Capture all events during the block, of any level; nothing is written."""
    root, capture = logging.getLogger(), _Capture()
    before = root.handlers, root.level
    root.handlers = [capture]
    root.setLevel(logging.DEBUG)
    try:
        yield capture.events
    finally:
        root.handlers = before[0]
        root.setLevel(before[1])


def whole_lines(log: str) -> list[str]:
    """Return the lines of a process's log, without a last one that the process may still be writing."""
    return [line for line in log.splitlines(keepends=True) if line.endswith("\n")]


# No test sends these. gunicorn's master logs of which signal a worker died; of other programs, the status has it.
_CRASHES = re.compile(r"was sent (?:SIG(?:SEGV|BUS|ILL|FPE|ABRT))|Fatal Python error: .*")
CRASH_SIGNALS = frozenset({-4, -6, -7, -8, -11})  # as `Popen.returncode`


def crashes(log: str, status: int | None = None) -> list[str]:
    """Return each crash of a process and its workers: a signal that no test sends."""
    return _CRASHES.findall(log) + [f"status {status}"] * (status in CRASH_SIGNALS)
