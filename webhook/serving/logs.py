"""Structured logging: one format for the logs of this program and of gunicorn, one line per event."""

import json
import logging
import sys
from types import TracebackType
from typing import Any, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from webhook.cluster.documents import printable
from webhook.placement.settings import LogFormat, Settings
from webhook.serving.log_limit import LogLimit
from webhook.serving.log_stream import LogStream

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
