"""Logging: one format for all loggers, and never the message of an exception."""

import io
import json
import logging
import sys
import threading

import pytest

from tests.support.builders import settings
from tests.support.fake_clock import FakeClock
from webhook.placement.settings import LogLevel
from webhook.serving.telemetry import logs
from webhook.serving.telemetry.logs import (
    DECISIONS_PER_SECOND,
    LINES_PER_SECOND,
    MAX_BURST,
    MAX_DECISIONS,
    LogLimit,
    UncaughtErrors,
)

SECRET = "not-a-real-passphrase"


@pytest.fixture(autouse=True)
def _restore_logging():
    """Restore the handlers and levels, which pytest sets, after each test."""
    names = (None, "gunicorn.error")
    saved = [
        (logging.getLogger(name), logging.getLogger(name).handlers, logging.getLogger(name).level) for name in names
    ]
    yield
    for logger, handlers, level in saved:
        logger.handlers = handlers
        logger.setLevel(level)


def configured(**options):
    stream = io.StringIO()
    return stream, logs.configure(settings(**options), stream, LogLimit())


def lines(stream):
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def fail():
    raise ValueError(SECRET)


def test_a_json_line_contains_time_level_and_fields():
    stream, handler = configured()
    fields = {"pod": "vm1", "claims": 2, "dry_run": False, "node": None, "reason": "CoScheduled"}
    logging.getLogger("webhook").info("decided", extra=fields)
    handler.decided(fields)
    written = lines(stream)
    assert all(line.pop("time").endswith("Z") for line in written)
    assert written == [{"event": "decided", "level": "info"} | fields] * 2


@pytest.mark.parametrize("name", ["webhook", "gunicorn.error", "anything.else"])
def test_each_logger_writes_json_and_drops_lines_below_the_log_level(name):
    stream, handler = configured(log_level=LogLevel.WARNING)
    logging.getLogger(name).info("dropped")
    handler.decided({"reason": "CoScheduled"})
    logging.getLogger(name).warning("%s workers", 1)
    [line] = lines(stream)
    library = {} if name == "webhook" else {"logger": name}
    assert line == {"event": "1 workers", "level": "warning", "time": line["time"]} | library


@pytest.mark.parametrize("logger", [logging.getLogger("webhook"), logging.getLogger("gunicorn.error")])
def test_an_exception_is_logged_with_type_and_frames_without_its_message(logger):
    stream, _ = configured()
    try:
        fail()
    except ValueError as error:
        logger.exception("request failed")
        caught = error
    logger.error("request failed", exc_info=caught)  # outside its handler
    assert SECRET not in stream.getvalue()
    for line in lines(stream):
        assert line["error"] == "ValueError"
        assert "test_logs.py" in line["traceback"]
        assert line["traceback"].endswith(" fail")
    assert len(lines(stream)) == 2


def test_the_cause_of_an_exception_is_logged_by_type():
    stream, _ = configured()
    try:
        try:
            fail()
        except ValueError as error:
            raise json.JSONDecodeError(SECRET, SECRET, 0) from error
    except ValueError:
        logging.getLogger("webhook").exception("request failed")
    [line] = lines(stream)
    assert SECRET not in json.dumps(line)
    assert line["error"] == "json.decoder.JSONDecodeError"
    assert " fail > ValueError > " in line["traceback"]


@pytest.mark.parametrize("value", ["\ud800", object(), {1, 2}, 'vm1\nlevel=error event="forged"', "a\rb\x1b[2Jc"])
def test_a_value_that_is_not_json_or_has_control_characters_neither_loses_nor_splits_a_line(value):
    stream, _ = configured()
    logging.getLogger("webhook").info("decided", extra={"pod": value, "vm": "vm1"})
    (line,) = stream.getvalue().splitlines()
    assert line.isprintable()
    assert json.loads(line)["vm"] == "vm1"


def test_a_flood_of_one_cause_is_cut_to_a_burst_then_a_rate_and_the_next_line_counts_the_dropped_ones():
    """One client wrote 11,500 lines in 5 s, and the kubelet's 50 MiB were overwritten within two minutes."""
    clock, stream = FakeClock(), io.StringIO()
    limit = LogLimit(clock)
    handler = logs.configure(settings(), stream, limit)

    def written(number, log=None, **fields):
        before = len(lines(stream))
        for _ in range(number):
            (log or (lambda fields: logging.getLogger("webhook").warning("error response", extra=fields)))(fields)
        return lines(stream)[before:]

    assert len(written(3000, code=400)) == MAX_BURST
    assert len(written(3000, handler.decided, reason="CoScheduled")) == MAX_DECISIONS
    clock.now += 1
    assert [line.get("suppressed") for line in written(1, code=400)] == [3000 - MAX_BURST]
    assert len(written(3000, code=400)) == LINES_PER_SECOND - 1
    assert len(written(3000, handler.decided, reason="CoScheduled")) == DECISIONS_PER_SECOND
    assert limit.suppressed == 4 * 3000 + 1 - MAX_BURST - MAX_DECISIONS - LINES_PER_SECOND - DECISIONS_PER_SECOND
    # A flood of one cause hides no other.
    assert len(written(1, code=503)) == 1
    assert len(written(1, handler.decided, reason="NodeFull")) == 1
    logging.getLogger("webhook").warning("another statement")
    assert lines(stream)[-1]["event"] == "another statement"


def test_a_flood_hides_no_statement_on_the_same_line_of_another_file() -> None:
    limit = LogLimit(FakeClock())
    flood, other = (logging.LogRecord("webhook", 30, path, 80, "x", (), None) for path in ("a.py", "b.py"))
    assert [limit.filter(flood) for _ in range(MAX_BURST + 1)][-1] is False
    assert limit.filter(other) is True


def test_an_error_that_ends_a_thread_is_one_line_without_its_message_and_is_counted():
    """The hook of `threading` wrote the message to standard error, and nothing counted it."""
    (stream, _), errors = configured(), UncaughtErrors()
    before = threading.excepthook, sys.unraisablehook
    errors.install()
    try:
        thread = threading.Thread(target=fail, name="fleet")
        thread.start()
        thread.join()
        type("Broken", (), {"__del__": lambda _self: fail()})()
    finally:
        threading.excepthook, sys.unraisablehook = before
    assert [(line["event"], line["error"], line["thread_name"]) for line in lines(stream)] == [
        ("uncaught error", "ValueError", "fleet"),
        ("uncaught error", "ValueError", threading.current_thread().name),
    ]
    assert SECRET not in stream.getvalue()
    assert errors.count == 2
