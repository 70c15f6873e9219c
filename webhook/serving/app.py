"""The HTTP routes: `POST /mutate` on the TLS port; `/healthz`, `/readyz` and `/metrics` on the plain port."""

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from email.message import Message
from functools import lru_cache
from http import HTTPStatus
from io import BytesIO
from urllib.parse import parse_qs

import structlog
from flask import Flask, jsonify, request
from flask import Response as FlaskResponse
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound, UnsupportedMediaType

from webhook.cluster.backend import Backend, Cache
from webhook.placement.settings import Settings
from webhook.serving.http.connection import RequestHandler
from webhook.serving.http.messages import Request, Response, error_response
from webhook.serving.review.deadlines import RetryBudget, parse_timeout
from webhook.serving.review.reviewer import Call, Reviewer
from webhook.serving.telemetry.metrics import CONTENT_TYPE, Metrics


def flask_response(app: Flask, request: Request) -> Response:
    """Return the response of a Flask app, without the headers that `serialize` adds. The app sees no body."""
    environ = {
        "REQUEST_METHOD": request.head.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": request.head.path,  # not unquoted: each path has one spelling
        "QUERY_STRING": request.head.query,
        "SERVER_NAME": "kubevirt-scheduler",
        "SERVER_PORT": "443",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "https",
        "wsgi.input": BytesIO(),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": False,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    found = FlaskResponse.from_app(app, environ)
    kept = [(name, value) for name, value in found.headers if name not in ("Content-Length", "Connection", "Date")]
    return Response(HTTPStatus(found.status_code), found.get_data(), kept)


# These replace werkzeug's error pages, which are HTML.
SENTENCES = {
    HTTPStatus.NOT_FOUND: "no such path",
    HTTPStatus.METHOD_NOT_ALLOWED: "method not allowed",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "unsupported media type: expected application/json in UTF-8",
}

log = structlog.get_logger("webhook")


def make_reviewer(
    backend: Backend, settings: Settings, metrics: Metrics, clock: Callable[[], float] = time.monotonic
) -> Reviewer:
    """Create the reviewer. Until the backend has synced, it responds with 503 if the API server can retry in time."""
    return Reviewer(backend, settings, metrics, RetryBudget(), clock)


def review_port(reviewer: Reviewer) -> Callable[[Request], Response]:
    """Return a function that responds to the requests of the TLS port: to reviews, and with errors to all others."""
    errors = _create_error_app()

    def respond(request: Request) -> Response:
        head = request.head
        if head.path == "/mutate" and head.method == "POST" and _is_json(head.content_type):
            return reviewer.answer(request.body, Call(request.received, _timeout(head.query)))
        return flask_response(errors, request)

    return respond


def _create_error_app() -> Flask:
    """Create the app that responds to a request that is no review: 404, 405 or 415."""
    app = _new_flask_app()

    @app.post("/mutate", provide_automatic_options=False)
    def mutate() -> FlaskResponse:
        raise UnsupportedMediaType

    return app


@lru_cache(maxsize=64)
def _is_json(content_type: bytes) -> bool:
    message = Message()
    message["Content-Type"] = content_type.decode("latin-1")
    charset = message.get_content_charset("utf-8")
    return message.get_content_type() == "application/json" and charset in {"utf-8", "utf8"}


@lru_cache(maxsize=64)  # one query per timeout in the webhook configurations
def _timeout(query: str) -> float:
    return parse_timeout(parse_qs(query).get("timeout", [""])[0])


def probe_port(app: Flask) -> RequestHandler:
    """Return the request handler of the plain port, which accepts no bodies."""
    return RequestHandler(lambda request: flask_response(app, request), body_limit=0)


def create_probes(
    metrics: Metrics,
    caches: Callable[[], list[Cache]],
    certificate_problems: Callable[[], dict[str, str]],
    not_ready_reason: Callable[[], str],
    stalled_seconds: Callable[[], float],
) -> Flask:
    """Create the app of the plain port: liveness, readiness and metrics.

    `stalled_seconds` is 0 while the TLS port makes progress; otherwise both probes fail. Readiness also requires that
    `not_ready_reason` is empty and that the caches have synced. It ignores `certificate_problems`, which
    `/readyz?verbose` lists.
    """
    app = _new_flask_app()

    def stall_reason() -> str:
        return f"the TLS port has made no progress for {since:.0f} s" if (since := stalled_seconds()) else ""

    @app.get("/healthz", provide_automatic_options=False)
    def healthz() -> FlaskResponse:
        if reason := stall_reason():
            return _response(error_response(HTTPStatus.SERVICE_UNAVAILABLE, reason))
        return jsonify(status="ok")

    @app.get("/readyz", provide_automatic_options=False)
    def readyz() -> FlaskResponse:
        found = caches()
        # In this order: a loop that hangs may hold a lock that `not_ready_reason` waits for.
        if reason := stall_reason() or not_ready_reason():
            return _response(error_response(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {reason}"))
        waiting = [cache for cache in found if cache.required and not cache.synced]
        problems, details = _problems(found), {}
        if "verbose" in request.args:
            problems, details = problems | certificate_problems(), {"caches": [asdict(cache) for cache in found]}
        response = jsonify({"status": "waiting" if waiting else "ok", "problems": problems} | details)
        response.status_code = HTTPStatus.SERVICE_UNAVAILABLE if waiting else HTTPStatus.OK
        return response

    @app.get("/metrics", provide_automatic_options=False)
    def metrics_page() -> FlaskResponse:
        return FlaskResponse(metrics.page(), content_type=CONTENT_TYPE)

    return app


def _problems(caches: list[Cache]) -> dict[str, str]:
    # For a 403, `problem` is the API server's message. It names the verb, the resource and the service account.
    return {cache.resource: cache.problem or "not listed yet" for cache in caches if cache.problem or not cache.synced}


def _new_flask_app() -> Flask:
    app = Flask("webhook", static_folder=None)
    app.url_map.merge_slashes = False  # merging would answer /mutate//x with a redirect in HTML
    app.before_request(_reject_leading_slashes)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _unexpected_error)
    return app


def _reject_leading_slashes() -> None:
    if request.environ["PATH_INFO"].startswith("//"):  # werkzeug takes //mutate for /mutate
        raise NotFound


def _response(response: Response) -> FlaskResponse:
    return FlaskResponse(response.body, response.status, dict(response.headers))


def _http_error(error: HTTPException) -> FlaskResponse:
    status = HTTPStatus(error.code or HTTPStatus.INTERNAL_SERVER_ERROR)
    response = _response(error_response(status, SENTENCES.get(status, status.phrase)))
    if isinstance(error, MethodNotAllowed) and error.valid_methods:
        response.headers["Allow"] = ", ".join(sorted(error.valid_methods))
    return response


def _unexpected_error(error: Exception) -> FlaskResponse:
    log.error("request failed", exc_info=error)
    return _response(error_response(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error"))
