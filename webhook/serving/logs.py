"""Structured logs on standard error, one line each: ours, gunicorn's and waitress' in one form."""

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
from webhook.serving.log_stream import LogStream

# gunicorn stops its logger from handing records up to the root; without gunicorn they would come twice.
_LOGGERS = (None, "gunicorn.error")


def configure(settings: Settings, stream: TextIO | LogStream) -> None:
    """Write all logs of the process as the settings say; a second call replaces the first."""
    file: Any = stream  # the Outlet has of a file what is asked of it here
    shared: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        without_messages,
    ]
    # Ours go straight to the stream: on their way through logging each line is made twice.
    structlog.configure(
        processors=[*shared, _renderer(settings.log_format)],
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
    # It warns whenever two probes come at once.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)


def _renderer(form: LogFormat) -> Processor:
    if form is LogFormat.JSON:
        return structlog.processors.JSONRenderer(_json)
    written = structlog.processors.LogfmtRenderer(key_order=["time", "level", "event"], bool_as_flag=False)
    # A name or uid may hold what a terminal obeys.
    return lambda *line: printable(written(*line))


def _json(event: EventDict, **_: Any) -> str:
    try:
        return msgspec.json.encode(event).decode()
    except (TypeError, ValueError):  # half a surrogate pair, or what is not of JSON
        return json.dumps(event, default=repr)


def without_messages(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Replace an exception by its type and the places it came through; a structlog processor.

    Never its message: that may quote the pod that was being read, and a pod may hold a passphrase.
    """
    exc_info = event.pop("exc_info", None)
    error = _exception(exc_info)
    if error is not None:
        event["error"] = _type(error)
        event["traceback"] = " > ".join(_places(error))
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


def _type(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")


def _places(error: BaseException) -> list[str]:
    """Each frame, outermost first; what an exception was raised from comes before it, with its type."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    before = [*_places(cause), _type(cause)] if cause else []
    return [*before, *_frames(error.__traceback__)]


def _frames(traceback: TracebackType | None) -> list[str]:
    found = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        found.append(f"{code.co_filename}:{traceback.tb_lineno} {code.co_name}")
        traceback = traceback.tb_next
    return found
