"""The Flask application: `POST /mutate` for reviews, `GET /healthz`, `/readyz` and `/metrics` for probes.

Any WSGI server runs it. Ours has two listeners, each with its own paths, and takes the shortcut: Flask's dispatch takes
as long as a whole decision.
"""

import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from flask import Flask, abort, request
from flask import Response as FlaskResponse
from msgspec import Struct
from msgspec.structs import asdict
from werkzeug.exceptions import HTTPException, InternalServerError, MethodNotAllowed

from webhook.cluster.backend import Cache
from webhook.serving.review.retry_budget import timeout_of
from webhook.serving.review.reviewer import Reviewer
from webhook.serving.telemetry.metrics import CONTENT_TYPE, Metrics
from webhook.serving.worker.messages import Request, Response, error_response
from webhook.serving.worker.parser import BODY_LIMIT, BODY_TOO_LARGE
from webhook.serving.worker.wsgi import PATHS, RECEIVED

REVIEW_PATHS, PROBE_PATHS = ("/mutate",), ("/healthz", "/readyz", "/metrics")
# Compared, not parsed: a library took 2 s for 60 KB of semicolons. The API server sends the first one.
JSON_MEDIA_TYPES = b"application/json", b"application/json;charset=utf-8", b"application/json;charset=utf8"
SENTENCES = {404: "no such path", 405: "method not allowed", 413: BODY_TOO_LARGE}

log = logging.getLogger("webhook")


class Health(Struct):
    """What the probes ask. The worker sets the last two after the fork."""

    metrics: Metrics
    caches: Callable[[], list[Cache]]
    # what `/readyz?verbose` lists, and readiness ignores
    certificate_problems: Callable[[], dict[str, str]] = dict
    # readiness requires that this is empty and that the caches have synced
    not_ready_reason: Callable[[], str] = str
    # 0 while the TLS port makes progress; otherwise liveness and readiness fail
    stalled_seconds: Callable[[], float] = float

    def stall_reason(self) -> str:
        """Return why the TLS port is stalled, empty if it is not."""
        return f"the TLS port has made no progress for {since:.0f} s" if (since := self.stalled_seconds()) else ""


def create_app(reviewer: Reviewer, health: Health) -> Flask:
    """Return the application."""
    app = Flask("webhook", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = BODY_LIMIT
    app.register_error_handler(Exception, _error)

    @app.before_request
    def serve_only_the_listeners_paths() -> None:
        if request.path not in request.environ.get(PATHS, (request.path,)):
            abort(HTTPStatus.NOT_FOUND)

    @app.post("/mutate", provide_automatic_options=False)
    def mutate() -> FlaskResponse:
        if not _is_json(request.environ.get("CONTENT_TYPE", "").encode("latin-1")):
            abort(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported media type: expected application/json in UTF-8")
        received = request.environ.get(RECEIVED, reviewer.clock())
        timeout = timeout_of(request.query_string.decode("latin-1"))
        answer = reviewer.answer(request.get_data(cache=False), received, timeout)
        return FlaskResponse(answer.body, answer.status, list(answer.headers))

    _add_probes(app, health)
    return app


def _add_probes(app: Flask, health: Health) -> None:
    @app.get("/healthz", provide_automatic_options=False)
    def healthz() -> dict[str, Any]:
        if reason := health.stall_reason():
            abort(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        return {"status": "ok"}

    @app.get("/readyz", provide_automatic_options=False)
    def readyz() -> tuple[dict[str, Any], HTTPStatus]:
        caches = health.caches()
        # In this order: a loop that hangs may hold a lock that `not_ready_reason` waits for.
        if reason := health.stall_reason() or health.not_ready_reason():
            abort(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {reason}")
        waiting = any(cache.required and not cache.synced for cache in caches)
        # For a 403, `problem` is the API server's message. It names the verb, the resource and the service account.
        problems = {of.resource: of.problem or "not listed yet" for of in caches if of.problem or not of.synced}
        page: dict[str, Any] = {"status": "waiting" if waiting else "ok", "problems": problems}
        if request.query_string.startswith(b"verbose"):  # to parse a query of 8 KiB takes 3 ms
            page["problems"] |= health.certificate_problems()
            page["caches"] = [asdict(cache) for cache in caches]
        return page, HTTPStatus.SERVICE_UNAVAILABLE if waiting else HTTPStatus.OK

    @app.get("/metrics", provide_automatic_options=False)
    def metrics_page() -> FlaskResponse:
        return FlaskResponse(health.metrics.page(), content_type=CONTENT_TYPE)


def review_shortcut(reviewer: Reviewer) -> Callable[[Request], Response | None]:
    """Return a function that responds to ordinary reviews like the application, and returns None for other requests."""

    def answer(received: Request) -> Response | None:
        head = received.head
        if (head.method, head.path) == ("POST", "/mutate") and _is_json(head.content_type):
            return reviewer.answer(received.body, received.received, timeout_of(head.query))
        return None

    return answer


def _is_json(content_type: bytes) -> bool:
    return content_type.translate(None, b' \t"').lower() in JSON_MEDIA_TYPES


def _error(error: Exception) -> FlaskResponse:
    """Replace werkzeug's error pages, which are HTML."""
    if not isinstance(error, HTTPException):
        log.error("request failed", exc_info=error)
        error = InternalServerError("internal error")
    methods = error.valid_methods if isinstance(error, MethodNotAllowed) else None
    headers = [("Allow", ", ".join(sorted(methods)))] if methods else []
    code = error.code or 500
    answer = error_response(HTTPStatus(code), SENTENCES.get(code, error.description or ""), headers=headers)
    return FlaskResponse(answer.body, answer.status, list(answer.headers))
