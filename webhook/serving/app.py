"""The HTTP routes: `POST /mutate` on the TLS port; `/healthz`, `/readyz` and `/metrics` on the plain port."""

import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, NoReturn
from wsgiref.util import setup_testing_defaults

from flask import Flask, abort, request
from flask import Response as FlaskResponse
from msgspec.structs import asdict
from werkzeug.exceptions import HTTPException, InternalServerError, MethodNotAllowed

from webhook.cluster.backend import Cache
from webhook.serving.http.messages import Head, Request, Response, error_response
from webhook.serving.review.retry_budget import timeout_of
from webhook.serving.review.reviewer import Reviewer
from webhook.serving.telemetry.metrics import CONTENT_TYPE, Metrics

Respond = Callable[[Request], Response]

# Compared, not parsed: a library took 2 s for 60 KB of semicolons. The API server sends the first one.
JSON_MEDIA_TYPES = b"application/json", b"application/json;charset=utf-8", b"application/json;charset=utf8"
SENTENCES = {404: "no such path", 405: "method not allowed"}  # instead of werkzeug's

log = logging.getLogger("webhook")


def review_port(reviewer: Reviewer) -> Respond:
    """Return a function that responds to the requests of the TLS port: to reviews, and with errors to all others."""
    errors = _new_flask_app()

    @errors.post("/mutate", provide_automatic_options=False)
    def mutate() -> NoReturn:
        abort(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported media type: expected application/json in UTF-8")

    def respond(received: Request) -> Response:
        if (timeout := _review_timeout(received.head)) is not None:
            return reviewer.answer(received.body, received.received, timeout)
        return _flask_response(errors, received.head)

    return respond


def _new_flask_app() -> Flask:
    app = Flask("webhook", static_folder=None)
    app.register_error_handler(Exception, _error)
    return app


def _error(error: Exception) -> FlaskResponse:
    """Replace werkzeug's error pages, which are HTML."""
    if not isinstance(error, HTTPException):
        log.error("request failed", exc_info=error)
        error = InternalServerError("internal error")
    methods = error.valid_methods if isinstance(error, MethodNotAllowed) else None
    headers = [("Allow", ", ".join(sorted(methods)))] if methods else []
    code = error.code or 500
    found = error_response(HTTPStatus(code), SENTENCES.get(code, error.description or ""), headers=headers)
    return FlaskResponse(found.body, found.status, list(found.headers))


def _flask_response(app: Flask, head: Head) -> Response:
    """Return the response of a Flask app, which sees no body."""
    environ = {
        "REQUEST_METHOD": "GET" if head.method == "HEAD" else head.method,  # the connection omits the body
        # Each path has one spelling: this isn't unquoted, and werkzeug would take //mutate for /mutate.
        "PATH_INFO": head.path.replace("//", "/%2F"),
        "QUERY_STRING": head.query,
    }
    setup_testing_defaults(environ)
    with app.request_context(environ):
        found = app.full_dispatch_request()
    kept = [(name, value) for name, value in found.headers if name != "Content-Length"]  # `serialize` adds it
    return Response(HTTPStatus(found.status_code), found.get_data(), kept)


def _review_timeout(head: Head) -> float | None:
    """Return the timeout of a review, or None for any other request."""
    is_json = head.content_type.translate(None, b' \t"').lower() in JSON_MEDIA_TYPES
    return timeout_of(head.query) if is_json and (head.method, head.path) == ("POST", "/mutate") else None


def probe_port(
    metrics: Metrics,
    caches: Callable[[], list[Cache]],
    certificate_problems: Callable[[], dict[str, str]],
    not_ready_reason: Callable[[], str],
    stalled_seconds: Callable[[], float],
) -> Respond:
    """Return a function that responds to the requests of the plain port: liveness, readiness and metrics.

    `stalled_seconds` is 0 while the TLS port makes progress; otherwise both probes fail. Readiness also requires that
    `not_ready_reason` is empty and that the caches have synced. It ignores `certificate_problems`, which
    `/readyz?verbose` lists.
    """
    app = _new_flask_app()

    def stall_reason() -> str:
        return f"the TLS port has made no progress for {since:.0f} s" if (since := stalled_seconds()) else ""

    @app.get("/healthz", provide_automatic_options=False)
    def healthz() -> dict[str, Any]:
        if reason := stall_reason():
            abort(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        return {"status": "ok"}

    @app.get("/readyz", provide_automatic_options=False)
    def readyz() -> tuple[dict[str, Any], HTTPStatus]:
        found = caches()
        # In this order: a loop that hangs may hold a lock that `not_ready_reason` waits for.
        if reason := stall_reason() or not_ready_reason():
            abort(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {reason}")
        waiting = any(cache.required and not cache.synced for cache in found)
        # For a 403, `problem` is the API server's message. It names the verb, the resource and the service account.
        problems = {of.resource: of.problem or "not listed yet" for of in found if of.problem or not of.synced}
        page: dict[str, Any] = {"status": "waiting" if waiting else "ok", "problems": problems}
        if request.query_string.startswith(b"verbose"):  # to parse a query of 8 KiB takes 3 ms
            page["problems"] |= certificate_problems()
            page["caches"] = [asdict(cache) for cache in found]
        return page, HTTPStatus.SERVICE_UNAVAILABLE if waiting else HTTPStatus.OK

    @app.get("/metrics", provide_automatic_options=False)
    def metrics_page() -> FlaskResponse:
        return FlaskResponse(metrics.page(), content_type=CONTENT_TYPE)

    return lambda received: _flask_response(app, received.head)
