"""Logs: one form for all, and never the message of an exception."""

import io
import json
import logging

import pytest
import structlog

from tests.support.builders import settings
from webhook.placement.settings import LogFormat, LogLevel
from webhook.serving import logs

SECRET = "not-a-real-passphrase"


@pytest.fixture(autouse=True)
def _undone():
    """The handlers of pytest come back afterwards."""
    names = (None, "gunicorn.error", "waitress.queue")
    before = [
        (logging.getLogger(name), logging.getLogger(name).handlers, logging.getLogger(name).level) for name in names
    ]
    yield
    structlog.reset_defaults()
    for logger, handlers, level in before:
        logger.handlers = handlers
        logger.setLevel(level)


def configured(**chosen):
    stream = io.StringIO()
    logs.configure(settings(**chosen), stream)
    return stream


def lines(stream):
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def fail():
    raise ValueError(SECRET)


def test_a_line_is_json_with_its_time_level_and_fields():
    stream = configured()
    structlog.get_logger("webhook").info("decided", pod="vm1", claims=2, dry_run=False, node=None)
    [line] = lines(stream)
    assert line.pop("time").endswith("Z")
    assert line == {"event": "decided", "level": "info", "pod": "vm1", "claims": 2, "dry_run": False, "node": None}


def test_a_line_is_text_where_the_settings_say_so():
    stream = configured(log_format=LogFormat.TEXT)
    structlog.get_logger("webhook").info("decided", pod="vm1", dry_run=False, node=None)
    assert stream.getvalue().rstrip().partition(" ")[2] == "level=info event=decided pod=vm1 dry_run=false node="


@pytest.mark.parametrize("form", LogFormat)
def test_a_line_stays_one_line_whatever_a_name_holds(form):
    stream = configured(log_format=form)
    structlog.get_logger("webhook").info("decided", pod='vm1\nlevel=error event="forged"', uid="a\rb\x1b[2Jc")
    (line,) = stream.getvalue().splitlines()
    assert line.isprintable()


@pytest.mark.parametrize("name", ["gunicorn.error", "waitress", "anything.else"])
@pytest.mark.parametrize("form", LogFormat)
def test_lines_of_libraries_have_the_same_form(name, form):
    stream = configured(log_format=form)
    logging.getLogger(name).warning("%s workers", 1)
    assert "1 workers" in stream.getvalue()
    if form is LogFormat.JSON:
        [line] = lines(stream)
        assert (line["event"], line["level"], line["logger"]) == ("1 workers", "warning", name)
    else:
        assert 'level=warning event="1 workers"' in stream.getvalue()


@pytest.mark.parametrize("name", ["webhook", "gunicorn.error"])
def test_what_is_less_important_than_the_settings_say_is_left_out(name):
    stream = configured(log_level=LogLevel.WARNING)
    structlog.get_logger(name).info("left out")
    logging.getLogger(name).info("left out")
    structlog.get_logger(name).warning("written")
    assert [line["event"] for line in lines(stream)] == ["written"]


def test_a_second_configuration_replaces_the_first():
    first = configured()
    second = configured()
    structlog.get_logger("webhook").info("decided")
    assert first.getvalue() == ""
    assert len(lines(second)) == 1


@pytest.mark.parametrize("form", LogFormat)
@pytest.mark.parametrize("logger", [structlog.get_logger("webhook"), logging.getLogger("gunicorn.error")])
def test_an_exception_is_its_type_and_its_places_and_never_its_message(logger, form):
    stream = configured(log_format=form)
    try:
        fail()
    except ValueError:
        logger.exception("a request failed")
    assert SECRET not in stream.getvalue()
    assert "error=ValueError" in stream.getvalue() or '"error":"ValueError"' in stream.getvalue()
    assert "test_logs.py" in stream.getvalue()
    assert " fail" in stream.getvalue()


def test_an_exception_that_is_handed_over_is_written_as_one_that_is_being_handled():
    stream = configured()
    try:
        fail()
    except ValueError as error:
        caught = error
    structlog.get_logger("webhook").error("a request failed", exc_info=caught)
    [line] = lines(stream)
    assert line["error"] == "ValueError"
    assert line["traceback"].endswith(" fail")


def test_what_an_exception_was_raised_from_is_told_by_its_type():
    stream = configured()
    try:
        try:
            fail()
        except ValueError as error:
            raise json.JSONDecodeError(SECRET, SECRET, 0) from error
    except ValueError:
        structlog.get_logger("webhook").exception("a request failed")
    [line] = lines(stream)
    assert SECRET not in json.dumps(line)
    assert line["error"] == "json.decoder.JSONDecodeError"
    assert " fail > ValueError > " in line["traceback"]


@pytest.mark.parametrize("nothing", [None, False])
def test_a_line_without_an_exception_has_no_error(nothing):
    stream = configured()
    structlog.get_logger("webhook").info("decided", exc_info=nothing)
    assert "error" not in lines(stream)[0]
    assert "exc_info" not in lines(stream)[0]


@pytest.mark.parametrize("strange", ["\ud800", object(), {1, 2}])
def test_what_json_does_not_know_is_written_all_the_same(strange):
    stream = configured()
    structlog.get_logger("webhook").info("decided", pod=strange, vm="vm1")
    assert lines(stream)[0]["vm"] == "vm1"
